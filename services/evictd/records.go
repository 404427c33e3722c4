package evictd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/daemon"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/evictd/internal/policy"
)

// records writes what evictd owns on the bus. Nothing of it blocks; what is written while the bus is away is stored when
// it is back.
type records struct {
	node       string
	buckets    buckets
	conditions *bus.Writer[*podplanev1.ConditionRecord]
	orders     *bus.Writer[*podplanev1.EvictionRecord]
}

// newRecords makes the writers.
func newRecords(deps daemon.Deps, b buckets) *records {
	one := func(string) int { return 0 } // the node is one shard
	complain := func(what string) func(string, error, bool) {
		return func(key string, err error, again bool) {
			deps.Log.Warn("can't store "+what, "key", key, "retry", again, "error", err)
		}
	}
	return &records{
		node: deps.Node, buckets: b,
		conditions: bus.NewWriter(b.conditions, bus.WriterOptions[*podplanev1.ConditionRecord]{
			OnError: complain("a condition"), Fences: bus.NewFences(b.conditions, one),
		}),
		orders: bus.NewWriter(b.evictions, bus.WriterOptions[*podplanev1.EvictionRecord]{
			OnError: complain("an eviction"), Fences: bus.NewFences(b.evictions, one),
		}),
	}
}

// load reads what an earlier process or another replica left.
func (r *records) load(ctx context.Context) (orders []*podplanev1.EvictionRecord, conditions []*podplanev1.ConditionRecord, err error) {
	err = retry(ctx, func() error {
		stored, err := r.buckets.evictions.List(ctx, bus.NodePattern(r.node))
		if err != nil {
			return fmt.Errorf("read the open evictions: %w", err)
		}
		before, err := r.buckets.conditions.List(ctx, bus.NodePattern(r.node))
		if err != nil {
			return fmt.Errorf("read the conditions: %w", err)
		}
		orders, conditions = nil, nil
		for _, e := range stored {
			r.orders.Seed(e)
			orders = append(orders, e.Value)
		}
		for _, e := range before {
			if slices.Contains(policy.ConditionTypes, e.Value.GetType()) {
				conditions = append(conditions, e.Value)
			}
		}
		return nil
	})
	return orders, conditions, err
}

// SetCondition stores a condition.
func (r *records) SetCondition(c *podplanev1.ConditionRecord) {
	r.conditions.Set(bus.ConditionKey(r.node, c.GetType()), c)
}

// SetOrder stores an order, in the trace of ctx.
func (r *records) SetOrder(ctx context.Context, o *podplanev1.EvictionRecord) {
	r.orders.SetContext(ctx, bus.PodKey(r.node, o.GetUid()), o)
}

// RemoveOrder removes an order.
func (r *records) RemoveOrder(uid string) { r.orders.Remove(bus.PodKey(r.node, uid)) }

// Run stores until the context ends.
func (r *records) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer cancel()
		done <- r.orders.Run(ctx)
	}()
	err := r.conditions.Run(ctx)
	cancel()
	return errors.Join(err, <-done)
}
