// Package status says what a pod's status is. [Make] is a pure function of the same input as package plan's decision, the decision
// itself and the status published before: no I/O, no clock.
//
// Guarantees: the phase never leaves Succeeded or Failed; restart counts never shrink; a condition's transition time changes only with its status; readiness and
// started are kept for the same container as long as no verdict says otherwise, so that a restart of any service flips nothing. A status must only be
// made from a complete observation of the runtime: callers keep the old one while Input.Stale.
package status

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// Input is all that a status depends on.
type Input struct {
	plan.Input
	// Plan is the decision that was made from the same input.
	Plan plan.Plan
	// HostIPs are the node's addresses, the primary one first.
	HostIPs []string
	// RuntimeName is the scheme of container IDs, such as "containerd".
	RuntimeName string
	// FirstSeen becomes the start time when none was published.
	FirstSeen time.Time
	// Messages holds termination messages by container ID.
	Messages map[string]string
}

// Reasons of containers' states that are made here.
const (
	ReasonCompleted              = "Completed"
	ReasonError                  = "Error"
	ReasonContainerStatusUnknown = "ContainerStatusUnknown"
	// ReasonRestartingAllContainers: it was killed because another container asked for a restart of all.
	ReasonRestartingAllContainers = "RestartingAllContainers"
)

// Make returns the pod's status.
func Make(in Input) v1.PodStatus {
	s := v1.PodStatus{
		ObservedGeneration: in.Pod.Generation,
		QOSClass:           QOSClass(in.Pod),
		StartTime:          in.startTime(),
	}
	s.InitContainerStatuses = in.containers(in.Pod.Spec.InitContainers, initial)
	s.ContainerStatuses = in.containers(in.Pod.Spec.Containers, regular)
	s.EphemeralContainerStatuses = in.ephemeral()
	s.Phase = in.phase(&s)
	if in.Plan.Phase == plan.Terminated {
		in.settle(&s)
	}
	in.addresses(&s)
	if stop := in.Plan.Stop; stop != nil {
		s.Reason, s.Message = stop.Reason, stop.Message
	}
	if in.Previous != nil && s.Reason == "" {
		s.Reason, s.Message = in.Previous.Reason, in.Previous.Message
	}
	s.Conditions = in.conditions(&s)
	return s
}

// Unobserved returns the status of a pod that can't be observed now: the one before, with the reason for which it is being stopped.
func Unobserved(before *v1.PodStatus, stop *plan.Stop) *v1.PodStatus {
	if stop == nil || stop.Reason == "" || before.Reason != "" {
		return before
	}
	s := *before
	s.Reason, s.Message = stop.Reason, stop.Message
	return &s
}

func (in *Input) startTime() *metav1.Time {
	if in.Previous != nil && in.Previous.StartTime != nil {
		return in.Previous.StartTime
	}
	if in.FirstSeen.IsZero() {
		return nil
	}
	t := metav1.NewTime(in.FirstSeen)
	return &t
}

// addresses sets the node's and the pod's addresses. A pod keeps the last ones that it had.
func (in *Input) addresses(s *v1.PodStatus) {
	for _, ip := range in.HostIPs {
		s.HostIPs = append(s.HostIPs, v1.HostIP{IP: ip})
	}
	if len(in.HostIPs) > 0 {
		s.HostIP = in.HostIPs[0]
	}
	ips := in.Runtime.IPs()
	if in.Pod.Spec.HostNetwork && in.Runtime.ReadySandbox() != nil {
		ips = in.HostIPs
	}
	for _, ip := range ips {
		s.PodIPs = append(s.PodIPs, v1.PodIP{IP: ip})
	}
	if len(ips) == 0 && in.Previous != nil && in.Runtime.ReadySandbox() == nil && in.Plan.Phase != plan.Syncing {
		s.PodIPs = slices.Clone(in.Previous.PodIPs)
	}
	if len(s.PodIPs) > 0 {
		s.PodIP = s.PodIPs[0].IP
	}
}

// QOSClass returns the quality-of-service class of the pod. What it asks for as a whole counts, else what each container does.
func QOSClass(p *v1.Pod) v1.PodQOSClass {
	any, guaranteed := false, true
	count := func(r *v1.ResourceRequirements) {
		for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			request, limit := r.Requests[name], r.Limits[name]
			if !request.IsZero() || !limit.IsZero() {
				any = true
			}
			if limit.IsZero() || (!request.IsZero() && request.Cmp(limit) != 0) {
				guaranteed = false
			}
		}
	}
	if r := p.Spec.Resources; r != nil && len(r.Requests)+len(r.Limits) > 0 {
		count(r)
	} else {
		for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				count(&list[i].Resources)
			}
		}
	}
	switch {
	case !any:
		return v1.PodQOSBestEffort
	case guaranteed:
		return v1.PodQOSGuaranteed
	}
	return v1.PodQOSBurstable
}
