package telemetry

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const (
	// KeepSpans is how many finished spans of traces that were not sampled wait for an error, unless Options say otherwise.
	KeepSpans = 2048

	// keptFor is how long a trace's spans are sent after its last error; maxKept bounds the traces that are.
	keptFor = 10 * time.Minute
	maxKept = 1024
	// forgottenAfter is how long a trace without an error waits after its last span, if there is room.
	forgottenAfter = 5 * time.Minute
)

// keptSampler records what its sampler drops, without the flag that makes others send it.
type keptSampler struct{ sdktrace.Sampler }

// ShouldSample decides.
func (s keptSampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	r := s.Sampler.ShouldSample(p)
	if r.Decision == sdktrace.Drop {
		r.Decision = sdktrace.RecordOnly
	}
	return r
}

// Description names the sampler.
func (s keptSampler) Description() string { return "Errors{" + s.Sampler.Description() + "}" }

// keeper sends the spans of sampled traces at once, those of a trace that has an error when the error is known, and forgets the others: the
// oldest first when there are too many. It holds at most room spans and has no goroutine.
type keeper struct {
	next sdktrace.SpanProcessor
	room int
	now  func() time.Time

	mu      sync.Mutex
	waiting map[trace.TraceID]*heldTrace
	order   []trace.TraceID // of waiting, the longest without a span first
	spans   int
	kept    map[trace.TraceID]time.Time // until when
	tell    func(trace.TraceID)
}

type heldTrace struct {
	spans []sdktrace.ReadOnlySpan
	last  time.Time
}

func newKeeper(next sdktrace.SpanProcessor, room int) *keeper {
	return &keeper{next: next, room: room, now: time.Now, waiting: map[trace.TraceID]*heldTrace{}, kept: map[trace.TraceID]time.Time{}}
}

// OnStart hands on.
func (k *keeper) OnStart(parent context.Context, s sdktrace.ReadWriteSpan) { k.next.OnStart(parent, s) }

// OnEnd sends the span, or holds it.
func (k *keeper) OnEnd(s sdktrace.ReadOnlySpan) {
	if s.SpanContext().IsSampled() {
		k.next.OnEnd(s)
		return
	}
	id, wrong := s.SpanContext().TraceID(), failed(s)
	k.mu.Lock()
	now := k.now()
	until, known := k.kept[id]
	known = known && now.Before(until)
	if !known && !wrong {
		k.holdLocked(id, s, now)
		k.mu.Unlock()
		return
	}
	var held []sdktrace.ReadOnlySpan
	var tell func(trace.TraceID)
	// An error of a trace that is kept already is news only when the others may soon forget it.
	if wrong && (!known || until.Sub(now) < keptFor/2) {
		held, tell = k.keepLocked(id, now), k.tell
	}
	k.mu.Unlock()
	k.send(append(held, s))
	if tell != nil {
		tell(id)
	}
}

// Keep sends what is held of a trace, and what comes of it for a while.
func (k *keeper) Keep(id trace.TraceID) {
	k.mu.Lock()
	held := k.keepLocked(id, k.now())
	k.mu.Unlock()
	k.send(held)
}

func (k *keeper) send(spans []sdktrace.ReadOnlySpan) {
	for _, s := range spans {
		k.next.OnEnd(keptSpan{s})
	}
}

func (k *keeper) keepLocked(id trace.TraceID, now time.Time) []sdktrace.ReadOnlySpan {
	if _, ok := k.kept[id]; !ok && len(k.kept) >= maxKept {
		k.makeRoomLocked(now)
	}
	k.kept[id] = now.Add(keptFor)
	h := k.waiting[id]
	if h == nil {
		return nil
	}
	k.forgetLocked(id)
	return h.spans
}

// makeRoomLocked forgets the kept traces that are over, or the one that will be first.
func (k *keeper) makeRoomLocked(now time.Time) {
	var first trace.TraceID
	var firstEnd time.Time
	for id, until := range k.kept {
		if !now.Before(until) {
			delete(k.kept, id)
		} else if firstEnd.IsZero() || until.Before(firstEnd) {
			first, firstEnd = id, until
		}
	}
	if len(k.kept) >= maxKept {
		delete(k.kept, first)
	}
}

// holdLocked holds a span of a trace without an error so far.
func (k *keeper) holdLocked(id trace.TraceID, s sdktrace.ReadOnlySpan, now time.Time) {
	h := k.waiting[id]
	if h == nil {
		h = &heldTrace{}
		k.waiting[id] = h
	} else {
		i := slices.Index(k.order, id)
		k.order = slices.Delete(k.order, i, i+1)
	}
	k.order = append(k.order, id)
	h.spans, h.last = append(h.spans, s), now
	k.spans++
	if own := max(1, k.room/4); len(h.spans) > own { // one trace must not push all others out
		h.spans = slices.Delete(h.spans, 0, 1)
		k.spans--
	}
	for len(k.order) > 0 && (k.spans > k.room || now.Sub(k.waiting[k.order[0]].last) > forgottenAfter) {
		k.forgetLocked(k.order[0])
	}
}

func (k *keeper) forgetLocked(id trace.TraceID) {
	k.spans -= len(k.waiting[id].spans)
	delete(k.waiting, id)
	if i := slices.Index(k.order, id); i >= 0 {
		k.order = slices.Delete(k.order, i, i+1)
	}
}

// Shutdown forgets what is held.
func (k *keeper) Shutdown(ctx context.Context) error {
	k.mu.Lock()
	k.waiting, k.order, k.spans = map[trace.TraceID]*heldTrace{}, nil, 0
	k.mu.Unlock()
	return k.next.Shutdown(ctx)
}

// ForceFlush sends what is queued; what is held stays.
func (k *keeper) ForceFlush(ctx context.Context) error { return k.next.ForceFlush(ctx) }

// failed says whether a span is about something that went wrong here. What a gRPC client was answered about its own request (not found,
// refused, exists already) is for the caller to judge, whose own span says so.
func failed(s sdktrace.ReadOnlySpan) bool {
	if s.Status().Code != codes.Error {
		return false
	}
	if s.SpanKind() != trace.SpanKindClient {
		return true
	}
	for _, a := range s.Attributes() {
		if a.Key == rpcStatus || a.Key == rpcResponseStatus {
			return !slices.Contains(callersFault, a.Value.String())
		}
	}
	return true
}

// The attribute under which a span of gRPC says how it ended, in the older and the newer conventions.
const (
	rpcStatus         = attribute.Key("rpc.grpc.status_code")
	rpcResponseStatus = attribute.Key("rpc.response.status_code")
)

// callersFault are the codes of gRPC that say something about the request, by number and by name.
var callersFault = []string{
	"1", "CANCELLED", "3", "INVALID_ARGUMENT", "5", "NOT_FOUND", "6", "ALREADY_EXISTS", "7", "PERMISSION_DENIED",
	"9", "FAILED_PRECONDITION", "10", "ABORTED", "11", "OUT_OF_RANGE", "16", "UNAUTHENTICATED",
}

// keptSpan is a span of a trace that was not sampled, as it is sent.
type keptSpan struct{ sdktrace.ReadOnlySpan }

// SpanContext has the flag without which the batcher would drop the span.
func (s keptSpan) SpanContext() trace.SpanContext {
	sc := s.ReadOnlySpan.SpanContext()
	return sc.WithTraceFlags(sc.TraceFlags().WithSampled(true))
}

// Attributes says why it is sent, so that those who count spans know that it does not stand for others.
func (s keptSpan) Attributes() []attribute.KeyValue {
	return append(slices.Clip(s.ReadOnlySpan.Attributes()), KeptFor.String("error"))
}
