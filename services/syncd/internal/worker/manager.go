package worker

import (
	"context"
	"log/slog"
	"maps"
	"runtime"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace/noop"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// Manager owns the workers. Its methods may be called at any time from any goroutine and do not block.
type Manager struct {
	cfg   Config
	deps  Deps
	log   *slog.Logger
	slots chan struct{}

	mu      sync.Mutex
	ctx     context.Context // nil until Run
	mine    map[int]bool    // the shards that were gained
	workers map[string]*worker
	// news for pods that are not known (yet): volumes, probes and evictions may arrive before their pod.
	volumes   map[string]*podplanev1.VolumesRecord
	probes    map[string]map[plan.ProbeKey]plan.Verdict
	evictions map[string]*plan.Eviction
	ending    map[string]bool // orphans that are being ended
	resizes   *queue
	wg        sync.WaitGroup
	synced    chan struct{}
	syncOnce  sync.Once
	look      chan struct{}
}

// New makes a Manager. It does nothing until Run.
func New(cfg Config, deps Deps, log *slog.Logger) *Manager {
	if cfg.StartSlots <= 0 {
		cfg.StartSlots = 2*runtime.NumCPU() + 2
	}
	if cfg.Resync <= 0 {
		cfg.Resync = time.Minute
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Tracer == nil {
		deps.Tracer = noop.NewTracerProvider().Tracer("")
	}
	return &Manager{
		cfg: cfg, deps: deps, log: log, resizes: newQueue(deps.Room), slots: make(chan struct{}, cfg.StartSlots),
		mine: make(map[int]bool), workers: make(map[string]*worker), volumes: make(map[string]*podplanev1.VolumesRecord),
		probes: make(map[string]map[plan.ProbeKey]plan.Verdict), evictions: make(map[string]*plan.Eviction), ending: make(map[string]bool),
		synced: make(chan struct{}), look: make(chan struct{}, 1),
	}
}

// Run starts the workers and runs until ctx ends; then it waits for them. Pods go on running.
func (m *Manager) Run(ctx context.Context) error {
	m.mu.Lock()
	m.ctx = ctx
	for _, w := range m.workers {
		m.launch(w)
	}
	m.mu.Unlock()
	m.resync(ctx)
	m.mu.Lock()
	m.ctx = nil
	m.mu.Unlock()
	m.wg.Wait()
	return nil
}

// launch starts a worker's goroutine. mu is held.
func (m *Manager) launch(w *worker) {
	ctx, cancel := context.WithCancel(m.ctx)
	w.cancel = cancel
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		defer close(w.done)
		defer cancel()
		w.run(ctx)
		m.resizes.forget(w.uid)
		if !w.over {
			return
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.workers[w.uid] != w {
			return // it was given up
		}
		delete(m.workers, w.uid)
		m.deps.Metrics.pods(len(m.workers))
		if c, again := w.successor(); again && ctx.Err() == nil {
			m.begin(c)
		}
	}()
}

// begin makes and starts the worker of a pod. mu is held.
func (m *Manager) begin(c PodChange) {
	w := newWorker(m, c.UID, c)
	w.in = news{
		volumes: m.volumes[c.UID], volumesSet: true,
		probes: maps.Clone(m.probes[c.UID]), probesSet: true,
		eviction: m.evictions[c.UID], evictSet: true,
	}
	m.workers[c.UID] = w
	m.deps.Metrics.pods(len(m.workers))
	if m.ctx != nil {
		m.launch(w)
	}
}

// Pods returns the number of pods that have a worker.
func (m *Manager) Pods() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.workers)
}

// Known says whether the pod has a worker or is being ended as an orphan.
func (m *Manager) Known(uid string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.workers[uid] != nil || m.ending[uid]
}

// PodChanged hands in news about a desired pod. A pod that is new gets a worker.
func (m *Manager) PodChanged(c PodChange) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.owns(c.UID) {
		return
	}
	w := m.workers[c.UID]
	switch {
	case w == nil && c.Deleted:
	case w == nil:
		m.begin(c)
	case c.Deleted:
		w.post(func(n *news) { n.orphaned = true })
	default:
		w.post(func(n *news) { n.pod, n.trace, n.preempted = c.Pod, c.Trace, c.Preempted })
	}
}

// PodsSynced says that every desired pod has been handed in: what else runs under the node's name is an orphan.
func (m *Manager) PodsSynced() {
	m.syncOnce.Do(func() { close(m.synced) })
}

// VolumesChanged hands in volumed's record of a pod, nil when it is gone.
func (m *Manager) VolumesChanged(uid string, rec *podplanev1.VolumesRecord) {
	m.mu.Lock()
	defer m.mu.Unlock()
	set(m.volumes, uid, rec, rec != nil)
	if w := m.workers[uid]; w != nil {
		w.post(func(n *news) { n.volumes, n.volumesSet = rec, true })
	}
}

// ProbeChanged hands in the verdict of a probe, nil when it is gone.
func (m *Manager) ProbeChanged(uid string, key plan.ProbeKey, v *plan.Verdict) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.probes[uid]
	if v == nil {
		delete(all, key)
	} else {
		if all == nil {
			all = make(map[plan.ProbeKey]plan.Verdict)
		}
		all[key] = *v
	}
	set(m.probes, uid, all, len(all) > 0)
	if w := m.workers[uid]; w != nil {
		copied := maps.Clone(all)
		w.post(func(n *news) { n.probes, n.probesSet = copied, true })
	}
}

// EvictionChanged hands in an order to evict a pod, nil when it is withdrawn.
func (m *Manager) EvictionChanged(uid string, e *plan.Eviction) {
	m.mu.Lock()
	defer m.mu.Unlock()
	set(m.evictions, uid, e, e != nil)
	if w := m.workers[uid]; w != nil {
		w.post(func(n *news) { n.eviction, n.evictSet = e, true })
	}
}

func set[V any](all map[string]V, key string, v V, keep bool) {
	if keep {
		all[key] = v
	} else {
		delete(all, key)
	}
}

// Hint says that something may have happened to a pod.
func (m *Manager) Hint(uid string, h Hint) {
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
	if w != nil {
		w.hint(h)
	}
}

// ObjectsChanged says that a ConfigMap or Secret of the namespace changed: what failed for the lack of it is tried again.
func (m *Manager) ObjectsChanged(namespace string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.workers {
		if w.namespace == namespace {
			w.post(func(n *news) { n.retryConfig = true })
		}
	}
}

// RuntimeBack says that the runtime answers again.
func (m *Manager) RuntimeBack() {
	m.mu.Lock()
	for _, w := range m.workers {
		w.post(func(n *news) { n.retry = true })
	}
	m.mu.Unlock()
	select {
	case m.look <- struct{}{}:
	default:
	}
}

// slot waits for leave to start something in the runtime.
func (m *Manager) slot(ctx context.Context) (release func(), err error) {
	select {
	case m.slots <- struct{}{}:
		return func() { <-m.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// resync compares all pods with the runtime when the desired pods are known and then every Config.Resync.
func (m *Manager) resync(ctx context.Context) {
	select {
	case <-m.synced:
	case <-ctx.Done():
		return
	}
	ticker := time.NewTicker(m.cfg.Resync)
	defer ticker.Stop()
	for {
		m.compare(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-m.look:
		}
	}
}

func (m *Manager) compare(ctx context.Context) {
	list, err := m.deps.Observer.ListPods(ctx, cri.Filter{})
	if err != nil {
		if ctx.Err() == nil {
			m.log.WarnContext(ctx, "the runtime's pods can't be listed", slog.Any("error", err))
		}
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	listed := make(map[string]*pod.RuntimePod, len(list))
	for i := range list {
		listed[list[i].UID] = &list[i]
		if m.workers[list[i].UID] == nil && !m.ending[list[i].UID] && m.held(list[i].UID) && m.owns(list[i].UID) {
			m.endOrphan(ctx, &list[i])
		}
	}
	surplus := m.surplus(listed)
	for uid, w := range m.workers {
		seen := listed[uid]
		if seen == nil {
			seen = &pod.RuntimePod{UID: uid}
		}
		w.post(func(n *news) {
			n.results = append(n.results, func(w *worker) {
				w.surplus = surplus
				if !w.inspecting && !w.stale && !w.uncertain() && !w.view.agrees(seen) {
					w.inspectAgain = true
				}
			})
		})
	}
}

// surplus are the dead containers that are to go because all pods together have too many. mu is held.
func (m *Manager) surplus(listed map[string]*pod.RuntimePod) map[string]bool {
	if m.cfg.MaxDead == nil {
		return nil
	}
	var dead []plan.Dead
	for uid, seen := range listed {
		if w := m.workers[uid]; w != nil {
			dead = append(dead, plan.DeadOf(seen, !w.terminated.Load())...)
		}
	}
	ids := make(map[string]bool)
	for _, id := range plan.Surplus(dead, *m.cfg.MaxDead) {
		ids[id] = true
	}
	return ids
}
