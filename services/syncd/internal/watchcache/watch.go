package watchcache

import (
	"context"

	"github.com/podplane/podplane/internal/fault"
)

// Kubernetes' types of watch events.
const (
	Added    = "ADDED"
	Modified = "MODIFIED"
	Deleted  = "DELETED"
	Bookmark = "BOOKMARK"
	Error    = "ERROR"
)

// Event is a change as one watcher sees it through its selectors.
type Event struct {
	Type string
	// Object is what is now, or for Deleted what was last, with the version of the deletion.
	Object *Object
}

// Filter says what a watcher wants to see. The zero value is everything.
type Filter struct {
	Namespace string
	// Match may be nil.
	Match func(*Object) bool
}

func (f Filter) wants(o *Object) bool {
	return o != nil && (f.Namespace == "" || o.Namespace == f.Namespace) && (f.Match == nil || f.Match(o))
}

// Watcher delivers events in the order of their versions. Close it.
type Watcher struct {
	table   *Table
	filter  Filter
	initial []*Object
	start   uint64 // the version that the initial state is of; 0 without one
	queue   chan Change
	done    chan struct{}
	err     error // set before done is closed
	seen    uint64
}

// Watch starts a watcher. From version 0 it delivers the present state first, as Added; from any other version the changes after it. A version that is no longer
// kept, or that this table has not reached (it is of another run), is an error of kind Expired.
func (t *Table) Watch(from uint64, f Filter) (*Watcher, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed != nil {
		return nil, t.closed
	}
	w := &Watcher{table: t, filter: f, done: make(chan struct{}), seen: from}
	var missed []Change
	if from == 0 {
		w.initial, w.start, w.seen = t.list(f.Namespace, f.Match), t.version, t.version
	} else {
		if from < t.oldest || from > t.version || from%stride != t.version%stride {
			return nil, fault.New(fault.Expired, "too old resource version: %d (%d)", from, t.oldest)
		}
		for i := len(t.history) - 1; i >= 0 && t.history[i].Version > from; i-- {
			missed = t.history[i:]
		}
	}
	w.queue = make(chan Change, t.limits.Queue+len(missed))
	for _, c := range missed {
		w.offer(c)
	}
	t.watchers[w] = struct{}{}
	return w, nil
}

// offer queues a change if the watcher may want it; false when there is no room.
func (w *Watcher) offer(c Change) bool {
	if !w.filter.wants(c.Before) && !w.filter.wants(c.After) {
		return true
	}
	select {
	case w.queue <- c:
		return true
	default:
		return false
	}
}

// end is called with the table's lock held.
func (t *Table) end(w *Watcher, err error) {
	if _, ok := t.watchers[w]; !ok {
		return
	}
	delete(t.watchers, w)
	w.err = err
	close(w.done)
}

// Close ends the watcher.
func (w *Watcher) Close() {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	w.table.end(w, fault.New(fault.Canceled, "the watch was closed"))
}

// Initial gives the present state with which the watch starts, and its version; no version when it starts with changes.
func (w *Watcher) Initial() ([]*Object, uint64) {
	initial := w.initial
	w.initial = nil
	return initial, w.start
}

// Next waits for the next event. It ends with the reason for which the watch was ended, after what had been queued before, or with
// ctx's error.
func (w *Watcher) Next(ctx context.Context) (Event, error) {
	for {
		select {
		case c := <-w.queue:
			if e, ok := w.event(c); ok {
				return e, nil
			}
			continue
		default:
		}
		select {
		case <-ctx.Done():
			return Event{}, ctx.Err()
		case <-w.done:
			select {
			case c := <-w.queue:
				if e, ok := w.event(c); ok {
					return e, nil
				}
			default:
				return Event{}, w.err
			}
		case c := <-w.queue:
			if e, ok := w.event(c); ok {
				return e, nil
			}
		}
	}
}

// Seen is a version up to which nothing that the watcher wants is missing: a watch may be resumed from it. It is for the goroutine that calls Next.
func (w *Watcher) Seen() uint64 {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	if _, alive := w.table.watchers[w]; alive && len(w.queue) == 0 {
		w.seen = w.table.version
	}
	return w.seen
}

// event translates a change by what the watcher's selectors let through before and after it.
func (w *Watcher) event(c Change) (Event, bool) {
	w.seen = c.Version
	before, after := w.filter.wants(c.Before), w.filter.wants(c.After)
	switch {
	case after && before:
		return Event{Type: Modified, Object: c.After}, true
	case after:
		return Event{Type: Added, Object: c.After}, true
	case before:
		last := *c.Before
		last.Version = c.Version
		return Event{Type: Deleted, Object: &last}, true
	}
	return Event{}, false
}
