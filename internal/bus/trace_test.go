package bus_test

import (
	"context"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/bus/conformance"
)

// TestSpans has storing be a span of the trace that it belongs to, and none of its own.
func TestSpans(t *testing.T) {
	exported := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exported))
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(provider)
	t.Cleanup(func() { otel.SetTracerProvider(before) })

	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	c := bustest.NewEmpty(t).Connect(owner, "n")
	b, err := bus.Open(ctx, c, conformance.Texts("spans"))
	if err != nil {
		t.Fatal(err)
	}
	j, err := bus.OpenStream(ctx, c, bus.StreamSpec{
		Name: "SPANS", Owners: []string{owner}, Subjects: []string{"spans.v1.>"}, MaxAge: patient, MaxBytes: 1 << 20, MaxMessageBytes: 1 << 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(ctx, "n.untraced", value("x")); err != nil {
		t.Fatal(err)
	}
	if n := len(exported.GetSpans()); n != 0 {
		t.Fatalf("%d spans without a trace", n)
	}

	traced, parent := provider.Tracer("test").Start(ctx, "parent")
	if _, err := b.Put(traced, "n.uid", value("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Create(traced, "n.uid", value("x")); err == nil {
		t.Fatal("created twice")
	}
	if err := b.Delete(traced, "n.uid"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := j.Publish(traced, bus.Message{Subject: "spans.v1.n.node.Reason"}); err != nil {
		t.Fatal(err)
	}
	w := bus.NewWriter(b, bus.WriterOptions[text]{})
	running, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = w.Run(running) }()
	w.SetContext(traced, "n.writer", value("x"))
	if err := w.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	stop()
	<-ended
	parent.End()

	type span struct{ name, destination, uid string }
	var got []span
	for _, s := range exported.GetSpans() {
		if s.Name == "parent" {
			continue
		}
		if s.SpanContext.TraceID() != parent.SpanContext().TraceID() || s.Parent.SpanID() != parent.SpanContext().SpanID() {
			t.Errorf("%s is not a child of its parent", s.Name)
		}
		set := attribute.NewSet(s.Attributes...)
		if v, _ := set.Value("messaging.system"); v.AsString() != "nats" {
			t.Errorf("%s: %v", s.Name, s.Attributes)
		}
		destination, _ := set.Value("messaging.destination.name")
		uid, _ := set.Value("k8s.pod.uid")
		got = append(got, span{s.Name, destination.AsString(), uid.AsString()})
		if len(got) == 2 && s.Status.Code != codes.Error {
			t.Errorf("the failed create has status %v", s.Status)
		}
	}
	want := []span{
		{"bus.record.put", "$KV.spans.n.uid", "uid"},
		{"bus.record.put", "$KV.spans.n.uid", "uid"},
		{"bus.record.delete", "$KV.spans.n.uid", "uid"},
		{"bus.event.publish", "spans.v1.n.node.Reason", ""},
		{"bus.record.put", "$KV.spans.n.writer", "writer"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("spans %v, want %v", got, want)
	}
	e, err := b.Get(ctx, "n.writer")
	if err != nil || e.Trace.TraceID() != parent.SpanContext().TraceID() || e.Trace.SpanID() == parent.SpanContext().SpanID() {
		t.Errorf("the record carries %+v: it should be below its own span: %v", e.Trace, err)
	}
}

// TestCarrier keeps the spelling of keys, unlike textproto.
func TestCarrier(t *testing.T) {
	h := nats.Header{}
	c := bus.Carrier(h)
	c.Set("traceparent", "a")
	if h["traceparent"][0] != "a" || h.Get("Traceparent") != "" || c.Get("traceparent") != "a" || !slices.Equal(c.Keys(), []string{"traceparent"}) {
		t.Errorf("headers %v", h)
	}
}
