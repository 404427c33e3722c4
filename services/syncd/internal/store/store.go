package store

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/admission"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

// Bucket is what the store needs of a bus.Bucket, by the same rules.
type Bucket[T proto.Message] interface {
	Create(ctx context.Context, key string, value T) (uint64, error)
	CreateAfter(ctx context.Context, key string, value T, pattern string, rev uint64) (uint64, error)
	LastRevision(ctx context.Context, pattern string) (uint64, error)
	Update(ctx context.Context, key string, value T, rev uint64) (uint64, error)
	Delete(ctx context.Context, key string) error
	DeleteRevision(ctx context.Context, key string, rev uint64) error
	// Lookup gives the present value of a key and its revision, or an error of kind NotFound.
	Lookup(ctx context.Context, key string) (T, uint64, error)
}

// Options are the store's settings. Node is required, the rest has defaults.
type Options struct {
	Node string
	// Patience is how long a change is tried while the bus is away, 3 s by default.
	Patience time.Duration
	// Admit decides whether the node takes one more pod, and how; active are those that hold or will hold resources. Nil takes all.
	Admit func(candidate admission.Tenant, active []admission.Tenant) (admission.Verdict, error)
	// Limits bound each table's history and the queues of its watchers.
	Limits watchcache.Limits
	Log    *slog.Logger
	// Now is the clock, time.Now by default.
	Now func() time.Time
}

func (o Options) withDefaults() Options {
	if o.Patience <= 0 {
		o.Patience = 3 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// PodChange is what subscribers learn about a desired pod.
type PodChange struct {
	UID string
	// Record and Pod are shared and must not be changed. Pod is the decoded desired pod without status. Both are what was last when
	// Deleted.
	Record  *podplanev1.PodRecord
	Pod     *v1.Pod
	Deleted bool
	// Fresh says that this process has just stored the pod under a UID that has never been used: nothing of it can exist yet.
	Fresh bool
}

// ObjectChange is what subscribers learn about a ConfigMap or Secret.
type ObjectChange struct {
	// Kind is KindConfigMap or KindSecret.
	Kind, Namespace, Name string
	Deleted               bool
}

// Kinds of config objects, as they stand in keys and records.
const (
	KindConfigMap = "configmap"
	KindSecret    = "secret"
)

// Store is described in the package's documentation. Make one with New or Open.
type Store struct {
	opts    Options
	pods    Bucket[*podplanev1.PodRecord]
	status  Bucket[*podplanev1.StatusRecord]
	objects Bucket[*podplanev1.ObjectRecord]

	busy   keyLock       // by name: one change of a pod or object at a time
	atPods *bus.Progress // the revision of the bucket of pods up to which the view is complete
	atStat *bus.Progress // the same of the statuses
	order  sync.Mutex
	subs   map[int]func(PodChange)
	objSub map[int]func(ObjectChange)
	nextID int

	mu        sync.Mutex
	byUID     map[string]*podEntry
	names     map[nsName]string // to UID
	pending   map[nsName]admission.Tenant
	statuses  map[string]statusEntry
	gone      tombs[string]
	noStatus  tombs[string]
	minted    map[string]struct{} // UIDs that were made here and are being stored
	abandoned map[string]struct{} // UIDs whose creation failed without an answer
	objectsBy map[objectKey]*objectEntry
	objGone   tombs[objectKey]

	podTable, configMaps, secrets *watchcache.Table

	syncMu sync.Mutex
	unsaid int // buckets whose present state has not been seen yet
	synced chan struct{}
	chores chores
}

type nsName struct{ namespace, name string }

type podEntry struct {
	rec *podplanev1.PodRecord
	pod *v1.Pod
	rev uint64
}

type statusEntry struct {
	rec *podplanev1.StatusRecord
	rev uint64
}

// New makes a store on these buckets. It knows nothing until it is fed (Open and Run do that).
func New(pods Bucket[*podplanev1.PodRecord], status Bucket[*podplanev1.StatusRecord], objects Bucket[*podplanev1.ObjectRecord], opts Options) *Store {
	opts = opts.withDefaults()
	return &Store{
		opts: opts, pods: pods, status: status, objects: objects,
		subs: make(map[int]func(PodChange)), objSub: make(map[int]func(ObjectChange)),
		byUID: make(map[string]*podEntry), names: make(map[nsName]string), pending: make(map[nsName]admission.Tenant),
		statuses: make(map[string]statusEntry), gone: newTombs[string](), noStatus: newTombs[string](), minted: make(map[string]struct{}), abandoned: make(map[string]struct{}),
		objectsBy: make(map[objectKey]*objectEntry), objGone: newTombs[objectKey](),
		atPods: bus.NewProgress(), atStat: bus.NewProgress(),
		podTable: watchcache.New(opts.Limits), configMaps: watchcache.New(opts.Limits), secrets: watchcache.New(opts.Limits),
		unsaid: 3, synced: make(chan struct{}), chores: newChores(),
	}
}

// Synced is closed once the present state of all buckets has been seen.
func (s *Store) Synced() <-chan struct{} { return s.synced }

// WaitSynced waits for the first complete view, at most for Options.Patience.
func (s *Store) WaitSynced(ctx context.Context) error {
	select {
	case <-s.synced:
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.Patience)
	defer cancel()
	select {
	case <-s.synced:
		return nil
	case <-ctx.Done():
		return unavailable(fault.New(fault.Unavailable, "syncd has not read the stored pods from the bus yet"))
	}
}

// Pods is the table of pods with their status, to be listed and watched.
func (s *Store) Pods() *watchcache.Table { return s.podTable }

// ConfigMaps is the table of ConfigMaps.
func (s *Store) ConfigMaps() *watchcache.Table { return s.configMaps }

// Secrets is the table of Secrets.
func (s *Store) Secrets() *watchcache.Table { return s.secrets }

// Node is the name of the node whose pods are changed here.
func (s *Store) Node() string { return s.opts.Node }

// Subscribe calls fn with every pod of this node that is, then with each change. fn must not block and must not change the store; it may read.
// The calls may come from any goroutine, one at a time. The function that it returns ends the subscription.
func (s *Store) Subscribe(fn func(PodChange)) (cancel func()) {
	s.order.Lock()
	defer s.order.Unlock()
	s.nextID++
	id := s.nextID
	s.subs[id] = fn
	for _, c := range s.Snapshot() {
		fn(c)
	}
	return func() {
		s.order.Lock()
		defer s.order.Unlock()
		delete(s.subs, id)
	}
}

// Replay calls fn with every pod of this node that is, in the order of Subscribe's calls: no change comes in between.
func (s *Store) Replay(fn func(PodChange)) {
	s.order.Lock()
	defer s.order.Unlock()
	for _, c := range s.Snapshot() {
		fn(c)
	}
}

// Snapshot gives every desired pod of this node.
func (s *Store) Snapshot() []PodChange {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]PodChange, 0, len(s.byUID))
	for uid, e := range s.byUID {
		if s.own(e.rec.GetNode()) {
			all = append(all, PodChange{UID: uid, Record: e.rec, Pod: e.pod})
		}
	}
	return all
}

// Pod finds a desired pod by its UID, on whichever node it is.
func (s *Store) Pod(uid string) (PodChange, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.byUID[uid]
	if !ok {
		return PodChange{}, false
	}
	return PodChange{UID: uid, Record: e.rec, Pod: e.pod}, true
}

// PodByName finds a desired pod by its name, on whichever node it is.
func (s *Store) PodByName(namespace, name string) (PodChange, bool) {
	s.mu.Lock()
	uid, ok := s.names[nsName{namespace, name}]
	s.mu.Unlock()
	if !ok {
		return PodChange{}, false
	}
	return s.Pod(uid)
}

// Status gives the last status record of a pod.
func (s *Store) Status(uid string) (*podplanev1.StatusRecord, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.statuses[uid]
	return e.rec, ok
}

// publish tells the subscribers, who care for this node only.
func (s *Store) publish(c PodChange) {
	if !s.own(c.Record.GetNode()) {
		return
	}
	for _, fn := range s.subs {
		fn(c)
	}
}

// sayOnce counts one bucket's present state as seen.
func (s *Store) sayOnce() func() {
	var once sync.Once
	return func() {
		once.Do(func() {
			s.syncMu.Lock()
			defer s.syncMu.Unlock()
			s.unsaid--
			if s.unsaid == 0 {
				close(s.synced)
			}
		})
	}
}

// unavailable says when another try makes sense.
func unavailable(err error) error { return fault.WithRetryAfter(err, time.Second) }

var errStopping = unavailable(fault.New(fault.Unavailable, "syncd is stopping"))

// Changes gives a signal soon after a pod or its status changes, until ctx ends; it is closed when the pod is gone.
func (s *Store) Changes(ctx context.Context, uid string) <-chan struct{} {
	signal := make(chan struct{}, 1)
	go func() {
		defer close(signal)
		for ctx.Err() == nil && s.changed(ctx, uid, signal) {
		}
	}()
	return signal
}

// changed passes changes on; it gives true when it should be called again.
func (s *Store) changed(ctx context.Context, uid string, signal chan<- struct{}) bool {
	w, err := s.podTable.Watch(0, watchcache.Filter{Match: func(o *watchcache.Object) bool { return o.UID == uid }})
	if err != nil {
		return false
	}
	defer w.Close()
	for {
		if _, there := s.Pod(uid); !there {
			return false
		}
		select {
		case signal <- struct{}{}:
		default:
		}
		if _, err := w.Next(ctx); err != nil {
			return fault.Is(err, fault.Expired)
		}
	}
}
