package manager

import "github.com/prometheus/client_golang/prometheus"

type metrics struct{ evictions *prometheus.CounterVec }

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{evictions: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubelet_evictions", Help: "Orders to evict a pod, by the signal that crossed its threshold.",
	}, []string{"eviction_signal"})}
	if r != nil {
		r.MustRegister(m.evictions)
	}
	return m
}
