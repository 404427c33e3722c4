package feed

import (
	"context"
	"fmt"
	"slices"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/shard"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/volumed/internal/controller"
)

// Shards hands the controller the shards that this replica works on, with the records that their last holder stored. It is a shard.Worker.
type Shards struct {
	Node       string
	Bucket     *bus.Bucket[*podplanev1.VolumesRecord]
	Writer     *bus.Writer[*podplanev1.VolumesRecord]
	Controller *controller.Controller
	// Pods and Status are what syncd stores of the node's pods. They are set before the keeper runs.
	Pods   *bus.Watched[*podplanev1.PodRecord]
	Status *bus.Watched[*podplanev1.StatusRecord]
}

// ShardOf gives the shard of a record's key.
func ShardOf(key string) int {
	if uid, ok := uidOf(key); ok {
		return shard.Of(uid)
	}
	return -1
}

// Gain implements shard.Worker.
func (s *Shards) Gain(ctx context.Context, shards []int) error {
	list, err := s.Bucket.List(ctx, bus.NodePattern(s.Node))
	if err != nil {
		return fmt.Errorf("read own records: %w", err)
	}
	var records []*podplanev1.VolumesRecord
	for _, e := range list {
		if slices.Contains(shards, ShardOf(e.Key)) {
			s.Writer.Seed(e)
			records = append(records, e.Value)
		}
	}
	// A pod that has volumes and was not seen yet would be taken for one that is gone.
	if err := s.Pods.CatchUp(ctx); err != nil {
		return err
	}
	if err := s.Status.CatchUp(ctx); err != nil {
		return err
	}
	return s.Controller.Gain(ctx, shards, records)
}

// Lose implements shard.Worker.
func (s *Shards) Lose(ctx context.Context, shards []int) {
	_ = s.Controller.Lose(ctx, shards) // only a controller that has ended fails
}

// Volumes answers the volumes of the pods of one node or all: of its own shards from the controller, of others' from their records.
type Volumes struct {
	*Shards
	Holds func(shard int) bool
}

// Records implements api.Source.
func (v Volumes) Records(ctx context.Context, node string, match func(namespace, name, uid string) bool) ([]*podplanev1.VolumesRecord, error) {
	var list []*podplanev1.VolumesRecord
	if node == "" || node == v.Node {
		var err error
		if list, err = v.Controller.Records(ctx, match); err != nil || node != "" && v.all() {
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

func (v Volumes) all() bool {
	for n := range shard.Count {
		if !v.Holds(n) {
			return false
		}
	}
	return true
}
