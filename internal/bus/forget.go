package bus

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// Forget deletes every record of a node that is gone for good, its pods last, and says how many pods there were. While a service of the node
// is registered it is refused with kind FailedPrecondition. The journal and the Events run out by themselves. The connection has to be the
// administrator's. What failed half-way is to be done again.
func Forget(ctx context.Context, c *Conn, node string) (pods int, err error) {
	services, err := Open(ctx, c, Services)
	if err != nil {
		return 0, err
	}
	registered, err := services.List(ctx, AllKeys)
	if err != nil {
		return 0, fmt.Errorf("look for services of node %s: %w", node, err)
	}
	for _, e := range registered {
		if e.Value.GetNode() == node {
			return 0, fault.New(fault.FailedPrecondition, "%s of node %q is running: stop it first (podplane down on that host)", e.Value.GetService(), node)
		}
	}
	here := NodePattern(node)
	for _, forget := range []func() (int, error){
		func() (int, error) { return forgetIn(ctx, c, Evictions, here) },
		func() (int, error) { return forgetIn(ctx, c, Probes, here) },
		func() (int, error) { return forgetIn(ctx, c, Volumes, here) },
		func() (int, error) { return forgetIn(ctx, c, Status, here) },
		func() (int, error) { return forgetIn(ctx, c, Conditions, here) },
		func() (int, error) { return forgetIn(ctx, c, Nodes, NodeKey(node)) },
		func() (int, error) { return forgetIn[*podplanev1.LeaseRecord](ctx, c, Leases, "*."+here) },
		func() (int, error) { return forgetIn(ctx, c, Pods, here) },
	} {
		if pods, err = forget(); err != nil {
			return 0, fmt.Errorf("forget node %s: %w", node, err)
		}
	}
	return pods, nil
}

func forgetIn[T proto.Message](ctx context.Context, c *Conn, spec BucketSpec[T], pattern string) (int, error) {
	b, err := Open(ctx, c, spec)
	if err != nil {
		return 0, err
	}
	list, err := b.List(ctx, pattern)
	if err != nil {
		return 0, err
	}
	for _, e := range list {
		if err := b.Delete(ctx, e.Key); err != nil {
			return 0, err
		}
	}
	return len(list), nil
}
