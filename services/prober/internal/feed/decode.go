package feed

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/prober/internal/manager"
	"github.com/podplane/podplane/services/prober/internal/probe"
	"github.com/podplane/podplane/services/prober/internal/verdict"
)

// podJSON is the part of a v1.Pod that is of interest here.
type podJSON struct {
	Metadata struct {
		DeletionTimestamp *metav1.Time `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec struct {
		InitContainers []corev1.Container `json:"initContainers"`
		Containers     []corev1.Container `json:"containers"`
	} `json:"spec"`
}

func decodePod(r *podplanev1.PodRecord) (*manager.Pod, error) {
	var j podJSON
	if err := json.Unmarshal(r.GetPod(), &j); err != nil {
		return nil, fmt.Errorf("decode pod %s/%s: %w", r.GetNamespace(), r.GetName(), err)
	}
	p := &manager.Pod{
		UID: r.GetUid(), Namespace: r.GetNamespace(), Name: r.GetName(), Trace: r.GetTrace(), Ending: j.Metadata.DeletionTimestamp != nil,
	}
	for i := range j.Spec.InitContainers {
		c := &j.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways { // a sidecar
			p.Probes = append(p.Probes, probes(c, "spec.initContainers{"+c.Name+"}")...)
		}
	}
	for i := range j.Spec.Containers {
		c := &j.Spec.Containers[i]
		p.Probes = append(p.Probes, probes(c, "spec.containers{"+c.Name+"}")...)
	}
	return p, nil
}

func probes(c *corev1.Container, fieldPath string) []*manager.Probe {
	var list []*manager.Probe
	for _, k := range []struct {
		kind  podplanev1.ProbeKind
		probe *corev1.Probe
	}{{verdict.Startup, c.StartupProbe}, {verdict.Liveness, c.LivenessProbe}, {verdict.Readiness, c.ReadinessProbe}} {
		if k.probe == nil {
			continue
		}
		list = append(list, &manager.Probe{
			Container: c.Name, FieldPath: fieldPath, Gated: c.StartupProbe != nil, Spec: probe.NewSpec(k.probe, c),
			Params: verdict.Params{
				Kind:             k.kind,
				InitialDelay:     time.Duration(k.probe.InitialDelaySeconds) * time.Second,
				Period:           time.Duration(k.probe.PeriodSeconds) * time.Second,
				SuccessThreshold: int(k.probe.SuccessThreshold), FailureThreshold: failureThreshold(k.probe),
			},
		})
	}
	return list
}

// failureThreshold is Kubernetes' default where none is set.
func failureThreshold(p *corev1.Probe) int {
	if p.FailureThreshold <= 0 {
		return 3
	}
	return int(p.FailureThreshold)
}

// statusJSON is the part of a v1.PodStatus that is of interest here.
type statusJSON struct {
	Phase                 corev1.PodPhase `json:"phase"`
	PodIP                 string          `json:"podIP"`
	InitContainerStatuses []containerJSON `json:"initContainerStatuses"`
	ContainerStatuses     []containerJSON `json:"containerStatuses"`
}

type containerJSON struct {
	Name        string `json:"name"`
	ContainerID string `json:"containerID"`
	Started     *bool  `json:"started"`
	State       struct {
		Running *struct {
			StartedAt metav1.Time `json:"startedAt"`
		} `json:"running"`
	} `json:"state"`
}

func decodeStatus(r *podplanev1.StatusRecord) (*manager.Status, error) {
	var j statusJSON
	if len(r.GetStatus()) > 0 {
		if err := json.Unmarshal(r.GetStatus(), &j); err != nil {
			return nil, fmt.Errorf("decode status of pod %s/%s: %w", r.GetNamespace(), r.GetName(), err)
		}
	}
	s := &manager.Status{
		PodIP:      j.PodIP,
		Ending:     r.GetPhase() >= podplanev1.WorkerPhase_WORKER_PHASE_TERMINATING,
		Over:       r.GetPhase() == podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED || j.Phase == corev1.PodSucceeded || j.Phase == corev1.PodFailed,
		Containers: make(map[string]manager.ContainerStatus, len(j.ContainerStatuses)),
	}
	for _, list := range [][]containerJSON{j.InitContainerStatuses, j.ContainerStatuses} {
		for i := range list {
			s.Containers[list[i].Name] = list[i].status()
		}
	}
	return s, nil
}

func (c *containerJSON) status() manager.ContainerStatus {
	_, id, found := strings.Cut(c.ContainerID, "://")
	if !found {
		id = c.ContainerID
	}
	s := manager.ContainerStatus{ID: id, Started: c.Started != nil && *c.Started}
	if c.State.Running != nil {
		s.Running, s.StartedAt = true, c.State.Running.StartedAt.Time
	}
	return s
}
