package manager

import (
	"context"
	"strings"
	"time"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/prober/internal/probe"
	"github.com/podplane/podplane/services/prober/internal/verdict"
)

// Pod is what its record says about a pod's probes.
type Pod struct {
	UID, Namespace, Name string
	Trace                *podplanev1.TraceContext
	// Ending: the pod is to go.
	Ending bool
	Probes []*Probe
}

// Probe is one probe of one container.
type Probe struct {
	Container string
	// FieldPath names the container in Events: spec.containers{name}.
	FieldPath string
	Params    verdict.Params
	Spec      *probe.Spec
	// Gated: the container has a startup probe.
	Gated bool
}

// Status is what its status says about a pod.
type Status struct {
	PodIP string
	// Ending: containers are being stopped. Over: none runs, none will.
	Ending, Over bool
	Containers   map[string]ContainerStatus
}

// ContainerStatus is the present instance of a container. The ID has no scheme in front.
type ContainerStatus struct {
	ID        string
	Running   bool
	Started   bool
	StartedAt time.Time
}

// podEntry is what Run knows about one pod.
type podEntry struct {
	pod   *Pod
	tasks []*task
}

// task is one probe and where it is.
//
//	resting (in the queue, or not due at all) --due--> waiting for room --> under way --its result--> resting
type task struct {
	pod     *podEntry
	probe   *Probe
	key     string
	machine verdict.Machine

	busy      bool // waiting for room, or under way
	gone      bool
	due       time.Time
	cancel    context.CancelFunc
	probing   string // the container that is being probed
	record    *podplanev1.ProbeRecord
	succeeded string // the container whose first success was traced
}

// container is what the task's machine has to know. A startup probe of our own that has succeeded opens the gate at
// once, before that has come back in the status.
func (e *podEntry) container(t *task, s *Status) verdict.Container {
	if s == nil {
		return verdict.Container{}
	}
	cs := s.Containers[t.probe.Container]
	c := verdict.Container{
		ID: cs.ID, Running: cs.Running, StartedAt: cs.StartedAt, Started: cs.Started || !t.probe.Gated,
		Reachable: s.PodIP != "" || !t.probe.Spec.NeedsIP(),
		Ending:    e.pod.Ending || s.Ending, Over: s.Over,
	}
	for _, other := range e.tasks {
		if other.probe.Container == t.probe.Container && other.probe.Params.Kind == verdict.Startup &&
			other.machine.ContainerID() == cs.ID && other.machine.Verdict() == verdict.Success {
			c.Started = true
		}
	}
	return c
}

// KindName is a probe's kind as in keys and metrics: startup, liveness or readiness.
func KindName(k podplanev1.ProbeKind) string {
	switch k {
	case verdict.Startup:
		return "startup"
	case verdict.Liveness:
		return "liveness"
	case verdict.Readiness:
		return "readiness"
	}
	return "unknown"
}

// title is a probe's kind at the beginning of a sentence.
func title(k podplanev1.ProbeKind) string {
	n := KindName(k)
	return strings.ToUpper(n[:1]) + n[1:]
}
