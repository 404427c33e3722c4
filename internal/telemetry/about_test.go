package telemetry_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/trace"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/podplane/podplane/internal/telemetry"
)

type keyValue = commonpb.KeyValue

var web = telemetry.About{PodUID: "u", Namespace: "ns", PodName: "web"}

func TestAbout(t *testing.T) {
	ctx := telemetry.ContextWithAbout(t.Context(), web)
	app := telemetry.ContextWithContainer(ctx, "app")
	if got := telemetry.AboutFrom(app); got.PodUID != "u" || got.Container != "app" {
		t.Errorf("%+v", got)
	}
	if got := telemetry.AboutFrom(telemetry.ContextWithAbout(app, telemetry.About{PodUID: "other"})); got != (telemetry.About{PodUID: "other"}) {
		t.Errorf("another pod has something of the one before: %+v", got)
	}
	if got := telemetry.AboutFrom(ctx); got != web {
		t.Errorf("the outer context has changed: %+v", got)
	}
	if got := telemetry.AboutFrom(t.Context()); got != (telemetry.About{}) {
		t.Errorf("%+v", got)
	}
}

// TestEverySpanSaysWhatItIsAbout, whoever starts it.
func TestEverySpanSaysWhatItIsAbout(t *testing.T) {
	got := newCollector(t)
	tr := start(t, telemetry.Options{})
	ctx := telemetry.ContextWithContainer(telemetry.ContextWithAbout(t.Context(), web), "app")
	ctx, span := telemetry.Tracer("x").Start(ctx, "outer")
	_, inner := telemetry.Tracer("somebody.else").Start(ctx, "inner")
	inner.End()
	span.End()
	unknown, late := telemetry.Tracer("x").Start(t.Context(), "late")
	telemetry.Tell(unknown, web)
	late.End()
	if err := tr.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, scope := range (<-got).ResourceSpans[0].ScopeSpans {
		for _, s := range scope.Spans {
			seen++
			attrs := map[string]string{}
			for _, a := range s.Attributes {
				attrs[a.Key] = a.Value.GetStringValue()
			}
			want := map[string]string{"k8s.pod.uid": "u", "k8s.namespace.name": "ns", "k8s.pod.name": "web"}
			if s.Name != "late" {
				want["k8s.container.name"] = "app"
			}
			for k, v := range want {
				if attrs[k] != v {
					t.Errorf("%s: %s is %q, want %q", s.Name, k, attrs[k], v)
				}
			}
		}
	}
	if seen != 3 {
		t.Errorf("%d spans", seen)
	}
}

// TestLogSaysWhatItIsAbout, each thing once.
func TestLogSaysWhatItIsAbout(t *testing.T) {
	var buf bytes.Buffer
	log, err := telemetry.NewLogger(&buf, who, "info", "json")
	if err != nil {
		t.Fatal(err)
	}
	log.InfoContext(telemetry.ContextWithAbout(t.Context(), web), "hello", string(telemetry.PodName), "web")
	var line map[string]string
	if err := json.Unmarshal(buf.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	if line["k8s.pod.uid"] != "u" || line["k8s.namespace.name"] != "ns" || line["k8s.pod.name"] != "web" {
		t.Errorf("%v", line)
	}
	if n := strings.Count(buf.String(), "k8s.pod.name"); n != 1 {
		t.Errorf("the pod is named %d times: %s", n, &buf)
	}
}

func TestExemplars(t *testing.T) {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "h", Buckets: []float64{1}})
	sampled := telemetry.ContextWithTraceparent(t.Context(), traceparent)
	telemetry.Observe(t.Context(), h, 0)
	telemetry.Observe(telemetry.ContextWithTraceparent(t.Context(), traceparent[:53]+"00"), h, 0)
	var m dto.Metric
	if err := h.Write(&m); err != nil {
		t.Fatal(err)
	}
	if e := m.Histogram.Bucket[0].Exemplar; e != nil || m.Histogram.GetSampleCount() != 2 {
		t.Fatalf("exemplar %v of a trace that is not sent; %d observed", e, m.Histogram.GetSampleCount())
	}
	telemetry.Observe(sampled, h, 0)
	telemetry.ObserveIn(trace.SpanContext{}, h, 0)
	if err := h.Write(&m); err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{}
	for _, l := range m.Histogram.Bucket[0].Exemplar.GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	if labels["trace_id"] != traceparent[3:35] || labels["span_id"] != traceparent[36:52] || m.Histogram.GetSampleCount() != 4 {
		t.Errorf("exemplar %v, %d observed", labels, m.Histogram.GetSampleCount())
	}
}
