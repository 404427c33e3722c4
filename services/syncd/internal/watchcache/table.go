// Package watchcache keeps the present state of one kind of Kubernetes object together with its recent history, so that it can be
// listed and watched the way Kubernetes' API does it.
//
// # Ownership and ordering
//
// A Table has one feeder, which calls Set and Delete; any number of readers. Each change gets the next version. Versions grow for as
// long as the host's clock does not go back across a restart: a new Table starts at the present time in microseconds, far beyond what
// the one before can have reached. So a version of an earlier run is never mistaken for one of this run: watching from it answers
// "expired" and the client lists again. The last digits, in binary, are random and the same for all versions of a Table: those of another
// replica, which may have started at the same time, are told from its own.
//
// # Loss and back-pressure
//
// The history is bounded in number and in bytes; watching from before it is an error of kind Expired. A watcher has a bounded queue: one
// that does not keep up is ended with an error of kind Expired and never slows down the feeder or other watchers.
package watchcache

import (
	"math/rand/v2"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/podplane/podplane/internal/fault"
)

// Object is one version of an object. It is immutable: whoever gets one may keep it, nobody may change what it refers to.
type Object struct {
	Namespace, Name, UID string
	// Version is set by the Table.
	Version uint64
	Labels  map[string]string
	// Fields are what field selectors can select by.
	Fields map[string]string
	// Size is about how many bytes this version keeps alive beyond what it shares with its neighbours.
	Size int
	// Render gives the object as JSON with its version as metadata.resourceVersion. It is called by readers, without any lock.
	Render func(o *Object) ([]byte, error)
}

// ResourceVersion is the version as Kubernetes writes it.
func (o *Object) ResourceVersion() string { return FormatVersion(o.Version) }

// JSON renders the object.
func (o *Object) JSON() ([]byte, error) { return o.Render(o) }

// FormatVersion writes a version as a resourceVersion.
func FormatVersion(v uint64) string { return strconv.FormatUint(v, 10) }

// ParseVersion reads a resourceVersion. "" is 0.
func ParseVersion(s string) (uint64, error) {
	if s == "" {
		return 0, nil
	}
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fault.New(fault.BadRequest, "resourceVersion: must be a number that the server gave, or empty")
	}
	return v, nil
}

// Change is one step of the history. Before is nil for a new object, After for a deleted one.
type Change struct {
	Version       uint64
	Before, After *Object
}

// Limits bound a Table. The zero value means the defaults.
type Limits struct {
	// History is how many changes are kept, 2048 by default.
	History int
	// HistoryBytes bounds what the kept changes hold, 2 MiB by default.
	HistoryBytes int
	// Queue is how many changes may wait for one watcher, 256 by default.
	Queue int
}

func (l Limits) withDefaults() Limits {
	if l.History <= 0 {
		l.History = 2048
	}
	if l.HistoryBytes <= 0 {
		l.HistoryBytes = 2 << 20
	}
	if l.Queue <= 0 {
		l.Queue = 256
	}
	return l
}

// stride is how far versions are apart.
const stride = 1 << 10

type key struct{ namespace, name string }

// Table is the present state and the history.
type Table struct {
	limits Limits

	mu       sync.Mutex
	version  uint64
	oldest   uint64 // watching from an older version is impossible
	objects  map[key]*Object
	history  []Change
	bytes    int
	watchers map[*Watcher]struct{}
	closed   error
}

// New makes an empty table.
func New(limits Limits) *Table {
	base := uint64(time.Now().UnixMicro())*stride + rand.Uint64N(stride)
	return &Table{
		limits: limits.withDefaults(), version: base, oldest: base,
		objects: make(map[key]*Object), watchers: make(map[*Watcher]struct{}),
	}
}

// Set stores a new version of an object and returns it with its version.
func (t *Table) Set(o Object) *Object {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.version += stride
	o.Version = t.version
	k := key{o.Namespace, o.Name}
	before := t.objects[k]
	t.objects[k] = &o
	t.record(Change{Version: t.version, Before: before, After: &o})
	return &o
}

// Delete removes an object and returns its last version with the version of the deletion; nil when there is none.
func (t *Table) Delete(namespace, name string) *Object {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := key{namespace, name}
	before := t.objects[k]
	if before == nil {
		return nil
	}
	delete(t.objects, k)
	t.version += stride
	t.record(Change{Version: t.version, Before: before})
	last := *before
	last.Version = t.version
	return &last
}

// Close ends all watchers, present and future ones, with err.
func (t *Table) Close(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed != nil {
		return
	}
	t.closed = err
	for w := range t.watchers {
		t.end(w, err)
	}
}

// Get finds an object.
func (t *Table) Get(namespace, name string) (*Object, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o, ok := t.objects[key{namespace, name}]
	return o, ok
}

// List gives the objects of a namespace ("" is all) that match, by namespace and name, and the version of the table at that moment.
func (t *Table) List(namespace string, match func(*Object) bool) ([]*Object, uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.list(namespace, match), t.version
}

// Version is the version of the last change.
func (t *Table) Version() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.version
}

// Len is the number of objects.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.objects)
}

func (t *Table) list(namespace string, match func(*Object) bool) []*Object {
	found := make([]*Object, 0, len(t.objects))
	for k, o := range t.objects {
		if (namespace == "" || k.namespace == namespace) && (match == nil || match(o)) {
			found = append(found, o)
		}
	}
	sort.Slice(found, func(i, j int) bool {
		if found[i].Namespace != found[j].Namespace {
			return found[i].Namespace < found[j].Namespace
		}
		return found[i].Name < found[j].Name
	})
	return found
}

// record appends to the history, drops what is beyond its bounds and tells the watchers.
func (t *Table) record(c Change) {
	t.history = append(t.history, c)
	t.bytes += sizeOf(c)
	drop := 0
	for len(t.history)-drop > t.limits.History || (t.bytes > t.limits.HistoryBytes && len(t.history)-drop > 1) {
		t.bytes -= sizeOf(t.history[drop])
		t.oldest = t.history[drop].Version
		t.history[drop] = Change{}
		drop++
	}
	t.history = t.history[drop:]
	for w := range t.watchers {
		if !w.offer(c) {
			t.end(w, fault.New(fault.Expired, "the watch was too slow and missed changes: more than %d were waiting; list again", t.limits.Queue))
		}
	}
}

func sizeOf(c Change) int {
	o := c.After
	if o == nil {
		o = c.Before
	}
	return o.Size + 128
}
