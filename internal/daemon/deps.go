package daemon

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/events"
	"github.com/podplane/podplane/internal/rpc"
)

// Deps is what the shell gives a service's Run. All of it is ready to use, and is taken down after the service.
type Deps struct {
	// Service, Node, Instance and Version say who this is.
	Service, Node, Instance, Version string
	// Bus is connected; it may go away and come back at any time.
	Bus *bus.Conn
	// Log names the service; use its …Context methods, so that lines name their trace.
	Log *slog.Logger
	// Registry takes the service's metrics.
	Registry prometheus.Registerer
	// Events records Kubernetes Events as this service.
	Events *events.Recorder
	// GRPC takes the service's gRPC services, before Serve.
	GRPC grpc.ServiceRegistrar
	// Ops serves /healthz, /readyz and /metrics, for a service that has a front door of its own.
	Ops http.Handler

	host *host
}

// AddCheck adds a readiness check; it passes when it returns nil and must be cheap.
func (d Deps) AddCheck(name string, check func(context.Context) error) {
	d.host.health.AddCheck(name, check)
}

// HandleOps serves a pattern beside /healthz, /readyz and /metrics: for who looks after services, not for their users.
func (d Deps) HandleOps(pattern string, handler http.Handler) { d.host.ops.Handle(pattern, handler) }

// Go starts a component of the service. It runs until its context ends; a component that ends by itself ends the daemon. Components are
// stopped in the reverse order of their start, all of them before Run's own context ends.
func (d Deps) Go(name string, run func(context.Context) error) { d.host.group.Go(name, run) }

// SetShards says which shards the replica works on; its registration shows them.
func (d Deps) SetShards(shards []int) { d.host.setShards(shards) }

// Serve says that everything is registered on GRPC: the server opens, and the replica is registered on the bus. Call it once.
func (d Deps) Serve() { d.host.serve() }

// DialNear makes a connection to another service, of this node where it is registered and of any other else, found in a directory. It
// returns at once; ctx ends the look-up of addresses, not the connection.
func (d Deps) DialNear(ctx context.Context, in rpc.Directory, service string) (*grpc.ClientConn, error) {
	return rpc.DialWith(ctx, in, service, d.Node, rpc.Options{TLS: d.host.clientTLS(service), AnyNode: true})
}

// DialNode makes a connection to a service of a node, found in a directory. ctx is as in DialNear.
func (d Deps) DialNode(ctx context.Context, in rpc.Directory, service, node string) (*grpc.ClientConn, error) {
	return rpc.DialWith(ctx, in, service, node, rpc.Options{TLS: d.host.clientTLS(service)})
}
