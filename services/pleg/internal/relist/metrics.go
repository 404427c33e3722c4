package relist

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/podplane/podplane/internal/telemetry"
)

// metrics carry the kubelet's names where it has the metric too.
type metrics struct {
	duration, interval, inspection      prometheus.Histogram
	lastSeen, stuck                     prometheus.Gauge
	connectionErrors, connectionSuccess prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: telemetry.LatencyBuckets})
	}
	m := &metrics{
		duration:   histogram("kubelet_pleg_relist_duration_seconds", "How long a list of all pods took."),
		interval:   histogram("kubelet_pleg_relist_interval_seconds", "Time between the starts of two relists."),
		inspection: histogram("kubelet_pleg_pod_relist_duration_seconds", "How long it took to read the status of one pod."),
		lastSeen: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_pleg_last_seen_seconds", Help: "When the runtime last listed its pods or sent an event, in seconds since 1970.",
		}),
		stuck: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "podplane_pleg_stuck_pods", Help: "Pods for which the runtime does not answer.",
		}),
		connectionErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_evented_pleg_connection_error_count", Help: "How often the stream of events could not be opened or was lost.",
		}),
		connectionSuccess: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_evented_pleg_connection_success_count", Help: "How often the stream of events was opened.",
		}),
	}
	if r != nil {
		r.MustRegister(m.duration, m.interval, m.inspection, m.lastSeen, m.stuck, m.connectionErrors, m.connectionSuccess)
	}
	return m
}

func (m *metrics) seen(now time.Time) { m.lastSeen.Set(float64(now.UnixNano()) / 1e9) }
