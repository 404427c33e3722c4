package syncd

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/podplane/podplane/internal/shard"
	"github.com/podplane/podplane/services/syncd/internal/store"
)

// shards hands the workers' manager the pods of the shards that this replica works on. It is a shard.Worker.
type shards struct {
	node *node

	mu sync.Mutex
	// since says when each shard was taken over: of what was stored before, another replica may have begun the work.
	since [shard.Count]time.Time
}

// Gain implements shard.Worker. It waits until everything that the last holder stored has been seen here.
func (s *shards) Gain(ctx context.Context, gained []int) error {
	if err := s.node.store.CatchUp(ctx); err != nil {
		return fmt.Errorf("take pods over: %w", err)
	}
	now := time.Now()
	s.mu.Lock()
	for _, n := range gained {
		s.since[n] = now
	}
	s.mu.Unlock()
	manager := s.node.workers
	manager.Gain(gained)
	s.node.store.Replay(func(c store.PodChange) { manager.PodChanged(s.node.podChange(c)) })
	manager.PodsSynced()
	manager.Compare()
	return nil
}

// Lose implements shard.Worker.
func (s *shards) Lose(ctx context.Context, lost []int) { s.node.workers.Lose(ctx, lost) }

// heldSince says when a pod's shard was taken over.
func (s *shards) heldSince(uid string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since[shard.Of(uid)]
}
