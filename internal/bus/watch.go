package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	// Reached is called after each message with its revision, also after one that is not applied because it is
	// known or says only that something is gone that was never seen; it may be nil.
	Reached func(revision uint64)
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
// value that can't be decoded is logged and left out; one that only a newer Podplane understands
// ends it with kind FailedPrecondition.
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
	delay, told := minRetryDelay, ""
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
		if progress {
			delay, told = minRetryDelay, ""
		} else if delay == maxRetryDelay && told != err.Error() {
			told = err.Error()
			c.log.Warn("bus: "+what+" does not get on, trying again", "error", err)
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
	cu, err := b.c.openCursor(ctx, bucketStream+b.spec.Name, b.subject(w.pattern), start{policy: jetstream.DeliverLastPerSubjectPolicy}, true)
	if err != nil {
		return false, err
	}
	defer cu.close()
	state, err := b.state(ctx, w.pattern)
	if err != nil {
		return false, err
	}
	if !state.created.Equal(w.created) || state.last < w.last {
		for k := range w.seen {
			w.seen[k] = seen{}
		}
		w.created, w.last, w.lastAt = state.created, 0, time.Time{}
	}
	if err := w.present(ctx, cu, state); err != nil {
		return false, err
	}
	for {
		d, err := cu.next(ctx)
		if err != nil {
			return true, err
		}
		if d.msg == nil {
			continue
		}
		if err := w.take(d, nil); err != nil {
			return true, err
		}
	}
}

// state is what a bucket's stream holds at one moment, without the values.
type state struct {
	created time.Time
	last    uint64              // sequence
	keys    map[string]struct{} // those that match, with those of which only the marker is left
	truth   bool                // there is one copy, so no reader of another can lag behind it
}

// state asks what there is. A cursor opened before delivers a message of each
// key, unless it expires meanwhile: so the end of the present state is known,
// which the cursor's own count of pending messages does not give while others write.
func (b *Bucket[T]) state(ctx context.Context, pattern string) (state, error) {
	st := state{keys: map[string]struct{}{}}
	for {
		var page struct {
			jetstream.StreamInfo
			Total int `json:"total"`
		}
		ask := map[string]any{"subjects_filter": b.subject(pattern), "offset": len(st.keys)}
		if err := b.c.call(ctx, apiStreamInfo+bucketStream+b.spec.Name, ask, &page); err != nil {
			return state{}, err
		}
		st.created, st.last, st.truth = page.Created, page.State.LastSeq, page.Config.Replicas <= 1
		for subject := range page.State.Subjects {
			st.keys[b.key(subject)] = struct{}{}
		}
		if len(page.State.Subjects) == 0 || len(st.keys) >= page.Total {
			return st, nil
		}
	}
}

// snapshot is the present state while it is being read.
type snapshot struct {
	awaited map[string]struct{} // keys of which no message came yet
	before  time.Time           // when the newest revision known before was stored
	truth   bool
}

// present reads the present state to its end.
func (w *watch[T]) present(ctx context.Context, cu *cursor, st state) error {
	var vanished []string
	for k := range w.seen {
		if _, ok := st.keys[k]; !ok {
			vanished = append(vanished, k)
		}
	}
	snap := &snapshot{awaited: st.keys, before: w.lastAt, truth: st.truth}
	for len(snap.awaited) > 0 {
		d, err := cu.next(ctx)
		if err != nil {
			return err
		}
		if d.msg == nil {
			break // idle: what was still to come has expired
		}
		if err := w.take(d, snap); err != nil {
			return err
		}
		delete(snap.awaited, w.b.key(d.msg.Subject))
	}
	for _, k := range vanished {
		if at, ok := w.seen[k]; ok && at.rev <= st.last {
			delete(w.seen, k)
			w.h.Apply(Entry[T]{Key: k, Deleted: true})
		}
	}
	if !w.synced {
		w.synced = true
		if w.h.Synced != nil {
			w.h.Synced()
		}
	}
	return nil
}

// take applies a message unless it is known already. snap is nil after the present state. The error is of a record that only a newer
// Podplane understands: to go on without it would be to act as if it were not there.
func (w *watch[T]) take(d delivered, snap *snapshot) error {
	if w.h.Reached != nil {
		defer w.h.Reached(d.seq)
	}
	key := w.b.key(d.msg.Subject)
	known, isKnown := w.seen[key]
	if d.seq > w.last {
		w.last, w.lastAt = d.seq, d.time
	}
	switch {
	case d.seq > known.rev:
	case snap == nil || d.seq == known.rev && d.time.Equal(known.created):
		return nil
	case !snap.truth && !d.time.After(snap.before):
		return nil // from a copy that lags behind
	}
	e, err := w.b.entry(key, d.msg.Header, d.msg.Data, d.seq, d.time)
	if fault.Is(err, fault.FailedPrecondition) {
		return &handlerError{err}
	}
	if err != nil {
		w.b.c.log.Error("bus: record left out", "bus.bucket", w.b.spec.Name, "error", err)
		return nil
	}
	if e.Deleted {
		delete(w.seen, key)
		if snap != nil && !isKnown {
			return nil // it was gone before this watcher came
		}
	} else {
		w.seen[key] = seen{rev: d.seq, created: d.time}
	}
	w.h.Apply(e)
	return nil
}

// scan gives the present entries of the keys that match the pattern, markers too, by revision.
func (b *Bucket[T]) scan(ctx context.Context, pattern string) ([]Entry[T], error) {
	if err := checkPattern(pattern); err != nil {
		return nil, err
	}
	cu, err := b.c.openCursor(ctx, bucketStream+b.spec.Name, b.subject(pattern), start{policy: jetstream.DeliverLastPerSubjectPolicy}, false)
	if err != nil {
		return nil, err
	}
	defer cu.close()
	st, err := b.state(ctx, pattern)
	if err != nil {
		return nil, err
	}
	found := make(map[string]Entry[T], len(st.keys))
	for len(st.keys) > 0 {
		d, err := cu.next(ctx)
		if err != nil {
			return nil, b.c.whyLost(err)
		}
		if d.msg == nil {
			break
		}
		key := b.key(d.msg.Subject)
		e, err := b.entry(key, d.msg.Header, d.msg.Data, d.seq, d.time)
		if err != nil {
			return nil, err
		}
		found[key] = e
		delete(st.keys, key)
	}
	return slices.SortedFunc(maps.Values(found), func(x, y Entry[T]) int { return cmp.Compare(x.Revision, y.Revision) }), nil
}

// whyLost gives the end of a cursor a kind, for those who do not open another.
func (c *Conn) whyLost(err error) error {
	if away := c.Err(); away != nil {
		return away
	}
	if errors.Is(err, errCursorLost) {
		return unavailable(err)
	}
	return err
}
