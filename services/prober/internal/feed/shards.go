package feed

import (
	"context"
	"fmt"
	"slices"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/shard"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/prober/internal/manager"
)

// Shards hands the manager the shards that this replica works on, with the verdicts that their last holder stored. It is a shard.Worker.
type Shards struct {
	Node    string
	Bucket  *bus.Bucket[*podplanev1.ProbeRecord]
	Writer  *bus.Writer[*podplanev1.ProbeRecord]
	Manager *manager.Manager
	// Pods and Status are what syncd stores of the node's pods. They are set before the keeper runs.
	Pods   *bus.Watched[*podplanev1.PodRecord]
	Status *bus.Watched[*podplanev1.StatusRecord]
}

// ShardOf gives the shard of a record's key.
func ShardOf(key string) int {
	parts, err := bus.SplitKey(key)
	if err != nil || len(parts) < 2 {
		return -1
	}
	return shard.Of(parts[1])
}

// Gain implements shard.Worker.
func (s *Shards) Gain(ctx context.Context, shards []int) error {
	list, err := s.Bucket.List(ctx, bus.NodePattern(s.Node))
	if err != nil {
		return fmt.Errorf("read own records: %w", err)
	}
	verdicts := make(map[string]*podplanev1.ProbeRecord)
	for _, e := range list {
		if slices.Contains(shards, ShardOf(e.Key)) {
			s.Writer.Seed(e)
			verdicts[e.Key] = e.Value
		}
	}
	// A pod that has verdicts and was not seen yet would be taken for one that is gone.
	if err := s.Pods.CatchUp(ctx); err != nil {
		return err
	}
	if err := s.Status.CatchUp(ctx); err != nil {
		return err
	}
	return s.Manager.Gain(ctx, shards, verdicts)
}

// Lose implements shard.Worker. It may not wait for ctx: nothing is probed for a shard that is not held (manager.Config.Holds).
func (s *Shards) Lose(ctx context.Context, shards []int) {
	_ = s.Manager.Lose(context.WithoutCancel(ctx), shards) // only a manager that has ended fails
}

// Verdicts answers the verdicts of the pods of one node or all: of its own shards from the manager, of others' from their records.
type Verdicts struct {
	*Shards
	Holds func(shard int) bool
}

// Records implements api.Source.
func (v Verdicts) Records(ctx context.Context, node string, match func(namespace, name, uid string) bool) ([]*podplanev1.ProbeRecord, error) {
	var list []*podplanev1.ProbeRecord
	if node == "" || node == v.Node {
		var err error
		if list, err = v.Manager.Records(ctx, match); err != nil || node != "" && v.all() {
			return list, err
		}
	}
	pattern := bus.AllKeys
	if node != "" {
		pattern = bus.NodePattern(node)
	}
	stored, err := v.Bucket.List(ctx, pattern)
	switch {
	case fault.Is(err, fault.Unavailable) && node == "" && v.all():
		return list, nil // what is known here is known without the bus
	case err != nil:
		return nil, fmt.Errorf("read the other replicas' records: %w", err)
	}
	for _, e := range stored {
		r := e.Value
		known := r.GetNode() == v.Node && v.Holds(ShardOf(e.Key))
		if !known && match(r.GetNamespace(), r.GetName(), r.GetUid()) {
			list = append(list, r)
		}
	}
	return list, nil
}

func (v Verdicts) all() bool {
	for n := range shard.Count {
		if !v.Holds(n) {
			return false
		}
	}
	return true
}
