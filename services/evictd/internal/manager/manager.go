// Package manager is evictd's loop: measure, derive conditions, and under pressure reclaim or order one eviction.
//
// # How it works
//
// One goroutine (Run) owns the state. It measures each 10 s, each second when memory gets short, four times a second
// close to a threshold or after the kernel reported that processes wait for memory, and at once when told to. Slow work
// (removing images, measuring pods) runs outside, one at a time, and reports back; meanwhile the node is measured on.
//
// # Guarantees
//
//   - One order at a time. An order stays on the bus until its pod has ended or is gone; the next one waits for that, or
//     until the pod has been terminating for 30 s, and a second for the kernel to take back what it had. Without syncd nothing is ordered beyond the first.
//   - Fresh numbers. Before an order the pods are measured and then the node once more: what was true before does not count.
//   - Conditions are written when they change, and each 10 s at most.
//   - Crash-only. Orders and conditions are read back from the bus at the start.
//   - Bounds. Pods of one node; a goroutine beside the loop, its work bounded by time.
package manager

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/podplane/podplane/internal/events"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/evictd/internal/feed"
	"github.com/podplane/podplane/services/evictd/internal/policy"
)

// Sensors measure the node.
type Sensors interface {
	Read() []policy.Observation
	OneFS() bool
}

// Pods are the node's pods.
type Pods interface {
	List() []feed.Pod
	Get(uid string) (feed.Pod, bool)
	// Synced says whether the list is complete: before, nothing is concluded from a pod that is not in it.
	Synced() bool
}

// Usage measures pods.
type Usage interface {
	Collect(ctx context.Context, pods []feed.Pod, disk bool) ([]policy.Pod, error)
}

// Reclaimer frees disk without evicting.
type Reclaimer interface {
	DeleteUnused(ctx context.Context) (freed int64, err error)
}

// Records stores conditions and orders; nothing of it blocks.
type Records interface {
	SetCondition(*podplanev1.ConditionRecord)
	SetOrder(context.Context, *podplanev1.EvictionRecord)
	RemoveOrder(uid string)
}

// Recorder records Events.
type Recorder interface {
	AnnotatedEvent(ctx context.Context, annotations map[string]string, ref events.ObjectRef, eventType, reason, messageFmt string, args ...any)
}

// Deps is what the manager works with.
type Deps struct {
	Sensors   Sensors
	Pods      Pods
	Usage     Usage
	Reclaimer Reclaimer
	Records   Records
	Events    Recorder
}

// Options of a Manager.
type Options struct {
	Node       string
	Thresholds []policy.Threshold
	// Transition is how long a condition stays True after its last crossed threshold.
	Transition time.Duration
	// Orders and Conditions are what an earlier process left on the bus.
	Orders     []*podplanev1.EvictionRecord
	Conditions []*podplanev1.ConditionRecord
	Log        *slog.Logger
	Registry   prometheus.Registerer
}

// Times of the loop.
const (
	restPeriod   = 10 * time.Second
	watchPeriod  = time.Second
	closePeriod  = 250 * time.Millisecond
	alertFor     = 10 * time.Second // after the kernel's word
	heartbeat    = 9 * time.Second
	hangsAfter   = 30 * time.Second // an obeyed order whose pod does not end holds no other up
	reclaimPause = time.Minute      // before images are removed again for the same pressure
	settlePause  = time.Second      // after a pod has ended, before its memory is counted as still in use
	againPause   = time.Second      // before pods are measured again when no order came of it
	unmetPause   = 10 * time.Second // the same, when no pod can go
)

// Manager is the loop. Make one with New and run it once.
type Manager struct {
	opts    Options
	deps    Deps
	metrics *metrics
	kick    chan struct{}
	results chan func(context.Context)

	// What follows belongs to Run.
	state      policy.State
	busy       bool // slow work is under way
	alertUntil time.Time
	reclaimed  time.Time
	notBefore  time.Time              // pods are measured again
	crossed    map[policy.Signal]bool // told in Events
	silent     map[policy.Signal]string
	unmet      map[policy.Signal]bool

	mu         sync.Mutex // also for those who ask
	orders     map[string]*podplanev1.EvictionRecord
	conditions map[string]*podplanev1.ConditionRecord
	signals    []*podplanev1.Signal
	alert      bool
}

// New makes a manager that goes on from what is on the bus.
func New(deps Deps, opts Options) *Manager {
	m := &Manager{
		opts: opts, deps: deps, metrics: newMetrics(opts.Registry), kick: make(chan struct{}, 1), results: make(chan func(context.Context)),
		state: policy.State{LastCrossed: make(map[string]time.Time)}, crossed: make(map[policy.Signal]bool),
		silent: make(map[policy.Signal]string), unmet: make(map[policy.Signal]bool),
		orders: make(map[string]*podplanev1.EvictionRecord), conditions: make(map[string]*podplanev1.ConditionRecord),
	}
	for _, o := range opts.Orders {
		m.orders[o.GetUid()] = o
	}
	for _, c := range opts.Conditions {
		m.conditions[c.GetType()] = c
		if c.GetStatus() == policy.True {
			m.state.LastCrossed[c.GetType()] = c.GetHeartbeat().AsTime()
		}
	}
	return m
}

// PodsChanged says that pods or their phases changed. It never blocks.
func (m *Manager) PodsChanged() {
	m.mu.Lock()
	open := len(m.orders) > 0
	m.mu.Unlock()
	if open {
		m.wake()
	}
}

// MemoryStalls says that the kernel reported processes waiting for memory. It never blocks.
func (m *Manager) MemoryStalls() {
	m.mu.Lock()
	m.alert = true
	m.mu.Unlock()
	m.wake()
}

func (m *Manager) wake() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// Run measures and acts until the context ends.
func (m *Manager) Run(ctx context.Context) error {
	var work sync.WaitGroup
	defer work.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-m.kick:
		case apply := <-m.results:
			m.busy = false
			apply(ctx)
		}
		timer.Reset(m.round(ctx, &work))
	}
}

// round measures, writes the conditions, and starts what must be done. It returns when to measure next.
func (m *Manager) round(ctx context.Context, work *sync.WaitGroup) time.Duration {
	now := time.Now()
	m.mu.Lock()
	if m.alert {
		m.alert, m.alertUntil = false, now.Add(alertFor)
	}
	m.mu.Unlock()
	m.settle(ctx, now)
	observations, crossed := m.observe(ctx, now)
	m.act(ctx, work, crossed, now)
	return m.pace(observations, crossed, now)
}

// observe measures the node and says what follows: conditions, Events, what is crossed.
func (m *Manager) observe(ctx context.Context, now time.Time) ([]policy.Observation, []policy.Crossed) {
	observations := m.deps.Sensors.Read()
	next, conditions, crossed := policy.Observe(m.state, observations, m.opts.Thresholds, m.opts.Transition, now)
	m.state = next
	m.noteErrors(ctx, observations)
	m.setSignals(observations)
	m.setConditions(ctx, conditions, now)
	m.noteCrossed(ctx, crossed)
	return observations, crossed
}

// pace is the time to the next measurement.
func (m *Manager) pace(observations []policy.Observation, crossed []policy.Crossed, now time.Time) time.Duration {
	if len(crossed) > 0 || now.Before(m.alertUntil) {
		return closePeriod
	}
	pace := restPeriod
	for _, t := range m.opts.Thresholds {
		if t.Signal != policy.MemoryAvailable && t.Signal != policy.PIDAvailable {
			continue
		}
		for _, o := range observations {
			if o.Signal != t.Signal || o.Err != nil {
				continue
			}
			switch v := t.Value(o.Capacity); {
			case o.Available < 2*v:
				return closePeriod
			case o.Available < 10*v || o.Available < o.Capacity/5:
				pace = watchPeriod
			}
		}
	}
	return pace
}

// act starts slow work when something is crossed and nothing is under way: first what frees disk without evicting, then
// the measurement of the pods, of which an order may come.
func (m *Manager) act(ctx context.Context, work *sync.WaitGroup, crossed []policy.Crossed, now time.Time) {
	if m.busy || len(crossed) == 0 || now.Before(m.notBefore) || m.outstanding(now).Blocked || !m.deps.Pods.Synced() {
		return
	}
	signal := crossed[0].Threshold.Signal
	if signal.IsDisk() && now.Sub(m.reclaimed) >= reclaimPause && m.imagesHelp(signal) {
		m.reclaimed = now
		m.start(ctx, work, func(ctx context.Context) func(context.Context) {
			freed, err := m.deps.Reclaimer.DeleteUnused(ctx)
			return func(ctx context.Context) {
				m.opts.Log.InfoContext(ctx, "removed unused images under disk pressure", "signal", string(signal), "freed", freed, "error", err)
			}
		})
		return
	}
	m.start(ctx, work, func(ctx context.Context) func(context.Context) {
		pods, err := m.deps.Usage.Collect(ctx, m.deps.Pods.List(), signal.IsDisk())
		return func(ctx context.Context) { m.choose(ctx, pods, err) }
	})
}

// imagesHelp says whether removing images relieves the signal: not when images are elsewhere.
func (m *Manager) imagesHelp(s policy.Signal) bool {
	return s == policy.ImagefsAvailable || s == policy.ImagefsInodesFree || m.deps.Sensors.OneFS()
}

// start runs slow work beside the loop; what it returns runs in the loop.
func (m *Manager) start(ctx context.Context, work *sync.WaitGroup, f func(context.Context) func(context.Context)) {
	m.busy = true
	work.Go(func() {
		apply := f(ctx)
		select {
		case m.results <- apply:
		case <-ctx.Done():
		}
	})
}

// choose orders an eviction if the node, measured again, still has to.
func (m *Manager) choose(ctx context.Context, pods []policy.Pod, collectErr error) {
	now := time.Now()
	if collectErr != nil {
		m.opts.Log.WarnContext(ctx, "statistics of pods are incomplete", "error", collectErr)
	}
	_, crossed := m.observe(ctx, now)
	order, unmet := policy.Choose(m.state, crossed, pods, m.outstanding(now), m.deps.Sensors.OneFS())
	if order != nil {
		m.order(ctx, order, now)
		return
	}
	m.notBefore = now.Add(againPause)
	if unmet == nil {
		return
	}
	m.notBefore = now.Add(unmetPause)
	if !m.unmet[unmet.Threshold.Signal] {
		m.unmet[unmet.Threshold.Signal] = true
		m.opts.Log.WarnContext(ctx, "under pressure, but no pod can be evicted", "threshold", unmet.Threshold.String())
	}
}
