package front

import (
	"context"
	"fmt"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/internal/fault"
	gateway "github.com/podplane/podplane/proto/gateway/podplane/v1"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

const yamlType = "application/yaml"

// newMux makes the part that turns REST into gRPC. conn gives the connection to a service by name.
func newMux(ctx context.Context, conn func(service string) grpc.ClientConnInterface, services podplanev1.ServiceServiceServer) (*runtime.ServeMux, error) {
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, marshaler{contentType: jsonType}),
		runtime.WithMarshalerOption(jsonType, marshaler{contentType: jsonType}),
		runtime.WithMarshalerOption(yamlType, marshaler{contentType: yamlType}),
		runtime.SetQueryParameterParser(&queryParser{}),
		runtime.WithErrorHandler(handleError),
		runtime.WithStreamErrorHandler(handleStreamError),
		runtime.WithRoutingErrorHandler(handleRoutingError),
		runtime.WithForwardResponseOption(begin),
		runtime.WithIncomingHeaderMatcher(incomingHeader),
		runtime.WithOutgoingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithOutgoingTrailerMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithUnescapingMode(runtime.UnescapingModeAllCharacters),
		runtime.WithDisablePathLengthFallback(),
		runtime.WithDisableHTTPMethodOverride(),
	)
	unguarded := conn
	conn = func(service string) grpc.ClientConnInterface { return guardedConn{unguarded(service)} }
	syncd := conn(bus.ServiceSyncd)
	for name, register := range map[string]func() error{
		"pods": func() error {
			return gateway.RegisterPodServiceHandlerClient(ctx, mux, podplanev1.NewPodServiceClient(syncd))
		},
		"configmaps": func() error {
			return gateway.RegisterConfigMapServiceHandlerClient(ctx, mux, podplanev1.NewConfigMapServiceClient(syncd))
		},
		"secrets": func() error {
			return gateway.RegisterSecretServiceHandlerClient(ctx, mux, podplanev1.NewSecretServiceClient(syncd))
		},
		"events": func() error {
			return gateway.RegisterEventServiceHandlerClient(ctx, mux, podplanev1.NewEventServiceClient(syncd))
		},
		"nodes": func() error {
			return gateway.RegisterNodeServiceHandlerClient(ctx, mux, podplanev1.NewNodeServiceClient(syncd))
		},
		"why": func() error {
			return gateway.RegisterWhyServiceHandlerClient(ctx, mux, podplanev1.NewWhyServiceClient(syncd))
		},
		"lifecycle": func() error {
			return gateway.RegisterLifecycleServiceHandlerClient(ctx, mux, podplanev1.NewLifecycleServiceClient(conn(bus.ServicePleg)))
		},
		"probes": func() error {
			return gateway.RegisterProbeServiceHandlerClient(ctx, mux, podplanev1.NewProbeServiceClient(conn(bus.ServiceProber)))
		},
		"volumes": func() error {
			return gateway.RegisterVolumeServiceHandlerClient(ctx, mux, podplanev1.NewVolumeServiceClient(conn(bus.ServiceVolumed)))
		},
		"evictions": func() error {
			return gateway.RegisterEvictionServiceHandlerClient(ctx, mux, podplanev1.NewEvictionServiceClient(conn(bus.ServiceEvictd)))
		},
		"services": func() error { return gateway.RegisterServiceServiceHandlerServer(ctx, mux, services) },
	} {
		if err := register(); err != nil {
			return nil, fmt.Errorf("register the routes of %s: %w", name, err)
		}
	}
	return mux, nil
}

func handleError(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, _ *http.Request, err error) {
	writeStatus(w, statusOf(err))
}

// handleStreamError keeps the error for the response writer, which alone knows what was sent already.
func handleStreamError(ctx context.Context, err error) *status.Status {
	if x := exchangeOf(ctx); x != nil {
		if cause := context.Cause(ctx); fault.Is(cause, fault.Unauthenticated) || fault.Is(cause, fault.PermissionDenied) {
			err = cause // the reader may no longer read
		}
		x.fail(err, daemon.Stopping(ctx).Err() != nil)
	}
	return status.Convert(fault.ToGRPC(err))
}

// handleRoutingError is for what chi let through and grpc-gateway does not know.
func handleRoutingError(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) {
	switch code {
	case http.StatusMethodNotAllowed:
		writeStatus(w, methodNotAllowed(r))
	case http.StatusBadRequest:
		writeStatus(w, fault.ToStatus(fault.New(fault.BadRequest, "the path %q can't be read", r.URL.Path)))
	default:
		writeStatus(w, fault.ToStatus(fault.Wrap(fault.NotFound, errNoRoute)))
	}
}

// begin answers a POST with 201, and begins the answer of a stream as soon as the service has accepted it, so that a client knows that its
// watch stands before anything happens. A service that refuses sends no headers of its own.
func begin(ctx context.Context, w http.ResponseWriter, msg proto.Message) error {
	x := exchangeOf(ctx)
	if x == nil {
		return nil
	}
	if msg != nil {
		if x.method == http.MethodPost {
			w.WriteHeader(http.StatusCreated)
		}
		return nil
	}
	if md, ok := runtime.ServerMetadataFromContext(ctx); !ok || md.HeaderMD == nil || !x.streams() {
		return nil
	}
	w.Header().Set("Content-Type", x.contentType)
	w.WriteHeader(http.StatusOK)
	if err := http.NewResponseController(w).Flush(); err != nil {
		return fmt.Errorf("begin the stream: %w", err)
	}
	return nil
}

// incomingHeader lets only the user agent through to the services, as who changed something; trace context travels by itself.
func incomingHeader(key string) (string, bool) {
	if key == "User-Agent" {
		return runtime.MetadataPrefix + "user-agent", true
	}
	return "", false
}
