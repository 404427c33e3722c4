package manager

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/prober/internal/verdict"
)

// podContext gives ctx with the pod and its trace.
func podContext(ctx context.Context, p *Pod) context.Context {
	return telemetry.ContextWithAbout(telemetry.ContextWithTrace(ctx, p.Trace.GetTraceparent(), p.Trace.GetTracestate()),
		telemetry.About{PodUID: p.UID, Namespace: p.Namespace, PodName: p.Name})
}

// firstSuccess makes the span of the first successful readiness probe of a container.
func firstSuccess(ctx context.Context, t *task, a *attempt) (context.Context, func()) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx, func() {}
	}
	ctx, span := telemetry.Tracer("prober").Start(ctx, "probe.first_success", trace.WithTimestamp(a.started), trace.WithAttributes(
		telemetry.ContainerID.String(t.machine.ContainerID()),
		telemetry.ProbeKind.String(KindName(t.probe.Params.Kind)), telemetry.ProbeResult.String("success"),
	))
	return ctx, func() { span.End() }
}

// failure makes the span of a verdict that has become a failure.
func failure(ctx context.Context, t *task, a *attempt) (context.Context, func()) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx, func() {}
	}
	kind := KindName(t.probe.Params.Kind)
	ctx, span := telemetry.Tracer("prober").Start(ctx, "probe.failure", trace.WithTimestamp(a.started), trace.WithAttributes(
		telemetry.ContainerID.String(t.machine.ContainerID()), telemetry.ProbeKind.String(kind), telemetry.ProbeResult.String("failure"),
	))
	span.SetStatus(codes.Error, fmt.Sprintf("the %s probe failed %d times in a row", kind, t.machine.InARow()))
	return ctx, func() { span.End() }
}

// Metrics are the service's metrics; the first two have the kubelet's names.
type Metrics struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	lateness prometheus.Histogram
	repeated prometheus.Counter
}

// NewMetrics makes them.
func NewMetrics() *Metrics {
	return &Metrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prober_probe_total", Help: "Number of probes by type and result (successful, failed, unknown).",
		}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "prober_probe_duration_seconds", Help: "How long probes took.", Buckets: []float64{.001, .005, .025, .1, .5, 1, 5, 30},
		}, []string{"probe_type", "container", "pod", "namespace"}),
		lateness: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "podplane_prober_lateness_seconds", Help: "How much later than due probes were made.", Buckets: telemetry.LatencyBuckets,
		}),
		repeated: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "podplane_prober_repeated_total", Help: "Number of probes that timed out while the prober could not run, and were made again.",
		}),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(ch)
	}
}

func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.total, m.duration, m.lateness, m.repeated}
}

func (m *Metrics) observe(t *task, outcome podplanev1.ProbeResult, took time.Duration) {
	kind, p := KindName(t.probe.Params.Kind), t.pod.pod
	result := "unknown"
	switch outcome {
	case verdict.Success:
		result = "successful"
	case verdict.Failure:
		result = "failed"
	}
	m.total.WithLabelValues(kind, result, t.probe.Container, p.Name, p.Namespace, p.UID).Inc()
	m.duration.WithLabelValues(kind, t.probe.Container, p.Name, p.Namespace).Observe(took.Seconds())
}

// forget removes the series of a pod that is gone.
func (m *Metrics) forget(p *Pod) {
	m.total.DeletePartialMatch(prometheus.Labels{"pod_uid": p.UID})
	m.duration.DeletePartialMatch(prometheus.Labels{"pod": p.Name, "namespace": p.Namespace})
}

// latenessMonitor remembers the greatest lateness of this and the last window.
type latenessMonitor struct {
	mu        sync.Mutex
	window    time.Time
	now, last time.Duration
}

const latenessWindow = 2 * time.Second

func (l *latenessMonitor) observe(at time.Time, late time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn(at)
	l.now = max(l.now, late)
}

func (l *latenessMonitor) recent(at time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn(at)
	return max(l.now, l.last)
}

func (l *latenessMonitor) turn(at time.Time) {
	switch age := at.Sub(l.window); {
	case age >= 2*latenessWindow:
		l.window, l.now, l.last = at, 0, 0
	case age >= latenessWindow:
		l.window, l.last, l.now = l.window.Add(latenessWindow), l.now, 0
	}
}
