package manager

import (
	"context"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/podplane/podplane/internal/events"
	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/prober/internal/probe"
	"github.com/podplane/podplane/services/prober/internal/verdict"
)

// startDue starts every probe whose time has come, as far as there is room.
func (m *Manager) startDue() {
	now := time.Now()
	for {
		t, due, ok := m.queue.Take(now)
		if !ok {
			return
		}
		if !m.held(t.pod.pod.UID) {
			m.queue.Set(t, now.Add(heldAgain)) // Lose is on its way, or the lease comes back
			continue
		}
		t.busy, t.due = true, due
		if !m.room(t) {
			m.waiting = append(m.waiting, t)
			continue
		}
		m.start(t)
	}
}

func (m *Manager) room(t *task) bool {
	return m.running < MaxRunning && (t.probe.Spec.Exec == nil || m.execs < MaxExec)
}

// startWaiting starts what was due when there was no room, the longest waiting first.
func (m *Manager) startWaiting() {
	left := m.waiting[:0]
	for _, t := range m.waiting {
		switch {
		case t.gone:
		case t.machine.Next().IsZero(): // not to be made any more
			t.busy = false
		case m.room(t):
			m.start(t)
		default:
			left = append(left, t)
		}
	}
	clear(m.waiting[len(left):])
	m.waiting = left
}

// attempt is one probe under way, with all that its goroutine may look at.
type attempt struct {
	spec    *probe.Spec
	target  probe.Target
	due     time.Time
	started time.Time
	late    time.Duration
	result  probe.Result
	took    time.Duration
}

func (m *Manager) start(t *task) {
	m.count(t, 1)
	t.probing = t.machine.ContainerID()
	a := &attempt{spec: t.probe.Spec, due: t.due, target: probe.Target{PodUID: t.pod.pod.UID, ContainerID: t.probing}}
	if s := m.status[t.pod.pod.UID]; s != nil {
		a.target.PodIP = s.PodIP
	}
	var ctx context.Context
	ctx, t.cancel = context.WithCancel(m.ctx)
	m.wg.Go(func() {
		m.attempt(ctx, a)
		m.do(func() { m.settle(t, a) })
	})
}

func (m *Manager) count(t *task, n int) {
	m.running += n
	if t.probe.Spec.Exec != nil {
		m.execs += n
	}
}

// attempt makes a probe, and makes it again when it was this process that was late.
func (m *Manager) attempt(ctx context.Context, a *attempt) {
	a.started = time.Now()
	a.late = a.started.Sub(a.due)
	m.late.observe(a.started, a.late)
	m.cfg.Metrics.lateness.Observe(a.late.Seconds())
	a.result = m.cfg.Prober.Probe(ctx, a.spec, a.target)
	if a.result.TimedOut && m.starved(a) && ctx.Err() == nil {
		m.cfg.Metrics.repeated.Inc()
		a.result = m.cfg.Prober.Probe(ctx, a.spec, a.target)
	}
	a.took = time.Since(a.started)
}

// starved says whether this process could not run as it should while the probe was due or under way: any probe was made
// late by half of this one's timeout, or its timer was.
func (m *Manager) starved(a *attempt) bool {
	limit := a.spec.Timeout / 2
	return a.late > limit || a.result.Overrun > limit || m.late.recent(time.Now()) > limit
}

// settle takes a probe's result.
func (m *Manager) settle(t *task, a *attempt) {
	t.cancel()
	t.cancel, t.busy = nil, false
	m.count(t, -1)
	m.startWaiting()
	if t.gone {
		return
	}
	if !m.held(t.pod.pod.UID) {
		m.plan(t)
		return
	}
	about := t.probing
	if about == t.machine.ContainerID() && m.ctx.Err() == nil {
		m.tell(t, a)
	}
	changed := t.machine.Ran(verdict.Result{ContainerID: about, Due: a.due, Outcome: a.result.Outcome}, time.Now())
	if changed {
		m.publish(t, a)
	}
	if changed && t.probe.Params.Kind == verdict.Startup {
		m.observe(t.pod) // the others may begin
		return
	}
	m.plan(t)
}

// tell counts the result, and makes an Event of one that people should know.
func (m *Manager) tell(t *task, a *attempt) {
	r := &a.result
	m.cfg.Metrics.observe(t, r.Outcome, a.took)
	kind := title(t.probe.Params.Kind)
	switch {
	case r.Err != nil:
		m.event(t, "Unhealthy", "%s probe errored and resulted in unknown state: %v", kind, r.Err)
	case r.Outcome == verdict.Failure && t.machine.Cold():
		// It has just started; the next probe is near.
	case r.Outcome == verdict.Failure:
		m.event(t, "Unhealthy", "%s probe failed: %s", kind, r.Output)
	case r.Warning:
		m.event(t, "ProbeWarning", "%s probe warning: %s", kind, r.Output)
	}
}

func (m *Manager) event(t *task, reason, format string, args ...any) {
	p := t.pod.pod
	ref := events.Pod(p.Namespace, p.Name, p.UID, t.probe.FieldPath)
	ctx := telemetry.ContextWithContainer(podContext(m.ctx, p), t.probe.Container)
	m.cfg.Events.EventContext(ctx, ref, events.Warning, reason, format, args...)
}

func (m *Manager) publish(t *task, a *attempt) {
	r := newRecord(m.cfg.Node, t)
	r.Result, r.Output, r.InARow = t.machine.Verdict(), cut(a.result.Output), uint32(t.machine.InARow())
	r.ObservedAt = timestamppb.New(a.started.Add(a.took))
	t.record = r
	ctx := telemetry.ContextWithContainer(podContext(m.ctx, t.pod.pod), t.probe.Container)
	if r.Result == verdict.Success && t.probe.Params.Kind == verdict.Readiness && t.succeeded != r.ContainerId {
		t.succeeded = r.ContainerId
		var end func()
		ctx, end = firstSuccess(ctx, t, a)
		defer end()
	}
	if r.Result == verdict.Failure {
		var end func()
		ctx, end = failure(ctx, t, a)
		defer end()
	}
	m.cfg.Writer.SetContext(ctx, t.key, r)
	m.cfg.Log.DebugContext(ctx, "new verdict", "kind", KindName(r.Kind), "result", r.Result.String())
}

func newRecord(node string, t *task) *podplanev1.ProbeRecord {
	p := t.pod.pod
	return &podplanev1.ProbeRecord{
		Schema: 1, Node: node, Uid: p.UID, Namespace: p.Namespace, Name: p.Name, Trace: p.Trace,
		Container: t.probe.Container, Kind: t.probe.Params.Kind, ContainerId: t.machine.ContainerID(),
	}
}

// current is the record of a probe as it is known now.
func (m *Manager) current(t *task) *podplanev1.ProbeRecord {
	if t.record != nil && t.record.ContainerId == t.machine.ContainerID() {
		return t.record
	}
	r := newRecord(m.cfg.Node, t)
	r.Result = verdict.Unknown
	return r
}

// cut keeps what a record has room for.
func cut(s string) string {
	if len(s) <= maxOutput {
		return s
	}
	end := maxOutput
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}
