package gateway

import (
	"context"
	"sync"

	"google.golang.org/grpc"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/services/gateway/internal/registry"
	"github.com/podplane/podplane/services/gateway/internal/route"
)

// connections are those to the other services: one to each that is near, and one to each on another node that something was carried to, as
// long as it is registered.
type connections struct {
	ctx      context.Context
	deps     daemon.Deps
	services *registry.Registry
	near     map[string]grpc.ClientConnInterface

	mu     sync.Mutex
	nodes  map[place]*grpc.ClientConn
	opened []*grpc.ClientConn
	closed bool
}

type place struct{ service, node string }

func dial(ctx context.Context, deps daemon.Deps, services *registry.Registry) (*connections, error) {
	c := &connections{ctx: ctx, deps: deps, services: services, near: map[string]grpc.ClientConnInterface{}, nodes: map[place]*grpc.ClientConn{}}
	for _, service := range []string{bus.ServiceSyncd, bus.ServicePleg, bus.ServiceProber, bus.ServiceVolumed, bus.ServiceEvictd} {
		conn, err := deps.DialNear(ctx, services, service)
		if err != nil {
			return c, err
		}
		c.opened = append(c.opened, conn)
		c.near[service] = route.New(service, conn, c)
	}
	return c, nil
}

func (c *connections) get(service string) grpc.ClientConnInterface { return c.near[service] }

// Node implements route.Nodes.
func (c *connections) Node(service, node string) (grpc.ClientConnInterface, bool) {
	if !c.services.Runs(service, node) {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false
	}
	at := place{service, node}
	if conn := c.nodes[at]; conn != nil {
		return conn, true
	}
	for old, conn := range c.nodes {
		if !c.services.Runs(old.service, old.node) {
			_ = conn.Close() // whoever it led to is gone
			delete(c.nodes, old)
		}
	}
	conn, err := c.deps.DialNode(c.ctx, c.services, service, node)
	if err != nil {
		c.deps.Log.Error("can't make a connection to another node", "service", service, "node", node, "error", err)
		return nil, false
	}
	c.nodes[at] = conn
	return conn, true
}

func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, conn := range c.opened {
		_ = conn.Close() // nothing is left to lose
	}
	for _, conn := range c.nodes {
		_ = conn.Close() // nothing is left to lose
	}
}
