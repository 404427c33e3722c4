package events

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts what became of a recorder's events: none is lost in silence.
func Metrics(r *Recorder) []prometheus.Collector {
	counter := func(result string, count func() uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "podplane_events_total", Help: "Events by what became of them: published, dropped (no room, or refused) or filtered (above the limit of their object).",
			ConstLabels: prometheus.Labels{"result": result},
		}, func() float64 { return float64(count()) })
	}
	return []prometheus.Collector{counter("published", r.Published), counter("dropped", r.Dropped), counter("filtered", r.Filtered)}
}
