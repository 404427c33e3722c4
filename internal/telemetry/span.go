package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/podplane/podplane/internal/fault"
)

const (
	traceparentHeader = "traceparent"
	tracestateHeader  = "tracestate"
)

// Traceparent gives the W3C traceparent of the span in ctx, as it is stored in records; empty without a span.
func Traceparent(ctx context.Context) string {
	tp, _ := TraceContext(ctx)
	return tp
}

// TraceContext gives the W3C traceparent and tracestate of the span in ctx.
func TraceContext(ctx context.Context) (traceparent, tracestate string) {
	c := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, c)
	return c[traceparentHeader], c[tracestateHeader]
}

// ContextWithTraceparent makes spans started from the result children of a stored traceparent. An empty or broken one changes nothing.
func ContextWithTraceparent(ctx context.Context, traceparent string) context.Context {
	return ContextWithTrace(ctx, traceparent, "")
}

// ContextWithTrace is ContextWithTraceparent with a tracestate.
func ContextWithTrace(ctx context.Context, traceparent, tracestate string) context.Context {
	if traceparent == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparentHeader: traceparent, tracestateHeader: tracestate})
}

// TraceID gives the trace id of the span in ctx in hex; empty without one.
func TraceID(ctx context.Context) string {
	if sc := trace.SpanContextFromContext(ctx); sc.HasTraceID() {
		return sc.TraceID().String()
	}
	return ""
}

// Start starts a span only where ctx already belongs to a trace: work that nobody asked for makes no traces of its own. The
// returned span is never nil.
func Start(ctx context.Context, t trace.Tracer, name string, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx, trace.SpanFromContext(context.Background())
	}
	return t.Start(ctx, name, trace.WithAttributes(attrs...))
}

// End ends a span; an error is recorded with its kind. A cancellation is recorded and is not a failure.
func End(span trace.Span, err error) {
	fail(span, err)
	span.End()
}

// Fail records an error on the span of ctx, as End does, and leaves the span open. Nil changes nothing.
func Fail(ctx context.Context, err error) { fail(trace.SpanFromContext(ctx), err) }

func fail(span trace.Span, err error) {
	if err != nil && span.IsRecording() {
		kind := fault.KindOf(err)
		span.SetAttributes(ErrorKind.String(kind.String()))
		span.RecordError(err)
		if kind != fault.Canceled {
			span.SetStatus(codes.Error, err.Error())
		}
	}
}
