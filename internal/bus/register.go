package bus

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// Registration keeps a replica known to the others.
type Registration struct {
	b      *Bucket[*podplanev1.ServiceRecord]
	key    string
	cancel context.CancelFunc
	ended  chan struct{}
	wake   chan struct{}
	stop   func()

	mu     sync.Mutex
	record *podplanev1.ServiceRecord
}

// Register announces a replica under <service>.<node>.<instance> and renews it
// each RegistrationHeartbeat, and at once when the bus comes back, until Close;
// a replica that dies vanishes after RegistrationTTL. Empty service, node and
// instance are taken from the connection. It returns when the registration is
// stored, or with the error when ctx ends before.
func (c *Conn) Register(ctx context.Context, record *podplanev1.ServiceRecord) (*Registration, error) {
	r := proto.CloneOf(record)
	r.Schema = uint32(c.schema.own)
	if r.Service == "" {
		r.Service = c.cfg.Service
	}
	if r.Node == "" {
		r.Node = c.cfg.Node
	}
	if r.Instance == "" {
		r.Instance = c.cfg.Instance
	}
	b, err := Open(ctx, c, Services)
	if err != nil {
		return nil, fmt.Errorf("register %s: %w", r.Service, err)
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g := &Registration{
		b: b, key: ServiceKey(r.Service, r.Node, r.Instance), record: r,
		cancel: cancel, ended: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	for delay := minRetryDelay; ; delay = min(2*delay, maxRetryDelay) {
		err := g.store(ctx)
		if err == nil {
			break
		}
		if k := fault.KindOf(err); k != fault.Unavailable || c.sleep(ctx, delay) != nil {
			cancel()
			return nil, fmt.Errorf("register %s: %w", r.Service, err)
		}
	}
	g.stop = c.OnState(func(connected bool) {
		if connected {
			g.poke()
		}
	})
	go g.run(running)
	return g, nil
}

// Update changes the record and stores it soon. change gets the registration's own copy.
func (g *Registration) Update(change func(*podplanev1.ServiceRecord)) {
	g.mu.Lock()
	change(g.record)
	g.mu.Unlock()
	g.poke()
}

// Close takes the registration back. While the bus is away it returns the
// error; the registration then expires by itself.
func (g *Registration) Close(ctx context.Context) error {
	g.stop()
	g.cancel()
	select {
	case <-g.ended:
	case <-ctx.Done():
		return fmt.Errorf("take back registration %s: %w", g.key, ctx.Err())
	}
	return g.b.Delete(ctx, g.key)
}

func (g *Registration) poke() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

func (g *Registration) run(ctx context.Context) {
	defer close(g.ended)
	tick := time.NewTicker(RegistrationHeartbeat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-g.wake:
		case <-ctx.Done():
			return
		case <-g.b.c.done:
			return
		}
		if err := g.store(ctx); err != nil && ctx.Err() == nil {
			g.b.c.log.Debug("bus: registration not renewed", "error", err)
			if g.b.c.Connected() && g.b.c.sleep(ctx, maxEnsureDelay) == nil {
				g.poke() // the bucket may be on its way
			}
		}
	}
}

func (g *Registration) store(ctx context.Context) error {
	g.mu.Lock()
	g.record.LastSeen = timestamppb.Now()
	r := proto.CloneOf(g.record)
	g.mu.Unlock()
	_, err := g.b.Put(ctx, g.key, r)
	return err
}

// WatchServices calls f with the registered replicas of a service ("" for every
// service), sorted by key, at first and whenever they change in more than when they
// were last seen, until ctx ends. It blocks. While the bus is away, and for RegistrationTTL
// after, the last known replicas stay: a server that lost its memory does not
// make running services unknown.
func (c *Conn) WatchServices(ctx context.Context, service string, f func([]*podplanev1.ServiceRecord)) error {
	b, err := Open(ctx, c, Services)
	if err != nil {
		return fmt.Errorf("watch services: %w", err)
	}
	pattern := ">"
	if service != "" {
		pattern = ServicePattern(service)
	}
	w := &serviceWatch{known: map[string]*podplanev1.ServiceRecord{}, doubtful: map[string]*time.Timer{}, f: f}
	defer w.close()
	return b.Watch(ctx, pattern, Handler[*podplanev1.ServiceRecord]{Apply: w.apply, Synced: w.synced})
}

// serviceWatch is guarded by mu, as the timers of doubtful replicas run apart.
type serviceWatch struct {
	mu       sync.Mutex
	known    map[string]*podplanev1.ServiceRecord
	doubtful map[string]*time.Timer // vanished, but perhaps only from the server's memory
	ready    bool
	closed   bool
	f        func([]*podplanev1.ServiceRecord)
}

func (w *serviceWatch) apply(e Entry[*podplanev1.ServiceRecord]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.known[e.Key]
	if t := w.doubtful[e.Key]; t != nil {
		t.Stop()
		delete(w.doubtful, e.Key)
	}
	switch {
	case e.Deleted && e.Revision == 0:
		if old != nil {
			w.doubtful[e.Key] = time.AfterFunc(RegistrationTTL, func() { w.expire(e.Key) })
		}
		return
	case e.Deleted:
		delete(w.known, e.Key)
		w.tell(old != nil)
	default:
		w.known[e.Key] = e.Value
		w.tell(!sameButSeen(old, e.Value))
	}
}

func (w *serviceWatch) expire(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.doubtful[key] == nil {
		return
	}
	delete(w.doubtful, key)
	delete(w.known, key)
	w.tell(true)
}

func (w *serviceWatch) synced() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ready = true
	w.tell(true)
}

func (w *serviceWatch) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, t := range w.doubtful {
		t.Stop()
	}
}

// tell calls f, one call at a time, as mu is held.
func (w *serviceWatch) tell(changed bool) {
	if !changed || !w.ready {
		return
	}
	list := make([]*podplanev1.ServiceRecord, 0, len(w.known))
	for _, r := range w.known {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b *podplanev1.ServiceRecord) int {
		return strings.Compare(ServiceKey(a.GetService(), a.GetNode(), a.GetInstance()), ServiceKey(b.GetService(), b.GetNode(), b.GetInstance()))
	})
	w.f(list)
}

func sameButSeen(a, b *podplanev1.ServiceRecord) bool {
	if a == nil || b == nil {
		return a == b
	}
	a, b = proto.CloneOf(a), proto.CloneOf(b)
	a.LastSeen, b.LastSeen = nil, nil
	return proto.Equal(a, b)
}
