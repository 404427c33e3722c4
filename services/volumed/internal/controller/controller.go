// Package controller carries out what package reconcile decides.
//
// One goroutine, Run, owns the state of every pod. What is learnt from the bus arrives there through methods that may
// be called from any goroutine; they wait when more than 256 things are waiting already, so that a watcher is held back
// and nothing is lost. Work on disk runs in a goroutine of its own, one for each operation and none for a pod at rest,
// at most Parallel at once; an operation that takes longer than a moment (a hung mount) no longer counts, so that it
// holds nobody else back. Records are handed to a Writer, which never blocks.
package controller

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/events"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/volumed/internal/plugin"
	"github.com/podplane/podplane/services/volumed/internal/reconcile"
)

const (
	// Parallel is how many operations run at once, not counting those that are older than momentary.
	Parallel = 16
	// momentary is how long an operation counts.
	momentary = 2 * time.Second
	// detachAfter is how many teardowns of a pod fail before busy mounts are detached.
	detachAfter = 4
	// stopTimeout is how long Run waits for operations when it ends. One that hangs is left to the end of the process.
	stopTimeout = 2 * time.Second
	inboxSize   = 256
)

// Disk is where the volumes are; *plugin.Volumes is one.
type Disk interface {
	Setup(ctx context.Context, p *plugin.Pod, volume string, before map[string]string) (plugin.Mounted, error)
	Teardown(ctx context.Context, uid string, detach bool) plugin.Report
	Leftovers() ([]string, error)
}

// Writer takes the records; *bus.Writer is one.
type Writer interface {
	SetContext(ctx context.Context, key string, v *podplanev1.VolumesRecord)
	Remove(key string)
}

// Config is what a Controller needs.
type Config struct {
	Node   string
	BootID string
	Disk   Disk
	Writer Writer
	Events events.Sink
	Log    *slog.Logger
	// ShardOf, when not nil, cuts the pods into shards: only the pods of those that were gained are worked on, and only while
	// Holds says that the shard is held at this moment.
	ShardOf func(uid string) int
	Holds   func(shard int) bool
	// Metrics may be nil.
	Metrics *Metrics
}

// Controller owns the volumes of a node's pods.
type Controller struct {
	cfg    Config
	inbox  chan func()
	ended  chan struct{}
	synced atomic.Bool
	tracer trace.Tracer

	// The rest belongs to Run.
	ctx      context.Context // of operations
	pods     map[string]*entry
	others   map[string]seenPod // pods with volumes of shards that other replicas have
	mine     map[int]bool
	done     map[string]bool // UIDs of terminated pods, also of those without volumes
	plain    map[string]bool // UIDs of pods without volumes
	objects  map[string]uint64
	users    map[string]map[string]bool // object -> UIDs
	unsynced map[string]bool
	queue    []*operation
	running  int
	timer    *time.Timer
	armed    time.Time
	wg       sync.WaitGroup
}

// entry is what Run knows about one pod.
type entry struct {
	uid, namespace, name string
	trace                *podplanev1.TraceContext
	pod                  *plugin.Pod // nil: there is no record
	terminated           bool
	state                reconcile.Pod
	wake                 time.Time
	active               map[*operation]bool // queued and running
	span                 *setupSpan
}

// Sources that must be read completely before anything happens.
const (
	SourcePods   = "pods"
	SourceStatus = "status"
)

// New makes a controller; Run does the work.
func New(cfg Config) *Controller {
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics()
	}
	return &Controller{
		cfg: cfg, inbox: make(chan func(), inboxSize), ended: make(chan struct{}), tracer: tracer(),
		pods: map[string]*entry{}, others: map[string]seenPod{}, mine: map[int]bool{}, plain: map[string]bool{}, done: map[string]bool{}, objects: map[string]uint64{},
		users: map[string]map[string]bool{}, unsynced: map[string]bool{SourcePods: true, SourceStatus: true},
	}
}

// Run works until ctx ends. It runs once.
func (c *Controller) Run(ctx context.Context) error {
	opCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	c.ctx = opCtx
	c.timer = time.NewTimer(time.Hour)
	defer c.timer.Stop()
	for ctx.Err() == nil {
		select {
		case f := <-c.inbox:
			f()
		case <-c.timer.C:
			c.armed = time.Time{}
			c.wakeUp(time.Now())
		case <-ctx.Done():
		}
		c.arm()
	}
	cancel()
	close(c.ended)
	c.awaitOperations()
	for _, e := range c.pods {
		e.span.end(nil)
	}
	return ctx.Err()
}

// awaitOperations waits for the operations, but not for those that hang.
func (c *Controller) awaitOperations() {
	done := make(chan struct{})
	go func() {
		c.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(stopTimeout):
		c.cfg.Log.Warn("operations on volumes do not end; left behind")
	}
}

// do runs f on the goroutine that owns the state, soon. After the end of Run nothing happens.
func (c *Controller) do(f func()) {
	select {
	case c.inbox <- f:
	case <-c.ended:
	}
}

// Restore takes what an earlier process has recorded. It must be called before Synced.
func (c *Controller) Restore(r *podplanev1.VolumesRecord) {
	c.do(func() { c.restore(r) })
}

// PodSeen takes a pod's record.
func (c *Controller) PodSeen(p *plugin.Pod, tc *podplanev1.TraceContext) {
	c.do(func() {
		e := c.pods[p.UID]
		if e == nil && len(p.Volumes) == 0 {
			c.plain[p.UID] = true // nothing to do for it, ever
			return
		}
		if !c.owns(p.UID) {
			c.others[p.UID] = seenPod{p, tc}
			return
		}
		if e == nil {
			e = c.entry(p.UID)
		}
		c.wanted(e, p, tc)
	})
}

// wanted takes a pod's record and decides.
func (c *Controller) wanted(e *entry, p *plugin.Pod, tc *podplanev1.TraceContext) {
	e.pod, e.namespace, e.name, e.trace = p, p.Namespace, p.Name, tc
	e.terminated = e.terminated || c.done[p.UID]
	for i := range p.Volumes {
		if key := objectKey(p, i); key != "" {
			if c.users[key] == nil {
				c.users[key] = map[string]bool{}
			}
			c.users[key][p.UID] = true
		}
	}
	c.step(e)
}

// PodGone says that there is no record of the pod.
func (c *Controller) PodGone(uid string) {
	c.do(func() {
		delete(c.plain, uid)
		delete(c.others, uid)
		if e := c.pods[uid]; e != nil {
			e.pod = nil
			c.step(e)
		}
	})
}

// Status takes whether the pod is terminated; a pod once terminated stays so.
func (c *Controller) Status(uid string, terminated bool) {
	c.do(func() {
		if !terminated {
			delete(c.done, uid)
			return
		}
		c.done[uid] = true
		if e := c.pods[uid]; e != nil && !e.terminated {
			e.terminated = true
			c.step(e)
		}
	})
}

// Object takes the revision in which an object was seen, 0 when it was deleted.
func (c *Controller) Object(key string, revision uint64) {
	c.do(func() {
		if revision == 0 {
			delete(c.objects, key)
		} else {
			c.objects[key] = revision
		}
		for uid := range c.users[key] {
			if e := c.pods[uid]; e != nil {
				c.step(e)
			}
		}
	})
}

// Synced says that a source was read completely. After all of them, work begins: also on what is on disk and belongs to
// no pod.
func (c *Controller) Synced(source string) {
	c.do(func() {
		if !c.unsynced[source] {
			return
		}
		delete(c.unsynced, source)
		if len(c.unsynced) > 0 {
			return
		}
		c.findLeftovers()
		c.synced.Store(true)
		for _, e := range c.pods {
			c.step(e)
		}
	})
}

// IsSynced says whether everything was read.
func (c *Controller) IsSynced() bool { return c.synced.Load() }

// Records returns the state of every pod that match accepts.
func (c *Controller) Records(ctx context.Context, match func(namespace, name, uid string) bool) ([]*podplanev1.VolumesRecord, error) {
	var list []*podplanev1.VolumesRecord
	err := c.ask(ctx, func() {
		for _, e := range c.pods {
			if match(e.namespace, e.name, e.uid) {
				list = append(list, c.record(e))
			}
		}
	})
	return list, err
}

// ask runs f on the goroutine that owns the state and waits for it.
func (c *Controller) ask(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case c.inbox <- func() { f(); close(done) }:
	case <-c.ended:
		return errEnded
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-done:
		return nil
	case <-c.ended:
		return errEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// findLeftovers makes entries of what is on disk.
func (c *Controller) findLeftovers() {
	uids, err := c.cfg.Disk.Leftovers()
	if err != nil {
		c.cfg.Log.Error("can't look for volumes that are left over", "error", err)
	}
	for _, uid := range uids {
		if !c.plain[uid] && c.owns(uid) {
			c.entry(uid)
		}
	}
}

func (c *Controller) entry(uid string) *entry {
	e := c.pods[uid]
	if e == nil {
		e = &entry{uid: uid, active: map[*operation]bool{}, terminated: c.done[uid]}
		c.pods[uid] = e
	}
	return e
}

// step lets the machine decide about a pod and carries it out.
func (c *Controller) step(e *entry) {
	now := time.Now()
	if !c.held(e.uid) {
		e.wake = now.Add(heldAgain) // Lose is on its way, or the lease comes back
		return
	}
	in := reconcile.Input{
		Synced: len(c.unsynced) == 0, Wanted: e.pod != nil, Terminated: e.terminated,
		Revision: func(o string) uint64 { return c.objects[o] },
	}
	if e.pod != nil {
		in.Wishes = wishes(e.pod)
	}
	d := reconcile.Reconcile(&e.state, in, now)
	e.wake = d.Wake
	for _, v := range d.Setup {
		c.startSetup(e, v)
	}
	if d.Teardown {
		c.startTeardown(e)
	}
	if d.Publish {
		c.publish(e)
	}
	if d.Forget {
		c.forget(e, d.Remove)
		return
	}
	c.cfg.Metrics.count(e)
	if d.Cancel && c.cancel(e) {
		c.step(e)
	}
}

func wishes(p *plugin.Pod) []reconcile.Wish {
	list := make([]reconcile.Wish, len(p.Volumes))
	for i := range p.Volumes {
		name, _, _ := plugin.Of(&p.Volumes[i])
		list[i] = reconcile.Wish{Name: p.Volumes[i].Name, Plugin: name, Object: objectKey(p, i)}
	}
	return list
}

func objectKey(p *plugin.Pod, i int) string {
	_, kind, object := plugin.Of(&p.Volumes[i])
	if object == "" {
		return ""
	}
	return bus.ObjectKey(p.Namespace, kind, object)
}

func (c *Controller) record(e *entry) *podplanev1.VolumesRecord {
	r := e.state.Record()
	r.Node, r.Uid, r.Namespace, r.Name, r.Trace = c.cfg.Node, e.uid, e.namespace, e.name, e.trace
	r.UpdatedAt = timestamppb.Now()
	return r
}

func (c *Controller) publish(e *entry) {
	c.cfg.Writer.SetContext(e.span.context(podContext(context.Background(), e)), bus.PodKey(c.cfg.Node, e.uid), c.record(e))
	switch e.state.Phase {
	case reconcile.Ready:
		e.span.end(nil)
		e.span = nil
	case reconcile.TearingDown, reconcile.Gone:
		e.span.end(context.Canceled)
		e.span = nil
	}
}

func (c *Controller) forget(e *entry, remove bool) {
	if remove {
		c.cfg.Writer.Remove(bus.PodKey(c.cfg.Node, e.uid))
	}
	c.drop(e)
}

// drop forgets a pod and leaves its record.
func (c *Controller) drop(e *entry) {
	e.span.end(context.Canceled)
	c.cfg.Metrics.forget(e)
	delete(c.pods, e.uid)
	for key, uids := range c.users {
		delete(uids, e.uid)
		if len(uids) == 0 {
			delete(c.users, key)
		}
	}
}

// wakeUp decides about the pods whose time has come.
func (c *Controller) wakeUp(now time.Time) {
	for _, e := range c.pods {
		if !e.wake.IsZero() && !now.Before(e.wake) {
			c.step(e)
		}
	}
	c.schedule()
}

// arm sets the timer to the earliest wake-up.
func (c *Controller) arm() {
	var next time.Time
	for _, e := range c.pods {
		if !e.wake.IsZero() && (next.IsZero() || e.wake.Before(next)) {
			next = e.wake
		}
	}
	if next.Equal(c.armed) {
		return
	}
	c.armed = next
	if next.IsZero() {
		c.timer.Stop()
		return
	}
	c.timer.Reset(time.Until(next))
}
