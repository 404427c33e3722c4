package status

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// Reasons of conditions.
const (
	reasonNotInitialized  = "ContainersNotInitialized"
	reasonNotReady        = "ContainersNotReady"
	reasonPodCompleted    = "PodCompleted"
	reasonPodFailed       = "PodFailed"
	reasonGatesNotReady   = "ReadinessGatesNotReady"
	reasonTermination     = "TerminationByKubelet"
	reasonRestartingAll   = "RestartAllContainersStarted"
	conditionReadyToStart = v1.PodReadyToStartContainers
)

// conditions returns the pod's conditions, those of others (readiness gates) kept.
func (in *Input) conditions(s *v1.PodStatus) []v1.PodCondition {
	containers := in.containersReady(s)
	list := []v1.PodCondition{
		in.readyToStart(),
		in.initialized(s),
		in.ready(s, containers),
		containers,
		{Type: v1.PodScheduled, Status: v1.ConditionTrue},
	}
	if stop := in.Plan.Stop; stop != nil && (stop.Reason == plan.ReasonEvicted || stop.Reason == plan.ReasonPreempting) && in.Plan.Phase == plan.Terminated {
		list = append(list, v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: reasonTermination, Message: stop.Message})
	}
	if in.RestartingAll() {
		list = append(list, v1.PodCondition{Type: v1.AllContainersRestarting, Status: v1.ConditionTrue, Reason: reasonRestartingAll})
	}
	if in.Plan.Phase == plan.Syncing {
		list = append(list, in.resize()...)
	}
	for i := range list {
		in.stamp(&list[i])
	}
	return append(list, in.Pod.Status.Conditions...)
}

// OwnCondition says whether the node alone sets the condition.
func OwnCondition(t v1.PodConditionType) bool {
	return slices.Contains([]v1.PodConditionType{
		v1.PodScheduled, v1.PodInitialized, v1.ContainersReady, v1.PodReady, conditionReadyToStart, v1.DisruptionTarget,
		v1.PodResizePending, v1.PodResizeInProgress, v1.AllContainersRestarting,
	}, t)
}

// resize says what became of a change of the pod's resources.
func (in *Input) resize() []v1.PodCondition {
	var list []v1.PodCondition
	r := &in.Resize
	if r.Pending != "" {
		list = append(list, v1.PodCondition{Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: r.Pending, Message: r.Message})
	}
	if r.Due {
		c := v1.PodCondition{Type: v1.PodResizeInProgress, Status: v1.ConditionTrue}
		if r.Failure.Count > 0 {
			c.Reason, c.Message = v1.PodReasonError, r.Failure.Message
		}
		list = append(list, c)
	}
	return list
}

// stamp sets the transition time: that of the previous condition if its status is the same.
func (in *Input) stamp(c *v1.PodCondition) {
	c.ObservedGeneration = in.Pod.Generation
	c.LastTransitionTime = metav1.NewTime(in.Now)
	if in.Previous == nil {
		return
	}
	for i := range in.Previous.Conditions {
		if old := &in.Previous.Conditions[i]; old.Type == c.Type && old.Status == c.Status && !old.LastTransitionTime.IsZero() {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
}

func (in *Input) readyToStart() v1.PodCondition {
	c := v1.PodCondition{Type: conditionReadyToStart, Status: v1.ConditionFalse}
	if s := in.Runtime.ReadySandbox(); s != nil && (len(s.IPs) > 0 || s.HostNetwork) {
		c.Status = v1.ConditionTrue
	}
	return c
}

func (in *Input) initialized(s *v1.PodStatus) v1.PodCondition {
	c := v1.PodCondition{Type: v1.PodInitialized, Status: v1.ConditionTrue}
	if s.Phase == v1.PodSucceeded {
		c.Reason = reasonPodCompleted
		return c
	}
	var pending []string
	for i := range s.InitContainerStatuses {
		st := &s.InitContainerStatuses[i]
		ok := st.State.Terminated != nil && st.State.Terminated.ExitCode == 0
		if plan.IsSidecar(&in.Pod.Spec.InitContainers[i]) {
			ok = st.Started != nil && *st.Started
		}
		if !ok {
			pending = append(pending, st.Name)
		}
	}
	if len(pending) > 0 {
		c.Status, c.Reason = v1.ConditionFalse, reasonNotInitialized
		c.Message = fmt.Sprintf("containers with incomplete status: [%s]", strings.Join(pending, " "))
	}
	return c
}

func (in *Input) containersReady(s *v1.PodStatus) v1.PodCondition {
	c := v1.PodCondition{Type: v1.ContainersReady, Status: v1.ConditionFalse}
	switch s.Phase {
	case v1.PodSucceeded:
		c.Reason = reasonPodCompleted
		return c
	case v1.PodFailed:
		c.Reason = reasonPodFailed
		return c
	}
	var unready []string
	for i := range s.InitContainerStatuses {
		if st := &s.InitContainerStatuses[i]; plan.IsSidecar(&in.Pod.Spec.InitContainers[i]) && !st.Ready {
			unready = append(unready, st.Name)
		}
	}
	for i := range s.ContainerStatuses {
		if st := &s.ContainerStatuses[i]; !st.Ready {
			unready = append(unready, st.Name)
		}
	}
	if len(unready) > 0 {
		c.Reason = reasonNotReady
		c.Message = fmt.Sprintf("containers with unready status: [%s]", strings.Join(unready, " "))
		return c
	}
	c.Status = v1.ConditionTrue
	return c
}

func (in *Input) ready(s *v1.PodStatus, containers v1.PodCondition) v1.PodCondition {
	c := v1.PodCondition{Type: v1.PodReady, Status: containers.Status, Reason: containers.Reason, Message: containers.Message}
	if c.Status != v1.ConditionTrue {
		return c
	}
	var missing []string
	for _, gate := range in.Pod.Spec.ReadinessGates {
		if !in.gateOpen(gate.ConditionType) {
			missing = append(missing, string(gate.ConditionType))
		}
	}
	if len(missing) > 0 {
		c.Status, c.Reason = v1.ConditionFalse, reasonGatesNotReady
		c.Message = fmt.Sprintf("the status of pod readiness gates is not \"True\": [%s]", strings.Join(missing, " "))
	}
	return c
}

func (in *Input) gateOpen(t v1.PodConditionType) bool {
	return slices.ContainsFunc(in.Pod.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == t && c.Status == v1.ConditionTrue })
}
