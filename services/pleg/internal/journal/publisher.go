package journal

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/telemetry"
	"github.com/podplane/podplane/services/pleg/internal/diff"
)

const (
	spanPublish = "lifecycle.event.publish"

	defaultParallel   = 32
	defaultMaxPending = 16384

	retryMin = 20 * time.Millisecond
	retryMax = time.Second
)

// Stream is what the Publisher needs of a bus.Stream.
type Stream interface {
	Publish(ctx context.Context, m bus.Message) (seq uint64, duplicate bool, err error)
}

// Options of a Publisher. Zero fields have defaults.
type Options struct {
	Node string
	// Parallel is how many pods' events are under way at once, default 32.
	Parallel int
	// MaxPending is how many events may wait, default 16384.
	MaxPending int
	Log        *slog.Logger
	Registry   prometheus.Registerer
}

// Publisher publishes events in the order of each pod.
type Publisher struct {
	stream  Stream
	opts    Options
	metrics *metrics

	mu      sync.Mutex
	ctx     context.Context // of Run
	running bool            // Run is under way and its context is not done
	queues  map[string]*queue
	ready   []string // pods with events and no goroutine
	workers int
	pending int
	failing bool
	wg      sync.WaitGroup
}

type queue struct {
	events []diff.Event
	busy   bool // a goroutine or the list of ready pods has it
}

// NewPublisher makes a Publisher. Nothing is published before Run.
func NewPublisher(stream Stream, opts Options) *Publisher {
	if opts.Parallel <= 0 {
		opts.Parallel = defaultParallel
	}
	if opts.MaxPending <= 0 {
		opts.MaxPending = defaultMaxPending
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	p := &Publisher{stream: stream, opts: opts, queues: make(map[string]*queue)}
	p.metrics = newMetrics(opts.Registry, p.Pending)
	return p
}

// Run publishes until the context ends. What is not acknowledged by then is found again by the next process.
func (p *Publisher) Run(ctx context.Context) error {
	p.mu.Lock()
	p.ctx, p.running = ctx, true
	for len(p.ready) > 0 && p.workers < p.opts.Parallel {
		p.startLocked()
	}
	p.mu.Unlock()
	<-ctx.Done()
	p.mu.Lock()
	p.running = false
	p.mu.Unlock()
	p.wg.Wait()
	return nil
}

// Room says whether more events are taken now.
func (p *Publisher) Room() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pending < p.opts.MaxPending
}

// Pending is how many events wait for their acknowledgement.
func (p *Publisher) Pending() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pending
}

// Publish takes events of one pod, in order, and returns at once. They are taken even when there is no room: ask first.
func (p *Publisher) Publish(events []diff.Event) {
	if len(events) == 0 {
		return
	}
	uid := events[0].Pod.UID
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.queues[uid]
	if q == nil {
		q = &queue{}
		p.queues[uid] = q
	}
	q.events = append(q.events, events...)
	p.pending += len(events)
	if q.busy {
		return
	}
	q.busy = true
	p.ready = append(p.ready, uid)
	if p.running && p.workers < p.opts.Parallel {
		p.startLocked()
	}
}

// startLocked starts a goroutine; Run waits for it.
func (p *Publisher) startLocked() {
	p.workers++
	p.wg.Go(p.work)
}

// work publishes pod after pod until no pod has anything left.
func (p *Publisher) work() {
	for {
		p.mu.Lock()
		if len(p.ready) == 0 || !p.running {
			p.workers--
			p.mu.Unlock()
			return
		}
		uid := p.ready[0]
		p.ready = p.ready[1:]
		ctx := p.ctx
		p.mu.Unlock()
		p.drain(ctx, uid)
	}
}

// drain publishes a pod's events until there are none or the context ends.
func (p *Publisher) drain(ctx context.Context, uid string) {
	for {
		p.mu.Lock()
		q := p.queues[uid]
		if len(q.events) == 0 {
			delete(p.queues, uid)
			p.mu.Unlock()
			return
		}
		e := q.events[0]
		p.mu.Unlock()
		if !p.publish(ctx, &e) {
			return
		}
		p.mu.Lock()
		q.events = q.events[1:]
		p.pending--
		p.mu.Unlock()
	}
}

// publish stores one event, however often it takes. It returns false when the context ended before.
func (p *Publisher) publish(ctx context.Context, e *diff.Event) bool {
	ctx = about(ctx, e)
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		duplicate, err := p.try(ctx, e)
		if err == nil {
			p.succeeded(ctx, e, duplicate)
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		p.failed(ctx, e, err)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		}
	}
}

// about gives ctx with what the event is about, and its trace.
func about(ctx context.Context, e *diff.Event) context.Context {
	a := telemetry.About{PodUID: e.Pod.UID, Namespace: e.Pod.Namespace, PodName: e.Pod.Name}
	if !e.Object.IsSandbox() {
		a.Container = e.Object.Name
	}
	return telemetry.ContextWithAbout(telemetry.ContextWithTraceparent(ctx, e.Object.Traceparent), a)
}

// objectKey is what the id of the event's object is one of.
func objectKey(e *diff.Event) attribute.Key {
	if e.Object.IsSandbox() {
		return telemetry.SandboxID
	}
	return telemetry.ContainerID
}

// exitKilled and exitTerminated are how containers end that are told to; a container that is killed for its memory ends by exitKilled too.
const (
	exitKilled     = 137
	exitTerminated = 143
	reasonOOM      = "OOMKilled"
)

// wentWrong says what is wrong about an event: a container that ended with an error, and was not told to end.
func wentWrong(e *diff.Event) string {
	code := e.Object.ExitCode
	told := (code == exitKilled || code == exitTerminated) && e.Reason != reasonOOM
	if e.Type != diff.ContainerDied || !e.ExitKnown || code == 0 || told {
		return ""
	}
	return fmt.Sprintf("%s ended with exit code %d (%s)", e.Object.Name, code, e.Reason)
}

func (p *Publisher) try(ctx context.Context, e *diff.Event) (duplicate bool, err error) {
	ctx, span := telemetry.Start(ctx, telemetry.Tracer("pleg/journal"), spanPublish,
		telemetry.LifecycleType.String(e.Type.String()), objectKey(e).String(e.Object.ID))
	defer func() { telemetry.End(span, err) }()
	if why := wentWrong(e); why != "" {
		span.SetStatus(codes.Error, why)
	}
	m, err := encode(ctx, p.opts.Node, e)
	if err != nil {
		return false, err
	}
	_, duplicate, err = p.stream.Publish(ctx, m)
	return duplicate, err
}

func (p *Publisher) succeeded(ctx context.Context, e *diff.Event, duplicate bool) {
	p.mu.Lock()
	recovered := p.failing
	p.failing = false
	pending := p.pending
	p.mu.Unlock()
	if recovered {
		p.opts.Log.InfoContext(ctx, "lifecycle events are published again", "pending", pending)
	}
	p.opts.Log.DebugContext(ctx, "lifecycle event", "type", e.Type.String(), string(objectKey(e)), e.Object.ID, "via", string(e.Via), "duplicate", duplicate)
	p.metrics.published(ctx, e, duplicate)
}

func (p *Publisher) failed(ctx context.Context, e *diff.Event, err error) {
	p.metrics.errors.Inc()
	p.mu.Lock()
	first := !p.failing
	p.failing = true
	p.mu.Unlock()
	if first {
		p.opts.Log.WarnContext(ctx, "can't publish lifecycle events, they are kept", "error", err)
	}
}
