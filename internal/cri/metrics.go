package cri

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/podplane/podplane/internal/telemetry"
)

// Metrics counts the calls under the kubelet's names. It is an [Observer].
type Metrics struct {
	total, errors  *prometheus.CounterVec
	seconds        *prometheus.HistogramVec
	sandboxErrors  *prometheus.CounterVec
	sandboxSeconds *prometheus.HistogramVec
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	operation, handler := []string{"operation_type"}, []string{"runtime_handler"}
	buckets := prometheus.ExponentialBuckets(.005, 2.5, 14)
	m := &Metrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_runtime_operations_total", Help: "Number of calls to the container runtime by operation.",
		}, operation),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_runtime_operations_errors_total", Help: "Number of failed calls to the container runtime by operation.",
		}, operation),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_runtime_operations_duration_seconds", Help: "Duration of calls to the container runtime by operation.", Buckets: buckets,
		}, operation),
		sandboxErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_run_podsandbox_errors_total", Help: "Number of sandboxes that could not be run by runtime handler.",
		}, handler),
		sandboxSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_run_podsandbox_duration_seconds", Help: "Duration of running a sandbox by runtime handler.", Buckets: prometheus.DefBuckets,
		}, handler),
	}
	for _, c := range []prometheus.Collector{m.total, m.errors, m.seconds, m.sandboxErrors, m.sandboxSeconds} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of the container runtime: %w", err)
		}
	}
	return m, nil
}

// ObserveCall counts a call.
func (m *Metrics) ObserveCall(call Call) {
	m.total.WithLabelValues(call.Operation).Inc()
	telemetry.ObserveIn(call.Trace, m.seconds.WithLabelValues(call.Operation), call.Took)
	failures := m.errors.WithLabelValues(call.Operation) // from 0 on, so that the first is an increase
	if call.Err != nil {
		failures.Inc()
	}
	if call.Operation != opRunSandbox {
		return
	}
	telemetry.ObserveIn(call.Trace, m.sandboxSeconds.WithLabelValues(call.Handler), call.Took)
	if call.Err != nil {
		m.sandboxErrors.WithLabelValues(call.Handler).Inc()
	}
}

// Names of the operations, as the kubelet's metrics have them.
const (
	opVersion                  = "version"
	opStatus                   = "status"
	opRuntimeConfig            = "runtime_config"
	opRunSandbox               = "run_podsandbox"
	opStopSandbox              = "stop_podsandbox"
	opRemoveSandbox            = "remove_podsandbox"
	opSandboxStatus            = "podsandbox_status"
	opListSandboxes            = "list_podsandbox"
	opUpdateSandboxResources   = "update_podsandbox_resources"
	opPortForward              = "port_forward"
	opCreateContainer          = "create_container"
	opStartContainer           = "start_container"
	opStopContainer            = "stop_container"
	opRemoveContainer          = "remove_container"
	opListContainers           = "list_containers"
	opContainerStatus          = "container_status"
	opUpdateContainerResources = "update_container_resources"
	opReopenContainerLog       = "reopen_container_log"
	opExecSync                 = "exec_sync"
	opExec                     = "exec"
	opAttach                   = "attach"
	opContainerStats           = "container_stats"
	opListContainerStats       = "list_container_stats"
	opListSandboxStats         = "list_podsandbox_stats"
	opGetContainerEvents       = "get_container_events"
	opListImages               = "list_images"
	opImageStatus              = "image_status"
	opPullImage                = "pull_image"
	opRemoveImage              = "remove_image"
	opImageFsInfo              = "image_fs_info"
	opListDownloads            = "list_downloads"
)
