package status

import (
	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// phase returns the pod's phase. Succeeded and Failed are only told once nothing runs any more, and never taken back.
func (in *Input) phase(s *v1.PodStatus) v1.PodPhase {
	if in.Previous != nil && isTerminal(in.Previous.Phase) {
		return in.Previous.Phase
	}
	if in.Plan.Phase == plan.Terminated {
		return in.terminalPhase(s)
	}
	if in.Plan.Phase == plan.Terminating && in.Previous != nil && in.Previous.Phase == v1.PodRunning {
		return v1.PodRunning
	}
	if !in.currentInitialized() && !in.everRan(s) {
		return v1.PodPending
	}
	for i := range s.ContainerStatuses {
		c := &s.ContainerStatuses[i]
		if c.State.Waiting != nil && c.LastTerminationState.Terminated == nil {
			return v1.PodPending
		}
	}
	return v1.PodRunning
}

func isTerminal(p v1.PodPhase) bool { return p == v1.PodSucceeded || p == v1.PodFailed }

// everRan says whether a regular container ran before, perhaps in another sandbox.
func (in *Input) everRan(s *v1.PodStatus) bool {
	for i := range s.ContainerStatuses {
		if c := &s.ContainerStatuses[i]; c.State.Running != nil || c.LastTerminationState.Terminated != nil || c.State.Terminated != nil {
			return len(s.InitContainerStatuses) == 0
		}
	}
	return false
}

// terminalPhase says how the pod ended.
func (in *Input) terminalPhase(s *v1.PodStatus) v1.PodPhase {
	if stop := in.Plan.Stop; stop != nil {
		if stop.Cause == plan.CauseInitFailed || stop.Cause == plan.CauseDeadline || stop.Cause == plan.CauseEviction || stop.Reason != "" {
			return v1.PodFailed
		}
	}
	for i := range s.ContainerStatuses {
		t := s.ContainerStatuses[i].State.Terminated
		if t == nil || t.ExitCode != 0 || t.Reason == "OOMKilled" {
			return v1.PodFailed
		}
	}
	return v1.PodSucceeded
}

// settle gives every container of a terminated pod a final state.
func (in *Input) settle(s *v1.PodStatus) {
	if !in.wasInitialized(s) {
		return
	}
	for i := range s.ContainerStatuses {
		c := &s.ContainerStatuses[i]
		c.Ready = false
		if c.State.Terminated != nil {
			continue
		}
		if last := c.LastTerminationState.Terminated; last != nil && c.State.Waiting != nil {
			c.State, c.LastTerminationState = v1.ContainerState{Terminated: last}, v1.ContainerState{}
			continue
		}
		c.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
			ExitCode: 137, Reason: ReasonContainerStatusUnknown, ContainerID: c.ContainerID,
			Message: "The container could not be located when the pod was terminated",
		}}
	}
}

// wasInitialized says whether the init containers were over.
func (in *Input) wasInitialized(s *v1.PodStatus) bool {
	for i := range s.InitContainerStatuses {
		if plan.IsSidecar(&in.Pod.Spec.InitContainers[i]) {
			continue
		}
		if t := s.InitContainerStatuses[i].State.Terminated; t == nil || t.ExitCode != 0 {
			return false
		}
	}
	return true
}
