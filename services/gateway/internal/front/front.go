// Package front is the front door: HTTP in, gRPC out.
//
// A request passes, in this order: request id, recovery, root span, access log, security headers, audit log, the check for foreign pages,
// authentication, the limits of requests (of one user, and of all at once), the limit of the body (read whole, at most 3 MiB); then chi finds
// the route, the caller is authorised for it, and for the API the media types are negotiated and grpc-gateway calls the service; what is
// called must be what was authorised. The routes are those of the protos. Every refusal, from whichever step, is a Kubernetes Status object.
//
// Nothing is buffered but the request's body. A stream is flushed message by message; a client that does not read for 30 s is cut off, and
// holds nobody up but its own stream. What breaks before the first byte is a Status with its code; in a watch it becomes an ERROR event, in
// other streams a broken connection, so that half an answer is never taken for a whole one.
package front

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/gateway/internal/docs"
)

// Options are what the front door needs.
type Options struct {
	// Conn gives the connection to a service by name.
	Conn func(service string) grpc.ClientConnInterface
	// Services answers /podplane/v1/services.
	Services podplanev1.ServiceServiceServer
	// Ops serves /healthz, /readyz and /metrics.
	Ops http.Handler
	// Log takes the access log.
	Log *slog.Logger
	// Registry takes the metrics.
	Registry prometheus.Registerer
	// Version is answered at /version.
	Version string
	// LocalOnly refuses requests whose Host is not a loopback name.
	LocalOnly bool
	// Guard says who may do what, and how often.
	Guard Guard
}

// New makes the front door's handler.
func New(ctx context.Context, o Options) (http.Handler, error) {
	if o.Conn == nil || o.Services == nil || o.Ops == nil {
		return nil, errors.New("the front door needs connections, services and ops")
	}
	mux, err := newMux(ctx, o.Conn, guardedServices{o.Services})
	if err != nil {
		return nil, err
	}
	r := chi.NewRouter()
	r.Use(called, requestID, recoverer(o.Log), traced, observed(o.Log, newMetrics(o.Registry)), secured,
		audited(o.Guard.Audit), sameSite(o.LocalOnly), authenticated(o.Guard.Access), rated(o.Guard.Rate), limited, bounded)
	r.NotFound(func(w http.ResponseWriter, _ *http.Request) {
		writeStatus(w, fault.ToStatus(fault.Wrap(fault.NotFound, errNoRoute)))
	})
	r.MethodNotAllowed(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Allow", strings.Join(allowed(r, req.URL.Path), ", "))
		writeStatus(w, methodNotAllowed(req))
	})
	known := routes()
	api := r.With(routed, guardRoute(o.Guard, known), negotiate, exchanging)
	for route := range known {
		api.Method(route.method, route.pattern, mux)
	}
	paths := r.With(guardPath(o.Guard.Access))
	for _, path := range []string{openPath, "/readyz", "/metrics"} {
		paths.Method(http.MethodGet, path, o.Ops)
	}
	addDiscovery(paths, o.Version)
	if err := docs.Mount(paths, o.Version); err != nil {
		return nil, err
	}
	return r, nil
}

func methodNotAllowed(r *http.Request) metav1.Status {
	return routingStatus(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "the server does not allow the method "+r.Method+" on this resource")
}

// allowed lists the methods that a path has.
func allowed(r chi.Routes, path string) []string {
	var out []string
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if r.Match(chi.NewRouteContext(), m, path) {
			out = append(out, m)
		}
	}
	return out
}
