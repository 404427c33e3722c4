package worker

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// news is what was handed to a worker since it last looked. The newest value of each kind counts.
type news struct {
	pod       *v1.Pod
	trace     string
	preempted *plan.Eviction

	volumes     *podplanev1.VolumesRecord
	probes      map[plan.ProbeKey]plan.Verdict
	eviction    *plan.Eviction
	hints       []Hint
	retry       bool // something that failed may succeed now
	retryConfig bool // a config object changed
	leave       bool // another replica takes the pod over
	orphaned    bool // the record is gone, though nobody here removed it
	results     []func(*worker)
	volumesSet  bool
	probesSet   bool
	evictSet    bool
}

// maxHints bounds the hints kept for one pod; beyond it one look at everything replaces them.
const maxHints = 64

// worker owns one pod. The fields below in are only used by its goroutine.
type worker struct {
	m   *Manager
	uid string
	// namespace never changes: it may be read from any goroutine.
	namespace string
	wake      chan struct{}
	done      chan struct{}      // closed when it has ended
	cancel    context.CancelFunc // set with the manager's lock held, when it is started

	mu sync.Mutex
	in news

	// desired is the pod as it is wished for, pod the same with the resources that were allocated.
	desired   *v1.Pod
	pod       *v1.Pod
	allocated plan.Allocation
	resize    plan.ResizeState
	trace     string
	first     time.Time

	phase  plan.Phase
	stop   *plan.Stop
	view   *view
	stale  bool
	images map[string]plan.Image
	infos  map[string]cri.Image
	fails  map[string]plan.Failure
	ends   map[string]plan.Failure
	box    plan.Failure
	busy   plan.Busy
	killed map[string]bool
	// hookFailed holds the IDs of containers whose postStart hook failed.
	hookFailed map[string]bool
	// startFails holds the IDs of containers that were created here and could not be started.
	startFails map[string]bool

	volumes  *podplanev1.VolumesRecord
	probes   map[plan.ProbeKey]plan.Verdict
	eviction *plan.Eviction
	// preempted is the order to make room for another pod, after are the pods that make room for this one.
	preempted *plan.Eviction
	after     []string
	hints     []Hint

	inspecting   bool
	inspectAgain bool
	inspectAt    time.Time // not before
	inspectFails int
	away         string
	awaySince    time.Time
	messages     map[string]string
	cleaned      bool
	over         bool

	previous  *v1.PodStatus
	published *podplanev1.StatusRecord
	holdUntil time.Time
	waiting   []*podplanev1.Waiting
	wasReady  bool
	// unrecorded: the pod may have run before, and no status tells of it.
	unrecorded bool
	// logged are the restart counts that logs tell of, where no status does.
	logged map[string]uint32
	// surplus are dead containers of the node that are to go; shared, never changed.
	surplus map[string]bool
	// terminated says to others that the phase is Terminated.
	terminated atomic.Bool
	// told holds the waits that the decisions tell of, and since when they last.
	told map[string]time.Time

	startCtx    context.Context
	startCancel context.CancelFunc
	ops         sync.WaitGroup
	flying      int  // actions and observations under way
	leaving     bool // nothing is begun any more
	toldOverdue bool // that it did not end in time
}

func newWorker(m *Manager, uid string, c PodChange) *worker {
	w := &worker{
		m: m, uid: uid, namespace: c.Pod.Namespace, wake: make(chan struct{}, 1), done: make(chan struct{}), view: newView(), stale: !c.Fresh, first: m.deps.Now(),
		images: make(map[string]plan.Image), infos: make(map[string]cri.Image), fails: make(map[string]plan.Failure), ends: make(map[string]plan.Failure),
		killed: make(map[string]bool), hookFailed: make(map[string]bool), startFails: make(map[string]bool), messages: make(map[string]string), pod: c.Pod, trace: c.Trace, preempted: c.Preempted, after: slices.Clone(c.After),
		busy: plan.Busy{
			Containers: make(map[string]bool), Images: make(map[string]bool), Kills: make(map[string]time.Time), Removals: make(map[string]bool),
		},
	}
	w.unrecorded = c.Status == nil && !c.Fresh
	w.restore(c.Status)
	w.desire(c.Pod)
	return w
}

// successor is a pod of the same UID that was wished for again while the last one was being removed (a manifest file that came back).
func (w *worker) successor() (PodChange, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, traceparent := w.desired, w.trace
	if w.in.pod != nil {
		p, traceparent = w.in.pod, w.in.trace
	}
	return PodChange{UID: w.uid, Pod: p, Trace: traceparent}, p.DeletionTimestamp == nil
}

// post hands something in: change is called with the inbox locked.
func (w *worker) post(change func(*news)) {
	w.mu.Lock()
	change(&w.in)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// hint hands in a hint.
func (w *worker) hint(h Hint) {
	w.post(func(n *news) {
		if len(n.hints) >= maxHints {
			n.hints = append(n.hints[:0], Hint{Type: HintLook})
			return
		}
		n.hints = append(n.hints, h)
	})
}

// run is the worker's goroutine. It ends when the pod is gone or with ctx; actions that are under way end before it does.
func (w *worker) run(ctx context.Context) {
	w.startCtx, w.startCancel = context.WithCancel(ctx)
	defer w.ops.Wait()
	defer w.startCancel()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	timer.Stop()
	for {
		next := w.step(ctx)
		if w.over || (w.leaving && w.flying == 0) {
			return
		}
		if !next.IsZero() {
			timer.Reset(max(next.Sub(w.m.deps.Now()), 0))
		}
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// step looks at everything once and returns when to look again at the latest.
func (w *worker) step(ctx context.Context) time.Time {
	w.take()
	if w.over || w.leaving {
		return time.Time{}
	}
	if !w.m.held(w.uid) {
		return w.m.deps.Now().Add(heldAgain) // it is about to be given up, or the lease comes back
	}
	next := w.observe(ctx)
	if w.resize.Pending != "" {
		next = earlier(next, w.allocate())
	}
	in := w.input()
	p := plan.Next(in)
	if p.Phase != plan.Syncing && w.phase == plan.Syncing {
		w.startCancel()
		w.stopped(p.Stop)
	}
	w.explain(&in, &p)
	w.phase, w.stop = p.Phase, p.Stop
	w.terminated.Store(w.phase == plan.Terminated)
	w.act(ctx, p.Actions)
	if len(p.Actions) > 0 {
		// What was started just now is waited for: the status says so.
		in.Phase, in.Stop, in.Busy = w.phase, w.stop, w.busy
		p = plan.Next(in)
	}
	w.publish(in, p)
	return earlier(earlier(earlier(next, p.Again), w.holdUntil), w.overdue())
}

// take empties the inbox.
func (w *worker) take() {
	w.mu.Lock()
	n := w.in
	w.in = news{}
	w.mu.Unlock()
	if n.pod != nil {
		w.trace, w.preempted = n.trace, n.preempted
		w.desire(n.pod)
	}
	if n.volumesSet {
		w.volumes = n.volumes
	}
	if n.probesSet {
		w.probes = n.probes
	}
	if n.evictSet {
		w.eviction = n.eviction
	}
	w.leaving = w.leaving || n.leave
	if n.orphaned {
		w.desire(orphan(w.desired, w.m.deps.Now()))
	}
	w.hints = append(w.hints, n.hints...)
	if n.retry {
		w.retryNow()
	}
	if n.retryConfig {
		w.retryConfig()
	}
	for _, apply := range n.results {
		apply(w)
	}
}

// retryNow forgets the pauses after failures.
func (w *worker) retryNow() {
	w.inspectAt = time.Time{}
	w.box.NotBefore = time.Time{}
	for name, f := range w.fails {
		f.NotBefore = time.Time{}
		w.fails[name] = f
	}
}

// pullAgain is how soon after a failed pull a changed config object, which may be a pull secret, lets it be tried again.
const pullAgain = 2 * time.Second

// retryConfig forgets the pauses of containers that could not be configured, and shortens those of pulls that may have lacked a secret.
func (w *worker) retryConfig() {
	for key, img := range w.images {
		if soon := img.FailedAt.Add(pullAgain); img.Failures > 0 && len(w.pod.Spec.ImagePullSecrets) > 0 && soon.Before(img.NotBefore) {
			img.NotBefore = soon
			w.images[key] = img
		}
	}
	for name, f := range w.fails {
		if f.Reason == ReasonCreateContainerConfigError {
			f.NotBefore = time.Time{}
			w.fails[name] = f
		}
	}
}

// input gathers what a decision depends on.
func (w *worker) input() plan.Input {
	return plan.Input{
		Pod: w.pod, Now: w.m.deps.Now(), Phase: w.phase, Stop: w.stop,
		Runtime: &w.view.runtime, Stale: w.stale, RuntimeError: w.away, RuntimeErrorSince: w.awaySince,
		Busy: w.busy, Volumes: w.volumeState(), Probes: w.probes, Images: w.images,
		SandboxFailure: w.box, Failures: w.fails, EndFailures: w.ends, Killed: w.killed, HookFailed: w.hookFailed, StartFailed: w.startFails, Eviction: w.order(), After: w.waitsFor(), Resize: w.resize,
		Previous: w.previous, MaxRestartDelay: w.m.cfg.MaxRestartDelay, Cleaned: w.cleaned, Surplus: w.surplus, Logged: w.logged,
	}
}

// order is the order to end, of evictd or to make room for another pod.
func (w *worker) order() *plan.Eviction {
	if w.eviction != nil {
		return w.eviction
	}
	return w.preempted
}

// waitsFor are the pods that have to end before this one may start. Once they have, nobody is asked any more.
func (w *worker) waitsFor() []string {
	if w.m.deps.Ended == nil {
		return nil
	}
	w.after = slices.DeleteFunc(w.after, w.m.deps.Ended)
	return w.after
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// orphan is a pod whose record vanished: it is to go.
func orphan(p *v1.Pod, now time.Time) *v1.Pod {
	if p.DeletionTimestamp != nil {
		return p
	}
	c := p.DeepCopy()
	seconds := int64(30)
	if s := c.Spec.TerminationGracePeriodSeconds; s != nil {
		seconds = *s
	}
	end := metaTime(now.Add(time.Duration(seconds) * time.Second))
	c.DeletionTimestamp, c.DeletionGracePeriodSeconds = &end, &seconds
	return c
}
