package bus

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/podplane/podplane/internal/fault"
)

// catchUpTimeout bounds the wait for a watch to see what is stored already.
const catchUpTimeout = 10 * time.Second

// Progress is the revision up to which a watch has seen its bucket: its Set is for Handler.Reached. Methods may be called from any goroutine.
type Progress struct {
	mu      sync.Mutex
	rev     uint64
	changed chan struct{} // closed by the next change
}

// NewProgress is at revision 0.
func NewProgress() *Progress { return &Progress{changed: make(chan struct{})} }

// Set takes the revision that was seen last. It goes back when the bucket was restored to an older state.
func (p *Progress) Set(rev uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if rev == p.rev {
		return
	}
	p.rev = rev
	close(p.changed)
	p.changed = make(chan struct{})
}

// Wait returns when rev was seen. After 10 s it gives up with an error of kind Unavailable.
func (p *Progress) Wait(ctx context.Context, rev uint64) error {
	limit := time.NewTimer(catchUpTimeout)
	defer limit.Stop()
	for {
		p.mu.Lock()
		at, changed := p.rev, p.changed
		p.mu.Unlock()
		if at >= rev {
			return nil
		}
		select {
		case <-changed:
		case <-limit.C:
			return fault.New(fault.Unavailable, "revision %d was not seen within %s, only %d", rev, catchUpTimeout, at)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// CatchUp returns when the watch of this pattern whose Progress p is has seen everything that was stored before the call, by whichever process.
func (b *Bucket[T]) CatchUp(ctx context.Context, pattern string, p *Progress) error {
	rev, err := b.LastRevision(ctx, pattern)
	if err == nil {
		err = p.Wait(ctx, rev)
	}
	if err != nil {
		return fmt.Errorf("catch up with bucket %s: %w", b.spec.Name, err)
	}
	return nil
}

// Watched is a part of a bucket that one can wait for to be seen. Make one with NewWatched.
type Watched[T proto.Message] struct {
	b       *Bucket[T]
	pattern string
	seen    *Progress
}

// NewWatched makes a view of the keys that match pattern, which nothing watches yet.
func NewWatched[T proto.Message](b *Bucket[T], pattern string) *Watched[T] {
	return &Watched[T]{b: b, pattern: pattern, seen: NewProgress()}
}

// Watch is the Watch of the bucket, once; it sets the handler's Reached.
func (w *Watched[T]) Watch(ctx context.Context, h Handler[T]) error {
	h.Reached = w.seen.Set
	return w.b.Watch(ctx, w.pattern, h)
}

// CatchUp returns when Watch has seen everything that was stored before the call.
func (w *Watched[T]) CatchUp(ctx context.Context) error { return w.b.CatchUp(ctx, w.pattern, w.seen) }
