package bus

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/podplane/podplane/internal/fault"
)

// WriterOptions tunes a Writer; zero values take the defaults.
type WriterOptions[T proto.Message] struct {
	// Parallel bounds the writes in flight, of different keys; default 8.
	Parallel int
	// Fences guard what is stored: a key whose shard is not held, or is held by another writer now, is not written and forgotten. Nil: no guard.
	Fences *Fences
	// DrainTimeout bounds what Run still stores after its ctx ended; default 1 s.
	DrainTimeout time.Duration
	// OnStored is called after a value (or, with its marker's revision, a removal) is stored, from one of
	// the writer's goroutines, for a key never twice at once. It may call Set.
	OnStored func(key string, rev uint64)
	// OnError is called when a value can't be stored. retry says whether the writer tries again by itself;
	// it does not when the value is too large or may not be written, until another is set.
	OnError func(key string, err error, retry bool)
}

const (
	defaultParallel     = 8
	defaultDrainTimeout = time.Second
	maxWriteDelay       = 5 * time.Second
)

// Writer stores records of one bucket in the background. Set never blocks; of
// values set for one key the newest wins and older ones that were not stored
// yet are dropped. A value equal to what was stored last is skipped. What is
// set while the bus is away is kept and stored when it is back; what a server
// came back without is stored again. Its memory is one value for each key that
// is set and not removed: the number of keys is the caller's to bound.
type Writer[T proto.Message] struct {
	b    *Bucket[T]
	opts WriterOptions[T]
	wake chan struct{}

	mu      sync.Mutex
	slots   map[string]*slot[T]
	ready   []string // keys to store, in the order in which they were set
	flying  int
	running bool
	ended   bool
	created time.Time // of the stream that has what was stored
	idle    []chan struct{}
}

// slot is one key of a Writer.
//
//	clean --Set--> queued --send--> flying --stored--> clean (or queued, if it was set meanwhile)
//	                  ^                |
//	                  +--- delayed <---+ failed
type slot[T proto.Message] struct {
	want    T // what to store
	remove  bool
	link    link
	version uint64 // of want
	done    uint64 // the version that is stored, or given up
	stored  T      // what the bucket has
	has     bool   // stored is known
	rev     uint64
	queued  bool
	flying  bool
	delay   time.Duration
	timer   *time.Timer
}

// NewWriter makes a writer; Run does the work.
func NewWriter[T proto.Message](b *Bucket[T], opts WriterOptions[T]) *Writer[T] {
	if opts.Parallel <= 0 {
		opts.Parallel = defaultParallel
	}
	if opts.DrainTimeout <= 0 {
		opts.DrainTimeout = defaultDrainTimeout
	}
	return &Writer[T]{b: b, opts: opts, slots: map[string]*slot[T]{}, wake: make(chan struct{}, 1)}
}

// Seed tells the writer what the bucket has already, so that an equal value is
// not stored again after a restart. It is called before the key is first set.
func (w *Writer[T]) Seed(e Entry[T]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.slots[e.Key]; ok || e.Deleted {
		return
	}
	w.slots[e.Key] = &slot[T]{want: e.Value, stored: e.Value, has: true, rev: e.Revision}
}

// Set stores v under key soon. v must not be changed afterwards.
func (w *Writer[T]) Set(key string, v T) { w.set(key, v, false, link{}) }

// SetContext is Set within the trace of ctx, about what ctx is about; ctx ending does not matter.
func (w *Writer[T]) SetContext(ctx context.Context, key string, v T) {
	w.set(key, v, false, linkFrom(ctx))
}

// Remove deletes key soon.
func (w *Writer[T]) Remove(key string) {
	var none T
	w.set(key, none, true, link{})
}

func (w *Writer[T]) set(key string, v T, remove bool, l link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.slots[key]
	if s == nil {
		s = &slot[T]{}
		w.slots[key] = s
	}
	if s.version == s.done && !remove && s.has && !s.flying && proto.Equal(s.stored, v) {
		return
	}
	s.want, s.remove, s.link = v, remove, l
	s.version++
	w.queue(key, s)
}

// queue is called with mu held.
func (w *Writer[T]) queue(key string, s *slot[T]) {
	if s.queued || s.flying {
		return
	}
	if s.timer != nil {
		return // it waits after an error, the newest value will be taken then
	}
	s.queued = true
	w.ready = append(w.ready, key)
	w.poke()
}

func (w *Writer[T]) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run stores what is set until ctx ends, then for at most DrainTimeout what is
// left, and returns ctx's error. It runs once.
func (w *Writer[T]) Run(ctx context.Context) error {
	w.mu.Lock()
	if w.running {
		w.mu.Unlock()
		return fault.New(fault.FailedPrecondition, "writer of bucket %s runs already", w.b.spec.Name)
	}
	w.running = true
	w.mu.Unlock()
	sending, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var senders sync.WaitGroup
	stop := w.b.c.OnState(func(connected bool) {
		if connected {
			senders.Go(func() { w.reconnected(sending) })
		}
	})
	for ctx.Err() == nil {
		w.dispatch(sending, &senders)
		select {
		case <-w.wake:
		case <-ctx.Done():
		}
	}
	stop()
	w.drain(sending, &senders)
	cancel()
	senders.Wait()
	w.end()
	return fmt.Errorf("writer of bucket %s: %w", w.b.spec.Name, ctx.Err())
}

// dispatch starts senders for what is ready.
func (w *Writer[T]) dispatch(ctx context.Context, senders *sync.WaitGroup) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.b.c.Connected() {
		return // reconnected wakes Run
	}
	for len(w.ready) > 0 && w.flying < w.opts.Parallel {
		key := w.ready[0]
		w.ready = w.ready[1:]
		s := w.slots[key]
		s.queued, s.flying = false, true
		w.flying++
		senders.Go(func() { w.send(ctx, key, s) })
	}
}

// send stores the newest value of a key.
func (w *Writer[T]) send(ctx context.Context, key string, s *slot[T]) {
	w.mu.Lock()
	v, remove, version, l := s.want, s.remove, s.version, s.link
	skip := !remove && s.has && proto.Equal(s.stored, v)
	w.mu.Unlock()
	var rev uint64
	var err error
	switch {
	case skip:
	case remove:
		rev, skip, err = w.removeKnown(ctx, key)
	default:
		rev, err = w.put(l.context(ctx), key, v)
	}
	w.settle(key, s, outcome{version: version, remove: remove, rev: rev, err: err, skip: skip}, v)
}

// removeKnown deletes a key unless it is not there: removing again costs no write.
func (w *Writer[T]) removeKnown(ctx context.Context, key string) (rev uint64, absent bool, err error) {
	last, err := w.b.last(ctx, key)
	switch {
	case fault.Is(err, fault.NotFound) || err == nil && last.Deleted:
		return 0, true, nil
	case err != nil && !fault.Is(err, fault.Internal): // what can't be decoded can still be deleted
		return 0, false, err
	}
	err = w.guarded(ctx, key, func(e expectation) (err error) {
		rev, err = w.b.remove(ctx, key, e)
		return err
	})
	return rev, false, err
}

func (w *Writer[T]) put(ctx context.Context, key string, v T) (rev uint64, err error) {
	err = w.guarded(ctx, key, func(e expectation) (err error) {
		rev, err = w.b.write(ctx, "put", key, v, e)
		return err
	})
	return rev, err
}

// guarded writes behind the fence of the key's shard, if there are fences.
func (w *Writer[T]) guarded(ctx context.Context, key string, write func(expectation) error) error {
	if w.opts.Fences == nil {
		return write(expectation{rev: anyRevision})
	}
	e, err := w.opts.Fences.expect(key)
	if err != nil {
		return err
	}
	if err = write(e); !fault.Is(err, fault.Conflict) {
		return err
	}
	return w.opts.Fences.refused(ctx, key, err)
}

// Forget drops what is to be stored of the keys that match accepts, and what is known of them: they are another
// writer's now. What is under way may still be stored.
func (w *Writer[T]) Forget(match func(key string) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, s := range w.slots {
		if !match(key) {
			continue
		}
		if s.timer != nil {
			s.timer.Stop()
		}
		delete(w.slots, key)
	}
	w.ready = slices.DeleteFunc(w.ready, match)
	w.settled()
}

type outcome struct {
	version uint64
	rev     uint64
	remove  bool
	skip    bool
	err     error
}

func (w *Writer[T]) settle(key string, s *slot[T], o outcome, v T) {
	retry := false
	switch {
	case o.err == nil && !o.skip:
		if w.opts.OnStored != nil {
			w.opts.OnStored(key, o.rev)
		}
	case o.err != nil:
		retry = worthRetrying(o.err)
		if w.opts.OnError != nil {
			w.opts.OnError(key, o.err, retry)
		}
		if !retry {
			w.b.c.log.Error("bus: record can't be stored", "bus.bucket", w.b.spec.Name, "error", o.err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flying--
	s.flying = false
	var none T
	switch {
	case o.err == nil:
		s.done, s.delay = o.version, 0
		if !o.skip {
			s.stored, s.has, s.rev = v, !o.remove, o.rev
		}
	case retry:
		s.stored, s.has = none, false // it may be stored or not
		w.later(key, s)
	default:
		s.done = o.version
	}
	if w.slots[key] != s {
		// forgotten meanwhile
	} else if s.version != s.done {
		w.queue(key, s)
	} else if s.remove && o.err == nil {
		delete(w.slots, key)
	}
	w.poke()
	w.settled()
}

func worthRetrying(err error) bool {
	switch fault.KindOf(err) {
	case fault.TooLarge, fault.Invalid, fault.PermissionDenied, fault.FailedPrecondition:
		return false
	}
	return true
}

// later queues the key again after a delay that grows with each failure. It is called with mu held.
func (w *Writer[T]) later(key string, s *slot[T]) {
	if w.ended {
		return
	}
	s.delay = min(max(2*s.delay, minRetryDelay), maxWriteDelay)
	s.timer = time.AfterFunc(s.delay, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.slots[key] == s && s.timer != nil {
			s.timer = nil
			w.queue(key, s)
		}
	})
}

// reconnected sends at once what waits after errors, and everything again when
// the server came back without what was stored.
func (w *Writer[T]) reconnected(ctx context.Context) {
	var top uint64 // taken before the question, as writes may go on
	w.mu.Lock()
	for _, s := range w.slots {
		top = max(top, s.rev)
	}
	w.mu.Unlock()
	info, err := w.b.c.streamInfo(ctx, bucketStream+w.b.spec.Name)
	w.mu.Lock()
	defer w.mu.Unlock()
	// Without the stream the owner is about to create it: what is stored then fails meanwhile and is tried again.
	forgotten := fault.Is(err, fault.NotFound) || err == nil && (!w.created.IsZero() && !info.Created.Equal(w.created) || info.State.LastSeq < top)
	if err == nil {
		w.created = info.Created
	}
	var none T
	for key, s := range w.slots {
		if forgotten && s.has {
			s.stored, s.has, s.rev = none, false, 0
			if s.version == s.done {
				s.version++
			}
		}
		if s.timer != nil {
			s.timer.Stop()
			s.timer, s.delay = nil, 0
		}
		if s.version != s.done {
			w.queue(key, s)
		}
	}
	w.poke()
}

// Flush waits until everything that was set before is stored, or given up.
func (w *Writer[T]) Flush(ctx context.Context) error {
	w.mu.Lock()
	wait := make(map[string]uint64)
	for k, s := range w.slots {
		if s.version != s.done {
			wait[k] = s.version
		}
	}
	w.mu.Unlock()
	for {
		w.mu.Lock()
		for k, v := range wait {
			if s := w.slots[k]; s == nil || s.done >= v {
				delete(wait, k)
			}
		}
		if len(wait) == 0 {
			w.mu.Unlock()
			return nil
		}
		if w.ended {
			w.mu.Unlock()
			return fault.New(fault.Unavailable, "flush bucket %s: the writer ended with %d records not stored", w.b.spec.Name, len(wait))
		}
		change := make(chan struct{})
		w.idle = append(w.idle, change)
		w.mu.Unlock()
		select {
		case <-change:
		case <-ctx.Done():
			err := w.b.c.Err()
			if err == nil {
				err = ctx.Err()
			}
			return fault.New(fault.Unavailable, "flush bucket %s: %d records not stored: %w", w.b.spec.Name, len(wait), err)
		}
	}
}

// settled wakes those who flush. It is called with mu held.
func (w *Writer[T]) settled() {
	for _, c := range w.idle {
		close(c)
	}
	w.idle = nil
}

// Pending gives the number of keys whose newest value is not stored yet.
func (w *Writer[T]) Pending() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, s := range w.slots {
		if s.version != s.done {
			n++
		}
	}
	return n
}

// drain stores what is left, bounded by DrainTimeout, if the bus is there.
func (w *Writer[T]) drain(ctx context.Context, senders *sync.WaitGroup) {
	limit := time.NewTimer(w.opts.DrainTimeout)
	defer limit.Stop()
	for w.Pending() > 0 && w.b.c.Connected() {
		w.dispatch(ctx, senders)
		select {
		case <-w.wake:
		case <-limit.C:
			return
		}
	}
}

func (w *Writer[T]) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	for _, s := range w.slots {
		if s.timer != nil {
			s.timer.Stop()
			s.timer = nil
		}
	}
	w.settled()
}

// Take makes the writer store what is set for the keys of a shard (Fences.Raise).
func (w *Writer[T]) Take(ctx context.Context, shard int, still func() bool) error {
	return w.opts.Fences.Raise(ctx, shard, still)
}

// Give drops what is to be stored of a shard and what is known of it; nothing is stored any more, whatever is set.
func (w *Writer[T]) Give(shard int) {
	w.opts.Fences.Lower(shard)
	w.Forget(func(key string) bool { return w.opts.Fences.shardOf(key) == shard })
}
