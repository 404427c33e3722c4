package controller

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/volumed/internal/plugin"
)

func tracer() trace.Tracer { return telemetry.Tracer("volumed") }

// podContext gives ctx with the pod and its trace.
func podContext(ctx context.Context, e *entry) context.Context {
	return telemetry.ContextWithAbout(telemetry.ContextWithTrace(ctx, e.trace.GetTraceparent(), e.trace.GetTracestate()),
		telemetry.About{PodUID: e.uid, Namespace: e.namespace, PodName: e.name})
}

// logContext is for what is said about a pod.
func (c *Controller) logContext(e *entry) context.Context {
	return podContext(context.Background(), e)
}

// setupSpan covers the set-up of all of a pod's volumes, from the first operation until they are READY. A nil one does
// nothing.
type setupSpan struct {
	span trace.Span
}

func (c *Controller) startSpan(e *entry) *setupSpan {
	_, span := telemetry.Start(podContext(context.Background(), e), c.tracer, "volume.setup")
	return &setupSpan{span: span}
}

// context gives ctx with the span as the parent of what is started from it.
func (s *setupSpan) context(ctx context.Context) context.Context {
	if s == nil || !s.span.SpanContext().IsValid() {
		return ctx
	}
	return trace.ContextWithSpan(ctx, s.span)
}

func (s *setupSpan) end(err error) {
	if s != nil {
		telemetry.End(s.span, err)
	}
}

// span starts the span of one operation on the pod of ctx.
func (c *Controller) span(ctx context.Context, name string, p *plugin.Pod, volume string) (context.Context, func(error)) {
	var attrs []attribute.KeyValue
	if volume != "" {
		attrs = append(attrs, telemetry.VolumeName.String(volume), telemetry.VolumeType.String(pluginOf(p, volume)))
	}
	ctx, span := telemetry.Start(ctx, c.tracer, name, attrs...)
	return ctx, func(err error) { telemetry.End(span, err) }
}

func pluginOf(p *plugin.Pod, volume string) string {
	for i := range p.Volumes {
		if p.Volumes[i].Name == volume {
			name, _, _ := plugin.Of(&p.Volumes[i])
			return name
		}
	}
	return ""
}

// Metrics are the service's metrics, under the kubelet's names.
type Metrics struct {
	operations *prometheus.HistogramVec
	volumes    *prometheus.GaugeVec
	counted    map[*entry]map[countKey]float64
}

type countKey struct{ plugin, state string }

// NewMetrics makes them.
func NewMetrics() *Metrics {
	return &Metrics{
		operations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "storage_operation_duration_seconds", Help: "How long operations on volumes took.", Buckets: telemetry.LatencyBuckets,
		}, []string{"volume_plugin", "operation_name", "status", "migrated"}),
		volumes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "volume_manager_total_volumes", Help: "Number of volumes: wished (desired_state_of_world), and set up (actual_state_of_world).",
		}, []string{"plugin_name", "state"}),
		counted: map[*entry]map[countKey]float64{},
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.operations.Describe(ch)
	m.volumes.Describe(ch)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.operations.Collect(ch)
	m.volumes.Collect(ch)
}

func (m *Metrics) observe(ctx context.Context, plugin, operation string, started time.Time, err error) {
	status := "success"
	switch {
	case fault.Is(err, fault.Canceled):
		status = "cancelled"
	case err != nil:
		status = "fail-unknown"
	}
	telemetry.Observe(ctx, m.operations.WithLabelValues(plugin, operation, status, "false"), time.Since(started))
}

// count brings the gauges up to date with a pod.
func (m *Metrics) count(e *entry) {
	m.forget(e)
	now := map[countKey]float64{}
	for i := range e.state.Volumes {
		v := &e.state.Volumes[i]
		if e.pod != nil && !e.terminated {
			now[countKey{v.Plugin, "desired_state_of_world"}]++
		}
		if v.Phase == podplanev1.VolumePhase_VOLUME_PHASE_READY || v.Phase == podplanev1.VolumePhase_VOLUME_PHASE_TEARING_DOWN {
			now[countKey{v.Plugin, "actual_state_of_world"}]++
		}
	}
	for k, n := range now {
		m.volumes.WithLabelValues(k.plugin, k.state).Add(n)
	}
	m.counted[e] = now
}

func (m *Metrics) forget(e *entry) {
	for k, n := range m.counted[e] {
		m.volumes.WithLabelValues(k.plugin, k.state).Sub(n)
	}
	delete(m.counted, e)
}
