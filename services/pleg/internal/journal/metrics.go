package journal

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/podplane/podplane/internal/telemetry"
	"github.com/podplane/podplane/services/pleg/internal/diff"
)

type metrics struct {
	events  *prometheus.CounterVec
	latency prometheus.Histogram
	errors  prometheus.Counter
}

func newMetrics(r prometheus.Registerer, pending func() int) *metrics {
	m := &metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "podplane_pleg_events_total", Help: "Lifecycle events that the bus acknowledged, by type and by how they were seen.",
		}, []string{"type", "via"}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "podplane_pleg_event_publish_seconds", Help: "From the moment an event was seen to its acknowledgement by the bus.",
			Buckets: telemetry.LatencyBuckets,
		}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "podplane_pleg_event_publish_errors_total", Help: "Failed attempts to publish a lifecycle event; each is repeated until it succeeds.",
		}),
	}
	if r == nil {
		return m
	}
	r.MustRegister(m.events, m.latency, m.errors, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "podplane_pleg_pending_events", Help: "Lifecycle events that wait for the bus.",
	}, func() float64 { return float64(pending()) }))
	return m
}

func (m *metrics) published(ctx context.Context, e *diff.Event, duplicate bool) {
	if duplicate {
		return
	}
	m.events.WithLabelValues(e.Type.String(), string(e.Via)).Inc()
	telemetry.Observe(ctx, m.latency, time.Since(e.ObservedAt))
}
