package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/podplane/podplane/internal/fault"
)

// Handler takes what a watcher sees, all from the goroutine that called Watch.
type Handler[T proto.Message] struct {
	// Apply gets each entry: the present state first, then every change. It should not take long: what
	// comes meanwhile waits in the server.
	Apply func(Entry[T])
	// Synced is called once, after the present state was applied; it may be nil.
	Synced func()
}

// Watch applies the present state of the keys that match pattern (">" for
// all), calls Synced, then applies changes until ctx ends or the connection is
// closed; it blocks and always returns an error, ctx's when that is why.
//
// Changes of a key come in the order of their revisions. While the bus is away
// nothing comes; after it, or whenever changes may have been missed, the
// present state is compared with what was applied: what differs is applied, and
// what vanished is applied as Deleted with Revision 0. When the bucket was
// created anew or went back to an older state, the revisions start over. A
// value that can't be decoded is logged and left out.
//
// It returns an error of kind PermissionDenied when this service may not read
// the bucket, and Invalid for a pattern that is none.
func (b *Bucket[T]) Watch(ctx context.Context, pattern string, h Handler[T]) error {
	if err := checkPattern(pattern); err != nil {
		return fmt.Errorf("watch bucket %s: %w", b.spec.Name, err)
	}
	w := &watch[T]{b: b, pattern: pattern, h: h, seen: map[string]seen{}}
	return b.c.again(ctx, fmt.Sprintf("watch %s in bucket %s", pattern, b.spec.Name), w.run)
}

const (
	minRetryDelay = 20 * time.Millisecond
	maxRetryDelay = time.Second
)

// again runs f until ctx ends, waiting for the bus before and, with growing
// delays, after each time. f says whether it got anywhere.
func (c *Conn) again(ctx context.Context, what string, f func(context.Context) (progress bool, err error)) error {
	delay := minRetryDelay
	for {
		if err := c.waitConnected(ctx); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		progress, err := f(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", what, ctx.Err())
		}
		switch fault.KindOf(err) {
		case fault.None, fault.PermissionDenied, fault.Invalid:
			return wrap(what, err)
		}
		if h := (*handlerError)(nil); errors.As(err, &h) {
			return wrap(what, h.err)
		}
		c.log.Debug("bus: "+what+" interrupted", "error", err)
		if progress {
			delay = minRetryDelay
		}
		if err := c.sleep(ctx, delay); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		delay = min(2*delay, maxRetryDelay)
	}
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// handlerError is an error of a caller's function, which ends its loop.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }
func (e *handlerError) Unwrap() error { return e.err }

// seen is what was last applied for a key.
type seen struct {
	rev     uint64
	created time.Time
}

// watch is the state of one Watch over its connections.
type watch[T proto.Message] struct {
	b       *Bucket[T]
	pattern string
	h       Handler[T]

	seen    map[string]seen // keys applied and not deleted
	last    uint64          // the highest revision seen
	lastAt  time.Time       // when that was stored
	created time.Time       // of the stream: tells it from another of the same name
	synced  bool
}

// run follows one cursor to its end.
func (w *watch[T]) run(ctx context.Context) (progress bool, err error) {
	b := w.b
	info, err := b.c.streamInfo(ctx, bucketStream+b.spec.Name)
	if err != nil {
		return false, err
	}
	if !info.Created.Equal(w.created) || info.State.LastSeq < w.last {
		for k := range w.seen {
			w.seen[k] = seen{}
		}
		w.created, w.last, w.lastAt = info.Created, 0, time.Time{}
	}
	cu, err := b.c.openCursor(ctx, bucketStream+b.spec.Name, b.subject(w.pattern), start{policy: jetstream.DeliverLastPerSubjectPolicy}, true)
	if err != nil {
		return false, err
	}
	defer cu.close()
	snap := &snapshot{missing: make(map[string]struct{}, len(w.seen)), before: w.lastAt, truth: info.Config.Replicas <= 1}
	for k := range w.seen {
		snap.missing[k] = struct{}{}
	}
	if err := w.present(ctx, cu, snap); err != nil {
		return false, err
	}
	for {
		d, err := cu.next(ctx)
		if err != nil {
			return true, err
		}
		if d.msg != nil {
			w.take(d, nil)
		}
	}
}

// snapshot is the present state while it is being read.
type snapshot struct {
	missing map[string]struct{} // known keys that did not come yet
	before  time.Time           // when the newest revision known before was stored
	truth   bool                // it comes from the only copy, so it can't lag behind what was seen
}

// present reads the present state to its end.
func (w *watch[T]) present(ctx context.Context, cu *cursor, snap *snapshot) error {
	for n := uint64(0); n < cu.pending; n++ {
		d, err := cu.next(ctx)
		if err != nil {
			return err
		}
		if d.msg == nil {
			break // idle: what was still to come has expired
		}
		w.take(d, snap)
		if d.pending == 0 {
			break
		}
	}
	for k := range snap.missing {
		delete(w.seen, k)
		w.h.Apply(Entry[T]{Key: k, Deleted: true})
	}
	if !w.synced {
		w.synced = true
		if w.h.Synced != nil {
			w.h.Synced()
		}
	}
	return nil
}

// take applies a message unless it is known already. snap is nil after the present state.
func (w *watch[T]) take(d delivered, snap *snapshot) {
	key := d.msg.Subject[len(bucketPrefix)+len(w.b.spec.Name)+1:]
	known, isKnown := w.seen[key]
	if d.seq > w.last {
		w.last, w.lastAt = d.seq, d.time
	}
	switch {
	case d.seq > known.rev:
	case snap == nil || d.seq == known.rev && d.time.Equal(known.created):
		w.found(key, snap)
		return
	case !snap.truth && !d.time.After(snap.before):
		w.found(key, snap) // a copy that lags behind
		return
	}
	e, err := w.b.entry(key, d.msg.Header, d.msg.Data, d.seq, d.time)
	if err != nil {
		w.b.c.log.Error("bus: record left out", "bus.bucket", w.b.spec.Name, "error", err)
		w.found(key, snap)
		return
	}
	w.found(key, snap)
	if e.Deleted {
		delete(w.seen, key)
		if snap != nil && !isKnown {
			return // it was gone before this watcher came
		}
	} else {
		w.seen[key] = seen{rev: d.seq, created: d.time}
	}
	w.h.Apply(e)
}

func (w *watch[T]) found(key string, snap *snapshot) {
	if snap != nil {
		delete(snap.missing, key)
	}
}

// scan gives the present entries of the keys that match the pattern, markers too.
func (b *Bucket[T]) scan(ctx context.Context, pattern string, f func(Entry[T])) error {
	if err := checkPattern(pattern); err != nil {
		return err
	}
	cu, err := b.c.openCursor(ctx, bucketStream+b.spec.Name, b.subject(pattern), start{policy: jetstream.DeliverLastPerSubjectPolicy}, false)
	if err != nil {
		return err
	}
	defer cu.close()
	for n := uint64(0); n < cu.pending; n++ {
		d, err := cu.next(ctx)
		if err != nil {
			if away := b.c.Err(); away != nil {
				return away
			}
			if errors.Is(err, errCursorLost) {
				return unavailable(err)
			}
			return err
		}
		if d.msg == nil {
			return nil
		}
		e, err := b.entry(d.msg.Subject[len(bucketPrefix)+len(b.spec.Name)+1:], d.msg.Header, d.msg.Data, d.seq, d.time)
		if err != nil {
			return err
		}
		f(e)
		if d.pending == 0 {
			return nil
		}
	}
	return nil
}
