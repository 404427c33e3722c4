package telemetry

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// About says which pod, and which of its containers, some work is about. Empty fields say nothing.
type About struct {
	PodUID, Namespace, PodName, Container string
}

type aboutKey struct{}

// ContextWithAbout makes every span that is started from the result, and every log line that is written with it, say what it is about. Fields
// that are empty keep what ctx says already. It costs one allocation and belongs where work on a pod begins.
func ContextWithAbout(ctx context.Context, a About) context.Context {
	have := AboutFrom(ctx)
	if a.PodUID != "" && a.PodUID != have.PodUID {
		have = About{} // another pod
	}
	for _, f := range []struct{ to, from *string }{
		{&have.PodUID, &a.PodUID},
		{&have.Namespace, &a.Namespace},
		{&have.PodName, &a.PodName},
		{&have.Container, &a.Container},
	} {
		if *f.from != "" {
			*f.to = *f.from
		}
	}
	return context.WithValue(ctx, aboutKey{}, &have)
}

// ContextWithContainer is ContextWithAbout for the container alone.
func ContextWithContainer(ctx context.Context, name string) context.Context {
	return ContextWithAbout(ctx, About{Container: name})
}

// AboutFrom gives what ctx is about; the zero value when it does not say.
func AboutFrom(ctx context.Context) About {
	if a, ok := ctx.Value(aboutKey{}).(*About); ok {
		return *a
	}
	return About{}
}

// Attributes gives what is known, by the names of OpenTelemetry's conventions.
func (a About) Attributes() []attribute.KeyValue {
	list := make([]attribute.KeyValue, 0, 4)
	for _, f := range a.fields() {
		if f.value != "" {
			list = append(list, f.key.String(f.value))
		}
	}
	return list
}

func (a About) fields() [4]struct {
	key   attribute.Key
	value string
} {
	return [4]struct {
		key   attribute.Key
		value string
	}{{PodUID, a.PodUID}, {NamespaceName, a.Namespace}, {PodName, a.PodName}, {ContainerName, a.Container}}
}

// addTo adds to a log record what it does not say itself.
func (a About) addTo(r *slog.Record) {
	for _, f := range a.fields() {
		if f.value == "" {
			continue
		}
		said := false
		r.Attrs(func(have slog.Attr) bool {
			said = have.Key == string(f.key)
			return !said
		})
		if !said {
			r.AddAttrs(slog.String(string(f.key), f.value))
		}
	}
}

// Tell says on the span of ctx what it turned out to be about, when that was not known at its start.
func Tell(ctx context.Context, a About) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(a.Attributes()...)
	}
}

// aboutProcessor says on each span that begins what its context is about.
type aboutProcessor struct{}

// OnStart adds the attributes.
func (aboutProcessor) OnStart(parent context.Context, s sdktrace.ReadWriteSpan) {
	if a, ok := parent.Value(aboutKey{}).(*About); ok {
		s.SetAttributes(a.Attributes()...)
	}
}

// OnEnd does nothing.
func (aboutProcessor) OnEnd(sdktrace.ReadOnlySpan) {}

// Shutdown does nothing.
func (aboutProcessor) Shutdown(context.Context) error { return nil }

// ForceFlush does nothing.
func (aboutProcessor) ForceFlush(context.Context) error { return nil }
