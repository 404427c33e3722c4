package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"

	"github.com/podplane/podplane/internal/fault"
)

const (
	// MaxRequestBytes is the largest request a server reads; bodies of up to 3 MiB fit.
	MaxRequestBytes = 4 << 20
	// MaxResponseBytes is the largest message a client reads.
	MaxResponseBytes = 16 << 20

	bufferBytes     = 16 << 10
	serverKeepalive = time.Minute
	keepaliveAnswer = 10 * time.Second
	minClientPing   = 10 * time.Second
)

var errStopping = errors.New("the service is shutting down")

// Server is a gRPC server. Register services on it, then call Serve once.
type Server struct {
	grpc     *grpc.Server
	health   *health.Server
	log      *slog.Logger
	stopping context.Context
	stop     context.CancelCauseFunc
}

// NewServer makes a server that is not serving yet and whose health says so.
func NewServer(log *slog.Logger) *Server { return NewServerTLS(log, nil) }

// NewServerTLS is NewServer with encrypted connections only; who may connect is for the configuration to say. Without one they are plain.
func NewServerTLS(log *slog.Logger, secure *tls.Config) *Server {
	s := &Server{log: log, health: health.NewServer()}
	s.stopping, s.stop = context.WithCancelCause(context.Background())
	transport := insecure.NewCredentials()
	if secure != nil {
		transport = credentials.NewTLS(secure)
	}
	s.grpc = grpc.NewServer(
		grpc.Creds(transport),
		grpc.StatsHandler(aboutHandler{otelgrpc.NewServerHandler(otelgrpc.WithFilter(worthTracing))}),
		grpc.ChainUnaryInterceptor(s.unary),
		grpc.ChainStreamInterceptor(s.stream),
		grpc.MaxRecvMsgSize(MaxRequestBytes),
		grpc.ReadBufferSize(bufferBytes), grpc.WriteBufferSize(bufferBytes),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: serverKeepalive, Timeout: keepaliveAnswer}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minClientPing, PermitWithoutStream: true}),
	)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	s.SetReady(false)
	return s
}

// RegisterService adds a service; generated Register…Server functions call it.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	s.grpc.RegisterService(desc, impl)
}

// Identify says which service this is a replica of, and on which node. Clients that found the address by the service's name call nothing
// that does not say so.
func (s *Server) Identify(service, node string) {
	s.health.SetServingStatus(identity(service, ""), healthpb.HealthCheckResponse_SERVING)
	if node != "" {
		s.health.SetServingStatus(identity(service, node), healthpb.HealthCheckResponse_SERVING)
	}
}

// SetReady sets what the health service answers.
func (s *Server) SetReady(ready bool) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		status = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", status)
}

// Serve serves on lis until ctx ends; then it ends open streams, lets calls finish for grace, and cuts what is left.
func (s *Server) Serve(ctx context.Context, lis net.Listener, grace time.Duration) error {
	ended := make(chan error, 1)
	go func() { ended <- s.grpc.Serve(lis) }()
	select {
	case err := <-ended:
		s.stop(errStopping)
		return fmt.Errorf("serve grpc on %s: %w", lis.Addr(), err)
	case <-ctx.Done():
	}
	s.health.Shutdown()
	s.stop(errStopping)
	cut := time.AfterFunc(grace, s.grpc.Stop)
	defer cut.Stop()
	s.grpc.GracefulStop()
	<-ended
	return nil
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fault.ToGRPC(s.panicked(ctx, info.FullMethod, p))
		}
	}()
	resp, err = handler(ctx, req)
	return resp, fault.ToGRPC(err)
}

func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	ctx, cancel := context.WithCancelCause(ss.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.stopping, func() { cancel(errStopping) })()
	defer func() {
		if p := recover(); p != nil {
			err = fault.ToGRPC(s.panicked(ctx, info.FullMethod, p))
		}
	}()
	err = handler(srv, &serverStream{ServerStream: ss, ctx: ctx})
	if fault.Is(err, fault.Canceled) && errors.Is(context.Cause(ctx), errStopping) {
		err = fault.Wrap(fault.Unavailable, errStopping)
	}
	return fault.ToGRPC(err)
}

func (s *Server) panicked(ctx context.Context, method string, p any) error {
	s.log.ErrorContext(ctx, "handler panicked", "rpc.method", method, "panic", p, "stack", string(debug.Stack()))
	return fault.New(fault.Internal, "%s failed by a defect; the service's log has the details", method)
}

// serverStream gives handlers a context that also ends when the server stops.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context gives the stream's context.
func (s *serverStream) Context() context.Context { return s.ctx }

func worthTracing(info *stats.RPCTagInfo) bool {
	return !strings.HasPrefix(info.FullMethodName, "/grpc.health.") && !strings.HasPrefix(info.FullMethodName, "/grpc.reflection.")
}
