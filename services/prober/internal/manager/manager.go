// Package manager runs the probes of a node's pods.
//
// One goroutine, Run, owns every probe's state machine (package verdict) and the queue of what is due when (package
// schedule): a probe at rest costs a few hundred bytes and neither goroutine nor timer. A probe that is made has a
// goroutine of its own for that time, and at most one is under way for each; there are at most MaxRunning, of which at
// most MaxExec run commands. What is learnt from the bus arrives through methods that wait when more than 256 things are
// waiting already: watchers are held back, nothing is lost.
//
// How late a probe is made is measured. A probe to which no answer came in time, while this process itself could not run
// as it should, is made once more before it counts: that the prober was late is not that the application failed.
//
// Verdicts, not results, are handed to the writer: the first one on a container, and each that differs from the one
// before. The writer keeps them while the bus is away.
package manager

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/events"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/prober/internal/probe"
	"github.com/podplane/podplane/services/prober/internal/schedule"
	"github.com/podplane/podplane/services/prober/internal/verdict"
)

const (
	// MaxRunning is how many probes are under way at most, MaxExec how many of them run commands.
	MaxRunning = 1024
	MaxExec    = 128

	inboxSize = 256
	// stopTimeout is how long Run waits at its end for probes under way. Commands may take longer; they are left.
	stopTimeout = 2 * time.Second
	maxOutput   = 1 << 10
)

var errEnded = fault.New(fault.Unavailable, "prober is stopping")

// Prober makes one probe; *probe.Prober is one.
type Prober interface {
	Probe(ctx context.Context, s *probe.Spec, t probe.Target) probe.Result
}

// Writer takes the records; *bus.Writer is one.
type Writer interface {
	SetContext(ctx context.Context, key string, v *podplanev1.ProbeRecord)
	Remove(key string)
}

// Config is what a Manager needs.
type Config struct {
	Node   string
	Prober Prober
	Writer Writer
	Events events.Sink
	Log    *slog.Logger
	// Metrics may be nil.
	Metrics *Metrics
	// ShardOf, when not nil, cuts the pods into shards: only the pods of those that were gained are probed, and only while
	// Holds says that the shard is held at this moment.
	ShardOf func(uid string) int
	Holds   func(shard int) bool
	// Spread gives a probe its place in its period, in [0,1); nil is random.
	Spread func() float64
}

// Manager owns the probes.
type Manager struct {
	cfg    Config
	inbox  chan func()
	ended  chan struct{}
	synced atomic.Bool
	late   latenessMonitor

	// The rest belongs to Run.
	ctx      context.Context // of probes
	pods     map[string]*podEntry
	others   map[string]*Pod // pods with probes of shards that other replicas have
	mine     map[int]bool
	status   map[string]*Status
	restored map[string]*podplanev1.ProbeRecord // of an earlier process, by key
	queue    *schedule.Queue[*task]
	waiting  []*task // due, but there is no room
	running  int
	execs    int
	timer    *time.Timer
	armed    time.Time
	wg       sync.WaitGroup
}

// New makes a manager; Run does the work.
func New(cfg Config) *Manager {
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics()
	}
	if cfg.Spread == nil {
		cfg.Spread = rand.Float64
	}
	return &Manager{
		cfg: cfg, inbox: make(chan func(), inboxSize), ended: make(chan struct{}),
		pods: map[string]*podEntry{}, others: map[string]*Pod{}, mine: map[int]bool{}, status: map[string]*Status{}, restored: map[string]*podplanev1.ProbeRecord{},
		queue: schedule.New[*task](),
	}
}

// Run works until ctx ends. It runs once.
func (m *Manager) Run(ctx context.Context) error {
	probeCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	m.ctx = probeCtx
	m.timer = time.NewTimer(time.Hour)
	defer m.timer.Stop()
	for ctx.Err() == nil {
		select {
		case f := <-m.inbox:
			f()
		case <-m.timer.C:
			m.armed = time.Time{}
			m.startDue()
		case <-ctx.Done():
		}
		m.arm()
	}
	cancel()
	close(m.ended)
	done := make(chan struct{})
	go func() {
		m.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(stopTimeout):
		m.cfg.Log.Warn("probes do not end; left behind")
	}
	return ctx.Err()
}

func (m *Manager) arm() {
	next := m.queue.Next()
	if next.Equal(m.armed) {
		return
	}
	m.armed = next
	if next.IsZero() {
		m.timer.Stop()
		return
	}
	m.timer.Reset(time.Until(next))
}

// do runs f on the goroutine that owns the state, soon. After the end of Run nothing happens.
func (m *Manager) do(f func()) {
	select {
	case m.inbox <- f:
	case <-m.ended:
	}
}

// Restore takes a verdict that an earlier process has recorded. It must be called before the pod is seen.
func (m *Manager) Restore(key string, r *podplanev1.ProbeRecord) {
	m.do(func() { m.restored[key] = r })
}

// PodSeen takes a pod.
func (m *Manager) PodSeen(p *Pod) {
	m.do(func() {
		e := m.pods[p.UID]
		if e == nil {
			if len(p.Probes) == 0 {
				return
			}
			if !m.owns(p.UID) {
				m.others[p.UID] = p
				return
			}
			e = m.add(p)
		}
		e.pod.Ending = p.Ending
		m.observe(e)
	})
}

// PodGone says that there is no record of the pod.
func (m *Manager) PodGone(uid string) {
	m.do(func() {
		delete(m.others, uid)
		if e := m.pods[uid]; e != nil {
			m.remove(e)
		}
	})
}

// StatusSeen takes a pod's status.
func (m *Manager) StatusSeen(uid string, s *Status) {
	m.do(func() {
		m.status[uid] = s
		if e := m.pods[uid]; e != nil {
			m.observe(e)
		}
	})
}

// StatusGone says that there is no status of the pod: what was known of its containers is not known any more.
func (m *Manager) StatusGone(uid string) {
	m.do(func() {
		delete(m.status, uid)
		if e := m.pods[uid]; e != nil {
			m.observe(e)
		}
	})
}

// Synced says that all pods were read: verdicts on others are removed.
func (m *Manager) Synced() {
	m.do(func() {
		for key := range m.restored {
			m.cfg.Writer.Remove(key)
		}
		m.restored = map[string]*podplanev1.ProbeRecord{}
		m.synced.Store(true)
	})
}

// IsSynced says whether all pods were read.
func (m *Manager) IsSynced() bool { return m.synced.Load() }

// Records returns the verdict of every probe of the pods that match accepts; one without a verdict yet is UNKNOWN.
func (m *Manager) Records(ctx context.Context, match func(namespace, name, uid string) bool) ([]*podplanev1.ProbeRecord, error) {
	var list []*podplanev1.ProbeRecord
	err := m.ask(ctx, func() {
		for _, e := range m.pods {
			if !match(e.pod.Namespace, e.pod.Name, e.pod.UID) {
				continue
			}
			for _, t := range e.tasks {
				list = append(list, m.current(t))
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// ask runs f on the goroutine that owns the state and waits for it.
func (m *Manager) ask(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case m.inbox <- func() { f(); close(done) }:
	case <-m.ended:
		return errEnded
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-done:
		return nil
	case <-m.ended:
		return errEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// add makes the tasks of a pod that was not known.
func (m *Manager) add(p *Pod) *podEntry {
	e := &podEntry{pod: p}
	m.pods[p.UID] = e
	for _, pr := range p.Probes {
		t := &task{pod: e, probe: pr, key: bus.ProbeKey(m.cfg.Node, p.UID, pr.Container, KindName(pr.Params.Kind))}
		pr.Params.Spread = m.cfg.Spread()
		t.machine = verdict.New(pr.Params)
		if r := m.restored[t.key]; r != nil {
			delete(m.restored, t.key)
			t.machine.Restore(r.GetContainerId(), r.GetResult())
			t.record = r
			if r.GetResult() == verdict.Success {
				t.succeeded = r.GetContainerId()
			}
		}
		e.tasks = append(e.tasks, t)
	}
	return e
}

func (m *Manager) remove(e *podEntry) {
	m.drop(e)
	for _, t := range e.tasks {
		if t.record != nil {
			m.cfg.Writer.Remove(t.key)
		}
	}
}

// drop ends a pod's probes and leaves its verdicts.
func (m *Manager) drop(e *podEntry) {
	delete(m.pods, e.pod.UID)
	for _, t := range e.tasks {
		m.queue.Set(t, time.Time{})
		t.gone = true
		if t.cancel != nil {
			t.cancel()
		}
	}
	m.cfg.Metrics.forget(e.pod)
}

// observe tells the pod's machines what is known now.
func (m *Manager) observe(e *podEntry) {
	now := time.Now()
	s := m.status[e.pod.UID]
	for _, t := range e.tasks {
		t.machine.Observe(e.container(t, s), now)
		if t.cancel != nil && t.probing != t.machine.ContainerID() {
			t.cancel() // nobody waits for the answer any more
		}
		m.plan(t)
	}
}

// plan puts the task where it belongs in the queue. While a probe is under way it is not in it.
func (m *Manager) plan(t *task) {
	if !t.busy && !t.gone {
		m.queue.Set(t, t.machine.Next())
	}
}
