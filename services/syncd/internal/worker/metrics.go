package worker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/podplane/podplane/internal/telemetry"
)

// Metrics are the workers' metrics, under the kubelet's names. A nil *Metrics counts nothing.
type Metrics struct {
	sync     prometheus.Histogram
	start    prometheus.Histogram
	starts   prometheus.Counter
	failures *prometheus.CounterVec
	orphans  prometheus.Counter
	workers  prometheus.Gauge
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		sync: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pod_worker_duration_seconds", Help: "Duration of one sync of a pod that did something.", Buckets: prometheus.ExponentialBuckets(0.005, 2.5, 10),
		}),
		start: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pod_start_duration_seconds", Help: "Time from a pod's creation until it was ready for the first time.", Buckets: prometheus.ExponentialBuckets(0.05, 2, 13),
		}),
		starts:   prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_started_containers_total", Help: "Containers started."}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_started_containers_errors_total", Help: "Container starts that failed, by reason."}, []string{"code"}),
		orphans:  prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_orphaned_runtime_pods_total", Help: "Pods found in the runtime that nobody wants."}),
		workers:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_running_pods", Help: "Pods that have a worker."}),
	}
	for _, reason := range []string{ReasonCreateContainerConfigError, ReasonCreateContainerError, ReasonRunContainerError} {
		m.failures.WithLabelValues(reason) // from 0 on, so that the first failure is an increase
	}
	for _, c := range []prometheus.Collector{m.sync, m.start, m.starts, m.failures, m.orphans, m.workers} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) synced(sc trace.SpanContext, d time.Duration) {
	if m != nil {
		telemetry.ObserveIn(sc, m.sync, d)
	}
}

func (m *Metrics) podStarted(sc trace.SpanContext, d time.Duration) {
	if m != nil {
		telemetry.ObserveIn(sc, m.start, d)
	}
}

func (m *Metrics) started() {
	if m != nil {
		m.starts.Inc()
	}
}

func (m *Metrics) startFailed(reason string) {
	if m != nil {
		m.failures.WithLabelValues(reason).Inc()
	}
}

func (m *Metrics) orphaned() {
	if m != nil {
		m.orphans.Inc()
	}
}

func (m *Metrics) pods(n int) {
	if m != nil {
		m.workers.Set(float64(n))
	}
}
