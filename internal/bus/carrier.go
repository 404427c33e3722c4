package bus

import (
	"context"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/podplane/podplane/internal/telemetry"
)

// Carrier is the one type through which trace context enters and leaves a
// message's headers. It reads and writes keys exactly as they are spelled:
// nats.go looks headers up case-sensitively, and OpenTelemetry's HeaderCarrier
// would write Traceparent and look for it in vain elsewhere.
type Carrier nats.Header

var _ propagation.TextMapCarrier = Carrier(nil)

// Get gives the first value of the key.
func (c Carrier) Get(key string) string { return nats.Header(c).Get(key) }

// Set sets the key's only value.
func (c Carrier) Set(key, value string) { nats.Header(c).Set(key, value) }

// Keys lists the keys.
func (c Carrier) Keys() []string {
	keys := make([]string, 0, len(c))
	for k := range c {
		keys = append(keys, k)
	}
	return keys
}

// The bus always speaks W3C trace context, whatever propagator is set globally.
var propagator propagation.TraceContext

func inject(ctx context.Context, h nats.Header) { propagator.Inject(ctx, Carrier(h)) }

func extract(h nats.Header) trace.SpanContext {
	if len(h) == 0 || h.Get(HeaderTraceParent) == "" {
		return trace.SpanContext{}
	}
	return trace.SpanContextFromContext(propagator.Extract(context.Background(), Carrier(h)))
}

const (
	spanPut     = "bus.record.put"
	spanDelete  = "bus.record.delete"
	spanPublish = "bus.event.publish"

	attrSystem      = "messaging.system"
	attrDestination = "messaging.destination.name"
	attrPodUID      = "k8s.pod.uid"
)

var systemNATS = attribute.String(attrSystem, "nats")

// startSpan starts a span below another one and none otherwise: storing a
// record is a step of something and never a trace of its own.
func startSpan(ctx context.Context, name, subject, uid string) (context.Context, trace.Span) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx, nil
	}
	attrs := append(make([]attribute.KeyValue, 0, 3), systemNATS, attribute.String(attrDestination, subject))
	if uid != "" && uid != NodeUID {
		attrs = append(attrs, attribute.String(attrPodUID, uid))
	}
	return otel.Tracer("github.com/podplane/podplane/internal/bus").Start(ctx, name,
		trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(attrs...))
}

// link is what stays of a context that something was set with: its trace, and what it is about.
type link struct {
	trace trace.SpanContext
	about telemetry.About
}

func linkFrom(ctx context.Context) link {
	return link{trace.SpanContextFromContext(ctx), telemetry.AboutFrom(ctx)}
}

// context gives ctx with the link.
func (l link) context(ctx context.Context) context.Context {
	if !l.trace.IsValid() {
		return ctx
	}
	ctx = trace.ContextWithSpanContext(ctx, l.trace)
	if l.about == (telemetry.About{}) {
		return ctx
	}
	return telemetry.ContextWithAbout(ctx, l.about)
}

func endSpan(s trace.Span, err error) {
	if s == nil {
		return
	}
	if err != nil {
		s.RecordError(err)
		s.SetStatus(codes.Error, err.Error())
	}
	s.End()
}
