package shard

import (
	"context"
	"sync"

	"github.com/podplane/podplane/internal/fault"
)

// Leader is the Worker of a service that looks at the node as a whole: it has one shard, and its other replicas are hot
// spares that wait. A replica that loses the lead ends, to be started again as a spare: what it had under way goes with it.
type Leader struct {
	mu     sync.Mutex
	gained chan struct{}
	lost   chan struct{}
}

// NewLeader makes a Leader that does not lead.
func NewLeader() *Leader {
	return &Leader{gained: make(chan struct{}), lost: make(chan struct{})}
}

// Gain implements Worker.
func (l *Leader) Gain(context.Context, []int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.lost:
		return fault.New(fault.FailedPrecondition, "the lead was lost; this process is ending")
	default:
	}
	close(l.gained)
	return nil
}

// Lose implements Worker.
func (l *Leader) Lose(context.Context, []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.lost:
	default:
		close(l.lost)
	}
}

// Wait waits for the lead.
func (l *Leader) Wait(ctx context.Context) error {
	select {
	case <-l.gained:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Hold runs until ctx ends, or with an error until the lead is lost.
func (l *Leader) Hold(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-l.lost:
		if ctx.Err() != nil {
			return nil
		}
		return fault.New(fault.Unavailable, "the lead was lost to another replica, or could not be kept")
	}
}
