package relist

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/internal/telemetry"
	"github.com/podplane/podplane/services/pleg/internal/diff"
)

// Runtime is what the loop asks the container runtime.
type Runtime interface {
	cri.EventSource
	ListPods(ctx context.Context, filter cri.Filter) ([]pod.RuntimePod, error)
	PodStatus(ctx context.Context, uid string) (pod.RuntimePod, error)
}

// Sink takes events.
type Sink interface {
	// Room says whether events are taken now.
	Room() bool
	// Publish takes events of one pod, in order, without waiting.
	Publish(events []diff.Event)
}

// Options of a Loop. Zero fields have defaults.
type Options struct {
	// Period is the time between relists beside a working stream, default 60 s; FallbackPeriod without one, default 1 s.
	Period, FallbackPeriod time.Duration
	// InspectTimeout bounds one inspection, default 30 s.
	InspectTimeout time.Duration
	// StuckAfter is the age at which an inspection is reported, default 3 s.
	StuckAfter time.Duration
	// Parallel is how many inspections are under way at once, default 16.
	Parallel int
	// OnStream is told when the stream is lost (with the reason) or opened (nil). It must not block.
	OnStream func(err error)
	// OnAnswer is told of each answer of the runtime and of each event. It must not block.
	OnAnswer func(at time.Time)
	// OnStuck is told which pods' inspections hang, whenever that changes. It must not block.
	OnStuck  func([]Stuck)
	Log      *slog.Logger
	Registry prometheus.Registerer
}

// Stuck is a pod whose status can't be read.
type Stuck struct {
	Pod   diff.Ref
	Since time.Time
	// Err is what the last inspection said; nil while the first one is under way.
	Err error
}

const (
	queueSize     = 256
	keepRemoved   = 10 * time.Minute
	retryMin      = time.Second
	retryMax      = 10 * time.Second
	streamMin     = 100 * time.Millisecond
	streamMax     = 5 * time.Second
	streamAbsent  = time.Minute // before a runtime without events is asked again
	settlePeriod  = time.Second // before a relist that follows up on another one
	stuckLogEvery = time.Minute
)

func (o *Options) setDefaults() {
	setDefault(&o.Period, time.Minute)
	setDefault(&o.FallbackPeriod, time.Second)
	setDefault(&o.InspectTimeout, 30*time.Second)
	setDefault(&o.StuckAfter, 3*time.Second)
	setDefault(&o.Parallel, 16)
	if o.OnStream == nil {
		o.OnStream = func(error) {}
	}
	if o.OnAnswer == nil {
		o.OnAnswer = func(time.Time) {}
	}
	if o.OnStuck == nil {
		o.OnStuck = func([]Stuck) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

func setDefault[T int | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

// Loop watches the runtime. Make one with New and run it once.
type Loop struct {
	opts    Options
	rt      Runtime
	sink    Sink
	horizon time.Time
	metrics *metrics

	in chan input

	// What follows belongs to Run's goroutine.
	pods   map[string]*entry
	owners map[string]string // pod UID by the ID of a sandbox or container
	// waiting holds pods that are to be inspected when there is room; inflight the inspections that are under way.
	waiting   []string
	inflight  map[string]time.Time
	streaming bool
	follow    bool          // relist again soon, also beside a working stream
	pace      time.Duration // before the next relist beside a working stream: grows while relists find nothing
	listing   bool
	listAgain bool
	listErr   error
	next      time.Time // of the next relist
	lastList  time.Time
	stuck     map[string]*stuckPod
}

// entry is what is known of one pod.
type entry struct {
	record  diff.Pod
	queued  bool      // waiting or under way
	again   bool      // inspect again when the inspection under way has ended
	retryAt time.Time // zero: no inspection is due
	backoff time.Duration
}

type stuckPod struct {
	Stuck
	loggedAt time.Time
}

// input is one thing that the owner is told; exactly one field is set.
type input struct {
	event   *cri.Event
	stream  *streamChange
	list    *listResult
	inspect *inspectResult
}

type streamChange struct{ err error }

type listResult struct {
	pods       []pod.RuntimePod
	err        error
	began, end time.Time
}

type inspectResult struct {
	uid        string
	pod        pod.RuntimePod
	err        error
	began, end time.Time
}

// New makes a loop that goes on from what was published before.
func New(rt Runtime, sink Sink, published map[string]diff.Pod, horizon time.Time, opts Options) *Loop {
	opts.setDefaults()
	l := &Loop{
		opts: opts, rt: rt, sink: sink, horizon: horizon, metrics: newMetrics(opts.Registry), in: make(chan input, queueSize),
		pods: make(map[string]*entry), owners: make(map[string]string),
		inflight: make(map[string]time.Time), stuck: make(map[string]*stuckPod),
	}
	for uid, p := range published {
		l.pods[uid] = &entry{record: p}
		for id := range p.Objects {
			l.owners[id] = uid
		}
	}
	return l
}

// Run watches until the context ends. It returns when all that it started has ended.
func (l *Loop) Run(ctx context.Context) error {
	g := &group{}
	defer g.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g.Go(func() { l.watch(ctx) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case in := <-l.in:
			l.take(in)
		case <-timer.C:
		}
		now := time.Now()
		l.startList(ctx, g, now)
		l.startInspections(ctx, g, now)
		l.reportStuck(ctx, now)
		timer.Reset(time.Until(l.wake(now)))
	}
}

func (l *Loop) take(in input) {
	switch {
	case in.event != nil:
		l.onEvent(in.event, time.Now())
	case in.stream != nil:
		l.onStream(in.stream.err)
	case in.list != nil:
		l.onList(in.list)
	case in.inspect != nil:
		l.onInspect(in.inspect)
	}
}

func (l *Loop) send(ctx context.Context, in input) bool {
	select {
	case <-ctx.Done():
		return false
	case l.in <- in:
		return true
	}
}

// wake is when something is due although nobody says anything.
func (l *Loop) wake(now time.Time) time.Time {
	next := now.Add(time.Hour)
	if !l.listing {
		next = l.next
	}
	for _, e := range l.pods {
		if !e.retryAt.IsZero() && e.retryAt.Before(next) {
			next = e.retryAt
		}
	}
	for uid, began := range l.inflight {
		if _, known := l.stuck[uid]; known {
			continue
		}
		if t := began.Add(l.opts.StuckAfter); t.Before(next) {
			next = t
		}
	}
	if len(l.stuck) > 0 {
		next = minTime(next, now.Add(stuckLogEvery))
	}
	return next
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (l *Loop) onStream(err error) {
	l.streaming, l.follow = err == nil, err == nil
	l.next = time.Time{}
	if l.listing {
		l.listAgain = true
	}
	l.opts.OnStream(err)
}

// onEvent publishes from the payload, and has the pod inspected when the payload does not tell all.
func (l *Loop) onEvent(e *cri.Event, now time.Time) {
	l.metrics.seen(now)
	l.opts.OnAnswer(now)
	uid := e.PodUID()
	if uid == "" {
		uid = l.owners[e.ID]
	}
	if uid == "" {
		// A pod of somebody else, or one of ours of which the runtime could not tell: a list knows.
		if e.Type == cri.EventCreated || e.Type == cri.EventStarted {
			l.next = minTime(l.next, laterOf(now, l.lastList.Add(settlePeriod)))
		}
		return
	}
	obs := diff.Observation{Via: diff.ViaStream, At: now, Pod: pod.RuntimePod{UID: uid, ObservedAt: now, Containers: e.Containers}}
	if s := e.Sandbox; s != nil {
		obs.Pod.Namespace, obs.Pod.Name, obs.Pod.Sandboxes = s.Namespace, s.Name, []pod.Sandbox{*s}
	}
	if e.Type == cri.EventDeleted {
		obs.RemovedID, obs.RemovedAt = e.ID, e.At
	}
	obs.Pod.Sort()
	p := l.entry(uid)
	l.apply(p, obs)
	if p.record.Objects[e.ID].Phase < claimed(e.Type) {
		l.want(uid, p)
	}
}

func laterOf(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// claimed is the phase that an event of the type says its object has reached.
func claimed(t cri.EventType) diff.Phase {
	switch t {
	case cri.EventCreated:
		return diff.PhaseCreated
	case cri.EventStarted:
		return diff.PhaseRunning
	case cri.EventStopped:
		return diff.PhaseExited
	}
	// The object of a deletion is either removed by now, or was never known.
	return diff.PhaseNone
}

func (l *Loop) entry(uid string) *entry {
	p := l.pods[uid]
	if p == nil {
		p = &entry{record: diff.Pod{Ref: diff.Ref{UID: uid}}}
		l.pods[uid] = p
	}
	return p
}

// apply compares and hands the events on. Without room the record stays where it is, and the pod is looked at again.
func (l *Loop) apply(p *entry, obs diff.Observation) {
	if !l.sink.Room() {
		l.retry(p, obs.At)
		return
	}
	next, events, again := diff.Diff(p.record, obs, l.horizon)
	p.record = next
	for id, o := range next.Objects {
		if o.Phase == diff.PhaseRemoved {
			delete(l.owners, id)
		} else {
			l.owners[id] = next.UID
		}
	}
	if len(events) > 0 {
		l.sink.Publish(events)
	}
	if again {
		l.want(next.UID, p)
	}
}

// retry has the pod inspected after a while that grows.
func (l *Loop) retry(p *entry, now time.Time) {
	p.backoff = min(max(2*p.backoff, retryMin), retryMax)
	p.retryAt = now.Add(p.backoff)
}

// want has the pod inspected as soon as there is room.
func (l *Loop) want(uid string, p *entry) {
	p.retryAt = time.Time{}
	if p.queued {
		p.again = true
		return
	}
	p.queued, p.again = true, false
	l.waiting = append(l.waiting, uid)
}

// about gives ctx with a pod, and with its trace as far as one of its objects says it.
func (l *Loop) about(ctx context.Context, ref diff.Ref) context.Context {
	if p := l.pods[ref.UID]; p != nil {
		for _, o := range p.record.Objects {
			if o.Traceparent != "" {
				ctx = telemetry.ContextWithTraceparent(ctx, o.Traceparent)
				break
			}
		}
	}
	return telemetry.ContextWithAbout(ctx, telemetry.About{PodUID: ref.UID, Namespace: ref.Namespace, PodName: ref.Name})
}
