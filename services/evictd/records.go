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
	conditions *bus.Writer[*podplanev1.ConditionRecord]
	orders     *bus.Writer[*podplanev1.EvictionRecord]
}

// newRecords makes the writers and reads what an earlier process left.
func newRecords(ctx context.Context, deps daemon.Deps, b buckets) (*records, []*podplanev1.EvictionRecord, []*podplanev1.ConditionRecord, error) {
	complain := func(what string) func(string, error, bool) {
		return func(key string, err error, again bool) {
			deps.Log.Warn("can't store "+what, "key", key, "retry", again, "error", err)
		}
	}
	r := &records{
		node:       deps.Node,
		conditions: bus.NewWriter(b.conditions, bus.WriterOptions[*podplanev1.ConditionRecord]{OnError: complain("a condition")}),
		orders:     bus.NewWriter(b.evictions, bus.WriterOptions[*podplanev1.EvictionRecord]{OnError: complain("an eviction")}),
	}
	var orders []*podplanev1.EvictionRecord
	var conditions []*podplanev1.ConditionRecord
	err := retry(ctx, func() error {
		stored, err := b.evictions.List(ctx, bus.NodePattern(deps.Node))
		if err != nil {
			return fmt.Errorf("read the open evictions: %w", err)
		}
		before, err := b.conditions.List(ctx, bus.NodePattern(deps.Node))
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
	return r, orders, conditions, err
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
