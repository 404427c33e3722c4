package store

import (
	"context"
	"fmt"
	"sync"

	"github.com/podplane/podplane/internal/bus"
)

// reached is the revision up to which something has been seen.
type reached struct{ *reachedState }

type reachedState struct {
	mu      sync.Mutex
	rev     uint64
	changed chan struct{} // closed by the next change
}

func newReached() reached { return reached{&reachedState{changed: make(chan struct{})}} }

func (r reached) set(rev uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rev == r.rev {
		return
	}
	r.rev = rev // it goes back when the bus was restored
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r reached) wait(ctx context.Context, rev uint64) error {
	for {
		r.mu.Lock()
		at, changed := r.rev, r.changed
		r.mu.Unlock()
		if at >= rev {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// CatchUp returns when the view has everything that was stored before the call, by whichever replica: pods and statuses.
func (s *Store) CatchUp(ctx context.Context) error {
	if _, err := s.catchUpPods(ctx); err != nil {
		return err
	}
	rev, err := s.status.LastRevision(ctx, bus.AllKeys)
	if err == nil {
		err = s.atStat.wait(ctx, rev)
	}
	if err != nil {
		return fmt.Errorf("catch up with the stored statuses: %w", err)
	}
	return nil
}

// catchUpPods gives the last revision of any node's pods, which the view has.
func (s *Store) catchUpPods(ctx context.Context) (uint64, error) {
	rev, err := s.pods.LastRevision(ctx, bus.AllKeys)
	if err == nil {
		err = s.atPods.wait(ctx, rev)
	}
	if err != nil {
		return 0, fmt.Errorf("catch up with the stored pods: %w", err)
	}
	return rev, nil
}
