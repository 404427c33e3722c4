package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
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
