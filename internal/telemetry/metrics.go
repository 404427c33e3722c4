package telemetry

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/trace"
)

// LatencyBuckets suit what takes a fraction of a millisecond up to a minute.
var LatencyBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// NewRegistry makes a service's metrics registry, with go_*, process_* and podplane_build_info in it.
func NewRegistry(id Identity) *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "podplane_build_info", Help: "Always 1; the labels say which service this is, of which version, on which node.",
		ConstLabels: prometheus.Labels{"service": id.Service, "version": id.Version, "node": id.Node},
	})
	build.Set(1)
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), build)
	return r
}

// Observe observes how long something took in the trace of ctx: where that trace is sent, the histogram's bucket gets it as its exemplar, so
// that one leads from a slow bucket to a trace that fell into it.
func Observe(ctx context.Context, h prometheus.Observer, took time.Duration) {
	ObserveIn(trace.SpanContextFromContext(ctx), h, took)
}

// ObserveIn is Observe for who has kept the span's context alone.
func ObserveIn(sc trace.SpanContext, h prometheus.Observer, took time.Duration) {
	if e, ok := h.(prometheus.ExemplarObserver); ok && sc.IsValid() && sc.IsSampled() {
		e.ObserveWithExemplar(took.Seconds(), prometheus.Labels{"trace_id": sc.TraceID().String(), "span_id": sc.SpanID().String()})
		return
	}
	h.Observe(took.Seconds())
}
