package manager

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/podplane/podplane/services/evictd/internal/policy"
)

type metrics struct{ evictions *prometheus.CounterVec }

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{evictions: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubelet_evictions", Help: "Orders to evict a pod, by the signal that crossed its threshold.",
	}, []string{"eviction_signal"})}
	for _, s := range policy.Signals {
		m.evictions.WithLabelValues(string(s)) // from 0 on, so that the first eviction is an increase
	}
	if r != nil {
		r.MustRegister(m.evictions)
	}
	return m
}
