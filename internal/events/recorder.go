// Package events records Kubernetes Events and publishes them on the bus.
//
// A Recorder never blocks its caller: events wait in a queue of QueueSize, also
// while the bus is away, and are dropped and counted when it is full. Events
// are published in the order in which they were recorded, each once (a repeated
// publication is a duplicate by its ID). They are for people: nothing may
// depend on one arriving.
//
// Repeats of the same event (object, type, reason and message) within
// AggregateWindow become one Event with a count, published when the count
// reaches a power of two. Each object has SpamBurst publications, refilled by
// one each SpamRefill; what is above that is dropped and counted.
package events

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/telemetry"
)

// Bounds of a Recorder.
const (
	QueueSize       = 1000
	AggregateWindow = 10 * time.Minute
	SpamBurst       = 25
	SpamRefill      = 300 * time.Second
	// MaxMessageBytes is Kubernetes' limit of an Event's message.
	MaxMessageBytes = 1024

	maxTracked    = 2048 // aggregates and objects remembered
	componentName = "podplane-"
	kindNode      = "Node"
	kindPod       = "Pod"

	minPublishDelay = 100 * time.Millisecond
	maxPublishDelay = 5 * time.Second
	flushTimeout    = time.Second
)

// Types of events.
const (
	Normal  = corev1.EventTypeNormal
	Warning = corev1.EventTypeWarning
)

// ObjectRef names what an event is about.
type ObjectRef struct {
	Kind, Namespace, Name, UID, FieldPath, APIVersion, ResourceVersion string
}

// Pod is the reference to a pod; fieldPath may be "", or spec.containers{name} for one of its containers.
func Pod(namespace, name, uid, fieldPath string) ObjectRef {
	return ObjectRef{Kind: kindPod, APIVersion: "v1", Namespace: namespace, Name: name, UID: uid, FieldPath: fieldPath}
}

// Node is the reference to a node; as in Kubernetes its name is its UID.
func Node(name string) ObjectRef {
	return ObjectRef{Kind: kindNode, APIVersion: "v1", Name: name, UID: name}
}

// Publisher is what a Recorder needs of the stream of events; *bus.Stream is one.
type Publisher interface {
	Publish(ctx context.Context, m bus.Message) (seq uint64, duplicate bool, err error)
}

// Sink is what code that reports events needs of a Recorder.
type Sink interface {
	Event(ref ObjectRef, eventType, reason, messageFmt string, args ...any)
	EventContext(ctx context.Context, ref ObjectRef, eventType, reason, messageFmt string, args ...any)
}

var _ Sink = (*Recorder)(nil)

// Recorder records events of one service. Its methods may be called from any goroutine.
type Recorder struct {
	publisher Publisher
	component string
	node      string
	clock     clock.Clock

	mu         sync.Mutex
	aggregates *tracker[aggregateKey, *aggregate]
	budgets    *tracker[ObjectRef, *budget]
	lastName   time.Time // the instant in the newest name

	queue chan *queued

	published, dropped, filtered atomic.Uint64
}

type queued struct {
	message bus.Message
	trace   trace.SpanContext
	about   telemetry.About
}

// NewRecorder makes a recorder of the named service ("syncd") on a node. A nil
// clock is the real one. Run publishes.
func NewRecorder(p Publisher, service, node string, c clock.Clock) *Recorder {
	if c == nil {
		c = clock.RealClock{}
	}
	return &Recorder{
		publisher: p, component: componentName + service, node: node, clock: c,
		aggregates: newTracker[aggregateKey, *aggregate](maxTracked),
		budgets:    newTracker[ObjectRef, *budget](maxTracked),
		queue:      make(chan *queued, QueueSize),
	}
}

// Event records an event; it never blocks.
func (r *Recorder) Event(ref ObjectRef, eventType, reason, messageFmt string, args ...any) {
	r.record(trace.SpanContext{}, aggregateKey{ref, eventType, reason, format(messageFmt, args)}, nil)
}

// EventContext is Event within the trace of ctx; ctx ending does not matter.
func (r *Recorder) EventContext(ctx context.Context, ref ObjectRef, eventType, reason, messageFmt string, args ...any) {
	r.record(trace.SpanContextFromContext(ctx), aggregateKey{ref, eventType, reason, format(messageFmt, args)}, nil)
}

// AnnotatedEvent is EventContext with annotations, which repeats of the event have too. They must not be changed afterwards.
func (r *Recorder) AnnotatedEvent(ctx context.Context, annotations map[string]string, ref ObjectRef, eventType, reason, messageFmt string, args ...any) {
	r.record(trace.SpanContextFromContext(ctx), aggregateKey{ref, eventType, reason, format(messageFmt, args)}, annotations)
}

// Published, Dropped and Filtered count events that were published, that found
// the queue full, and that the limit of their object held back.
func (r *Recorder) Published() uint64 { return r.published.Load() }

// Dropped counts events that found the queue full, or could not be stored.
func (r *Recorder) Dropped() uint64 { return r.dropped.Load() }

// Filtered counts events above the limit of their object.
func (r *Recorder) Filtered() uint64 { return r.filtered.Load() }

func format(messageFmt string, args []any) string {
	message := messageFmt
	if len(args) > 0 {
		message = fmt.Sprintf(messageFmt, args...)
	}
	if len(message) <= MaxMessageBytes {
		return message
	}
	cut := MaxMessageBytes
	for cut > 0 && !utf8.RuneStart(message[cut]) {
		cut--
	}
	return message[:cut]
}

func (r *Recorder) record(tc trace.SpanContext, key aggregateKey, annotations map[string]string) {
	// The lock is held while queueing, which never blocks, so that counts are published in order.
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	ref := key.ref
	a := r.aggregate(key, now)
	if !powerOfTwo(a.count) {
		return
	}
	if !r.allow(ref, now) {
		r.filtered.Add(1)
		return
	}
	event := r.event(a, key)
	event.Annotations = annotations
	data, err := json.Marshal(event)
	if err != nil { // can't happen: an Event always encodes
		r.dropped.Add(1)
		return
	}
	uid := ref.UID
	if uid == "" || ref.Kind == kindNode {
		uid = bus.NodeUID
	}
	about := telemetry.About{}
	if ref.Kind == kindPod {
		about = telemetry.About{PodUID: ref.UID, Namespace: ref.Namespace, PodName: ref.Name, Container: containerOf(ref.FieldPath)}
	}
	q := &queued{trace: tc, about: about, message: bus.Message{
		Subject: bus.EventSubject(r.node, uid, key.reason),
		ID:      fmt.Sprintf("%s/%s/%d", event.Namespace, event.Name, a.count),
		Data:    data,
	}}
	select {
	case r.queue <- q:
	default:
		r.dropped.Add(1)
	}
}

func (r *Recorder) event(a *aggregate, key aggregateKey) *corev1.Event {
	ref := key.ref
	namespace := ref.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return &corev1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{
			Name: a.name, Namespace: namespace, UID: a.uid, CreationTimestamp: metav1.NewTime(a.first),
		},
		InvolvedObject: corev1.ObjectReference{
			Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name, UID: types.UID(ref.UID),
			APIVersion: ref.APIVersion, ResourceVersion: ref.ResourceVersion, FieldPath: ref.FieldPath,
		},
		Reason: key.reason, Message: key.message, Type: key.eventType, Count: a.count,
		FirstTimestamp: metav1.NewTime(a.first), LastTimestamp: metav1.NewTime(a.last),
		Source:              corev1.EventSource{Component: r.component, Host: r.node},
		ReportingController: r.component, ReportingInstance: r.node,
	}
}

// Run publishes until ctx ends, then for at most a second what is left, and
// returns ctx's error.
func (r *Recorder) Run(ctx context.Context) error {
	for {
		select {
		case q := <-r.queue:
			if !r.publish(ctx, q) {
				return r.flush(ctx, q)
			}
		case <-ctx.Done():
			return r.flush(ctx, nil)
		}
	}
}

// publish publishes one event, again and again while the bus is away. It gives
// false when ctx ended before.
func (r *Recorder) publish(ctx context.Context, q *queued) bool {
	for delay := minPublishDelay; ; delay = min(2*delay, maxPublishDelay) {
		if ctx.Err() != nil {
			return false
		}
		err := r.send(ctx, q)
		switch fault.KindOf(err) {
		case fault.None:
			r.published.Add(1)
			return true
		case fault.TooLarge, fault.Invalid, fault.PermissionDenied:
			r.dropped.Add(1) // will never be stored
			return true
		}
		t := r.clock.NewTimer(delay)
		select {
		case <-t.C():
		case <-ctx.Done():
			t.Stop()
			return false
		}
	}
}

func (r *Recorder) send(ctx context.Context, q *queued) error {
	if q.trace.IsValid() {
		ctx = telemetry.ContextWithAbout(trace.ContextWithSpanContext(ctx, q.trace), q.about)
	}
	_, _, err := r.publisher.Publish(ctx, q.message)
	return err
}

// flush publishes what is left once, without waiting for the bus.
func (r *Recorder) flush(ctx context.Context, first *queued) error {
	end := fmt.Errorf("event recorder: %w", ctx.Err())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	for {
		var q *queued
		switch {
		case first != nil:
			q, first = first, nil
		default:
			select {
			case q = <-r.queue:
			default:
				return end
			}
		}
		if r.send(ctx, q) != nil {
			r.dropped.Add(uint64(1 + len(r.queue)))
			return end
		}
		r.published.Add(1)
	}
}

// containerOf reads a field path such as spec.containers{name}; empty when it is about no container.
func containerOf(fieldPath string) string {
	_, rest, _ := strings.Cut(fieldPath, "{")
	name, _, _ := strings.Cut(rest, "}")
	return name
}

func eventName(object string, at time.Time) string {
	return fmt.Sprintf("%s.%x", strings.ToLower(object), at.UnixNano())
}

func newUID() types.UID { return uuid.NewUUID() }

func powerOfTwo(n int32) bool { return n > 0 && n&(n-1) == 0 }
