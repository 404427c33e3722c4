package images

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
)

// Metrics count pulls, under the kubelet's names. A nil one counts nothing.
type Metrics struct {
	requests *prometheus.CounterVec
	checks   *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_image_manager_ensure_image_requests_total", Help: "Images that were asked for, by pull policy, presence and whether a pull was needed.",
		}, []string{"pull_policy", "present_locally", "pull_required"}),
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_imagemanager_image_mustpull_checks_total", Help: "Checks whether a pod may use an image that is present, by result.",
		}, []string{"result"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_image_pull_duration_seconds", Help: "Duration of successful pulls, by the size of the image.",
			Buckets: []float64{1, 5, 10, 20, 30, 60, 180, 600, 1200, 3600},
		}, []string{"image_size_in_bytes"}),
	}
	return m, errors.Join(r.Register(m.requests), r.Register(m.checks), r.Register(m.duration))
}

func (m *Metrics) ensured(policy v1.PullPolicy, present string, pull bool) {
	if m == nil {
		return
	}
	m.requests.WithLabelValues(string(policy), present, fmt.Sprint(pull)).Inc()
}

func (m *Metrics) checked(ok bool, err error) {
	if m == nil {
		return
	}
	result := "mustAuthenticate"
	switch {
	case err != nil:
		result = "error"
	case ok:
		result = "allowed"
	}
	m.checks.WithLabelValues(result).Inc()
}

func (m *Metrics) pulled(size uint64, d time.Duration) {
	if m == nil {
		return
	}
	m.duration.WithLabelValues(bucketOf(size)).Observe(d.Seconds())
}

// bucketOf names the class of an image's size.
func bucketOf(size uint64) string {
	const mb, gb = 1 << 20, 1 << 30
	for _, b := range []struct {
		below uint64
		name  string
	}{{10 * mb, "0-10MB"}, {100 * mb, "10MB-100MB"}, {500 * mb, "100MB-500MB"}, {gb, "500MB-1GB"}, {5 * gb, "1GB-5GB"}, {10 * gb, "5GB-10GB"}, {20 * gb, "10GB-20GB"}, {30 * gb, "20GB-30GB"}, {40 * gb, "30GB-40GB"}, {60 * gb, "40GB-60GB"}, {100 * gb, "60GB-100GB"}} {
		if size < b.below {
			return b.name
		}
	}
	return "GT100GB"
}
