package status

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// role is what a container is for.
type role uint8

const (
	regular role = iota
	initial
	ephemeral
)

func (in *Input) ephemeral() []v1.ContainerStatus {
	list := in.Pod.Spec.EphemeralContainers
	specs := make([]v1.Container, len(list))
	for i := range list {
		specs[i] = v1.Container(list[i].EphemeralContainerCommon)
	}
	return in.containers(specs, ephemeral)
}

func (in *Input) containers(specs []v1.Container, as role) []v1.ContainerStatus {
	if len(specs) == 0 {
		return nil
	}
	list := make([]v1.ContainerStatus, 0, len(specs))
	for i := range specs {
		list = append(list, in.container(&specs[i], as))
	}
	return list
}

func (in *Input) container(spec *v1.Container, as role) v1.ContainerStatus {
	init := as == initial
	prev := in.previousStatus(spec.Name, as)
	if prev != nil && prev.State.Terminated != nil && isTerminal(in.Previous.Phase) {
		return *prev // what is removed from the runtime now changes nothing any more
	}
	newest := in.Newest(spec.Name)
	s := v1.ContainerStatus{Name: spec.Name, Image: spec.Image}
	if prev != nil {
		s.RestartCount = prev.RestartCount
		s.ImageID, s.ContainerID = prev.ImageID, prev.ContainerID
	}
	if newest != nil {
		in.describe(&s, newest)
	}
	s.State = in.state(spec, newest, prev, init)
	s.LastTerminationState = in.last(spec, newest, prev, &s)
	s.VolumeMounts = volumeMounts(spec, newest)
	if last, is := s.LastTerminationState.Terminated, s.State.Terminated; last != nil && is != nil && last.ContainerID == is.ContainerID {
		s.LastTerminationState = v1.ContainerState{} // it was shown as the last one while a restart was under way that came to nothing
	}
	if as == ephemeral {
		return s // it is neither started nor ready in Kubernetes' sense
	}
	in.resources(&s, spec, newest, prev)
	started := newest != nil && in.Started(spec)
	s.Started = &started
	switch {
	case !init || plan.IsSidecar(spec):
		s.Ready = started && in.Ready(spec)
	case s.State.Terminated != nil:
		s.Ready = s.State.Terminated.ExitCode == 0
	}
	return s
}

// describe fills in what the runtime knows of the instance.
func (in *Input) describe(s *v1.ContainerStatus, c *pod.Container) {
	s.RestartCount = max(s.RestartCount, int32(min(c.Attempt, 1<<30)))
	s.ContainerID = in.RuntimeName + "://" + c.ID
	if c.Image != "" {
		s.Image = c.Image
	}
	if s.ImageID = c.ImageRef; s.ImageID == "" {
		s.ImageID = c.ImageID
	}
	if c.StopSignal != "" {
		signal := v1.Signal(c.StopSignal)
		s.StopSignal = &signal
	}
	if u := c.User; u != nil {
		s.User = &v1.ContainerUser{Linux: &v1.LinuxContainerUser{UID: u.UID, GID: u.GID, SupplementalGroups: u.SupplementalGroups}}
	}
}

func (in *Input) state(spec *v1.Container, newest *pod.Container, prev *v1.ContainerStatus, init bool) v1.ContainerState {
	if newest != nil && newest.State == pod.ContainerRunning {
		return v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(newest.StartedAt)}}
	}
	if init && !plan.IsSidecar(spec) && in.successLost(newest, prev) {
		return v1.ContainerState{Terminated: in.lostInit(prev)}
	}
	waiting := in.waiting(spec)
	if newest != nil && newest.State == pod.ContainerExited && (waiting == nil || in.Plan.Phase != plan.Syncing || in.StaysEnded(spec)) {
		return v1.ContainerState{Terminated: in.terminated(newest)}
	}
	if newest != nil && newest.State == pod.ContainerUnknown {
		return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
			ExitCode: 137, Reason: ReasonContainerStatusUnknown, ContainerID: in.RuntimeName + "://" + newest.ID,
			Message: "The container could not be located when its state was read",
		}}
	}
	if newest == nil && in.Plan.Phase != plan.Syncing && prev != nil && prev.State.Terminated != nil {
		return prev.State
	}
	if waiting == nil {
		waiting = &v1.ContainerStateWaiting{Reason: in.creating()}
	}
	return v1.ContainerState{Waiting: waiting}
}

// successLost says whether an init container must have succeeded, as others were started after it, though the runtime has no record of that. Of a pod
// that ends only what was published tells whether its containers were all restarted.
func (in *Input) successLost(newest *pod.Container, prev *v1.ContainerStatus) bool {
	if newest != nil && newest.State == pod.ContainerExited {
		published := prev != nil && prev.State.Terminated != nil && prev.State.Terminated.ExitCode == 0
		if newest.ExitCode == 0 || (in.Plan.Phase != plan.Syncing && !published) {
			return false
		}
	} else if newest != nil && newest.State != pod.ContainerCreated {
		return false
	}
	return in.currentInitialized()
}

// lostInit is the state of an init container that must have succeeded but whose record is gone.
func (in *Input) lostInit(prev *v1.ContainerStatus) *v1.ContainerStateTerminated {
	if prev != nil && prev.State.Terminated != nil && prev.State.Terminated.ExitCode == 0 {
		return prev.State.Terminated
	}
	return &v1.ContainerStateTerminated{
		Reason: ReasonCompleted, Message: "Unable to get init container status from container runtime and pod has been initialized",
	}
}

// currentInitialized says whether regular containers exist, which only happens with the init containers over.
func (in *Input) currentInitialized() bool {
	return !in.Runtime.Empty() && plan.Initialized(&in.Input)
}

// waiting returns why the container is not there yet, nil when nothing is known to hold it up.
func (in *Input) waiting(spec *v1.Container) *v1.ContainerStateWaiting {
	for i := range in.Plan.Waits {
		if w := &in.Plan.Waits[i]; w.Container == spec.Name && w.Reason != "" {
			return &v1.ContainerStateWaiting{Reason: w.Reason, Message: shownMessage(w)}
		}
	}
	if f, ok := in.Failures[spec.Name]; ok && f.Reason != "" {
		return &v1.ContainerStateWaiting{Reason: f.Reason, Message: f.Message}
	}
	return nil
}

// shownMessage leaves the message out where Kubernetes has none: a container on its normal way.
func shownMessage(w *plan.Wait) string {
	if w.Reason == plan.ReasonContainerCreating || w.Reason == plan.ReasonPodInitializing {
		return ""
	}
	return w.Message
}

func (in *Input) creating() string {
	if len(in.Pod.Spec.InitContainers) > 0 {
		return plan.ReasonPodInitializing
	}
	return plan.ReasonContainerCreating
}

func (in *Input) terminated(c *pod.Container) *v1.ContainerStateTerminated {
	t := &v1.ContainerStateTerminated{
		ExitCode: c.ExitCode, Reason: c.Reason, Message: in.Messages[c.ID],
		FinishedAt: metav1.NewTime(c.FinishedAt), ContainerID: in.RuntimeName + "://" + c.ID,
	}
	if !c.StartedAt.IsZero() {
		t.StartedAt = metav1.NewTime(c.StartedAt)
	}
	if t.Message == "" {
		t.Message = c.Message
	}
	if c.ExitCode != 0 && in.Past(c) && c.FinishedAt.After(in.RestartedAllAt()) {
		t.Reason = ReasonRestartingAllContainers
	}
	if t.Reason == "" {
		t.Reason = ReasonError
		if c.ExitCode == 0 {
			t.Reason = ReasonCompleted
		}
	}
	return t
}

// last returns the last termination before the present state.
func (in *Input) last(spec *v1.Container, newest *pod.Container, prev *v1.ContainerStatus, s *v1.ContainerStatus) v1.ContainerState {
	if newest != nil && newest.State == pod.ContainerExited && s.State.Terminated == nil {
		return v1.ContainerState{Terminated: in.terminated(newest)}
	}
	for i := range in.Runtime.Containers {
		c := &in.Runtime.Containers[i]
		if c.Name == spec.Name && c != newest && c.State == pod.ContainerExited && !c.FinishedAt.IsZero() && !in.Interrupted(c) {
			return v1.ContainerState{Terminated: in.terminated(c)}
		}
	}
	if prev == nil {
		return v1.ContainerState{}
	}
	replaced := prev.ContainerID != "" && prev.ContainerID != s.ContainerID
	switch {
	case prev.State.Terminated != nil && (replaced || s.State.Waiting != nil):
		return v1.ContainerState{Terminated: prev.State.Terminated}
	case prev.State.Running != nil && (replaced || newest == nil) && s.State.Terminated == nil:
		return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
			ExitCode: 137, Reason: ReasonContainerStatusUnknown, ContainerID: prev.ContainerID, StartedAt: prev.State.Running.StartedAt,
			Message: "The container could not be located when the pod was observed. Its record was lost",
		}}
	}
	return prev.LastTerminationState
}

// volumeMounts tells how the container's volumes are mounted: whether read-only goes all the way down, only the runtime knows.
func volumeMounts(spec *v1.Container, newest *pod.Container) []v1.VolumeMountStatus {
	if newest == nil {
		return nil
	}
	list := make([]v1.VolumeMountStatus, 0, len(spec.VolumeMounts))
	for i := range spec.VolumeMounts {
		vm := &spec.VolumeMounts[i]
		s := v1.VolumeMountStatus{Name: vm.Name, MountPath: vm.MountPath, ReadOnly: vm.ReadOnly}
		if vm.ReadOnly {
			mode := v1.RecursiveReadOnlyDisabled
			if slices.ContainsFunc(newest.Mounts, func(m pod.Mount) bool { return m.ContainerPath == vm.MountPath && m.RecursiveReadOnly }) {
				mode = v1.RecursiveReadOnlyEnabled
			}
			s.RecursiveReadOnly = &mode
		}
		list = append(list, s)
	}
	return list
}

// resources tells what is allocated to the container, and what it really has.
func (in *Input) resources(s *v1.ContainerStatus, spec *v1.Container, newest *pod.Container, prev *v1.ContainerStatus) {
	if len(spec.Resources.Requests)+len(spec.Resources.Limits) == 0 {
		return
	}
	s.AllocatedResources = spec.Resources.Requests
	s.Resources = &v1.ResourceRequirements{Limits: spec.Resources.Limits, Requests: spec.Resources.Requests}
	if newest == nil || newest.State != pod.ContainerRunning {
		return
	}
	if cpu, memory := plan.Resized(in.Pod, spec, newest); (cpu || memory) && prev != nil && prev.Resources != nil {
		s.Resources = prev.Resources // those of before, until they are changed
	}
}

func (in *Input) previousStatus(name string, as role) *v1.ContainerStatus {
	if in.Previous == nil {
		return nil
	}
	list := in.Previous.ContainerStatuses
	switch as {
	case initial:
		list = in.Previous.InitContainerStatuses
	case ephemeral:
		list = in.Previous.EphemeralContainerStatuses
	}
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}
