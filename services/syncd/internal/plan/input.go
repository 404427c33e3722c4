package plan

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
)

// Phase is the phase of a pod's worker. It only moves forward.
type Phase uint8

const (
	// Syncing: containers may run. Transitions to: Terminating.
	Syncing Phase = iota
	// Terminating: containers are being stopped, none is started. Transitions to: Terminated.
	Terminating
	// Terminated: no container runs and none will. Transitions to: the pod is gone, when it was deleted.
	Terminated
)

// String returns the phase's name.
func (p Phase) String() string {
	return [...]string{"Syncing", "Terminating", "Terminated"}[min(p, Terminated)]
}

// Cause says why a pod is stopped.
type Cause uint8

// The causes, the later ones override the earlier ones.
const (
	// CauseCompleted: nothing is left to run.
	CauseCompleted Cause = iota
	// CauseInitFailed: an init container failed and may not be restarted.
	CauseInitFailed
	// CauseDeadline: activeDeadlineSeconds are over.
	CauseDeadline
	// CauseEviction: an eviction order.
	CauseEviction
	// CauseDeletion: the pod is to go.
	CauseDeletion
)

// Stop is the decision to stop a pod.
type Stop struct {
	Cause Cause
	// Reason and Message become those of the pod's status, when set.
	Reason  string
	Message string
	// Deadline is when the containers are to be killed at the latest; NoGrace: at once, without hooks.
	Deadline time.Time
	NoGrace  bool
}

// Busy says which resources have an action under way.
type Busy struct {
	Sandbox bool
	// Containers that are being created or started, by name; images that are being ensured, by container name or [VolumeImage].
	Containers map[string]bool
	Images     map[string]bool
	// Kills under way: container ID to the moment at which the container is killed at the latest.
	Kills map[string]time.Time
	// Sandboxes that are being stopped or removed, by ID; containers that are being removed, by ID.
	Removals map[string]bool
	// Cleanup of what the pod left on the node, or of its records.
	Cleanup bool
	// Resize of the running pod.
	Resize bool
}

// Image is what is known of the image for the next start of a container.
type Image struct {
	// Ref is the image that it is about: what is known of another one counts for nothing.
	Ref string
	// Ready: present, as the pull policy wants it.
	Ready bool
	// Failures counts failed attempts in a row; the others describe the last one.
	Failures  int
	Reason    string
	Message   string
	FailedAt  time.Time
	NotBefore time.Time
}

// Failure is the last error of creating a sandbox or a container, kept until it succeeds.
type Failure struct {
	Reason    string
	Message   string
	At        time.Time
	Count     int
	NotBefore time.Time
}

// Volumes is what volumed says.
type Volumes struct {
	Ready bool
	Gone  bool
	// Message names the volumes that are not ready (or not gone) and why; Since is the age of that.
	Message  string
	Resource string
	Since    time.Time
}

// ProbeKind is which of a container's probes.
type ProbeKind uint8

// The probes.
const (
	Startup ProbeKind = iota
	Liveness
	Readiness
)

// ProbeKey names a probe of a container.
type ProbeKey struct {
	Container string
	Kind      ProbeKind
}

// Verdict is a probe's result on one container instance.
type Verdict struct {
	// ContainerID is the runtime's ID, without scheme.
	ContainerID string
	// Success or Failure; neither: unknown.
	Success bool
	Failure bool
	Output  string
	// InARow is how many probes in a row said so when the verdict was given, At when that was, Trace the trace that it belongs to.
	InARow uint32
	At     time.Time
	Trace  string
}

// Eviction is an order to evict the pod.
type Eviction struct {
	Reason  string
	Message string
	Grace   time.Duration
	// OrderedAt is when it was ordered, Trace the trace that it belongs to.
	OrderedAt time.Time
	Trace     string
}

// ResizeState is how far a change of the pod's resources has come. Input.Pod always has the resources that are allocated.
type ResizeState struct {
	// Due: the allocated resources have to be given to what runs. Failure is why that did not work the last time.
	Due     bool
	Failure Failure
	// Pending is why the resources that the specification asks for were not allocated: Deferred or Infeasible, with Message.
	Pending string
	Message string
}

// Reasons for which resources are not allocated.
const (
	ResizeDeferred   = "Deferred"
	ResizeInfeasible = "Infeasible"
)

// Input is all that a decision depends on.
type Input struct {
	Pod *v1.Pod
	Now time.Time

	// Phase is the phase reached so far, Stop the decision taken earlier (nil while Syncing).
	Phase Phase
	Stop  *Stop

	// Runtime is the observed state; not to be trusted for starting anything while Stale.
	Runtime *pod.RuntimePod
	// Stale: the runtime was not asked yet, or an action ended in a way that leaves open what happened.
	Stale bool
	// RuntimeError is why the runtime can't be asked; empty when it answers.
	RuntimeError string
	// RuntimeErrorSince is when it stopped answering.
	RuntimeErrorSince time.Time

	Busy    Busy
	Volumes Volumes
	Probes  map[ProbeKey]Verdict
	// Images by container name, for the next start, and by [VolumeImage].
	Images map[string]Image
	// SandboxFailure and Failures (by container name) hold errors of creation.
	SandboxFailure Failure
	Failures       map[string]Failure
	// EndFailures holds errors of ending things, by ID of the container or sandbox, or [EndCleanup], or [EndRecord].
	EndFailures map[string]Failure
	// Killed holds the IDs of containers that were killed in order to restart them (failed probe, changed definition).
	Killed map[string]bool
	// StartFailed holds the IDs of containers that this process created and could not start.
	StartFailed map[string]bool
	// HookFailed holds the IDs of containers whose postStart hook failed: they are to be restarted.
	HookFailed map[string]bool
	Eviction   *Eviction
	// After are UIDs of pods that make room for this one and have not ended yet.
	After  []string
	Resize ResizeState

	// Previous is the status published last; it keeps restart counts when the runtime lost its records.
	Previous *v1.PodStatus
	// MaxRestartDelay caps the crash-loop back-off; 0: 300 s.
	MaxRestartDelay time.Duration
	// Logged is the highest restart count, by container, of which a log is left; only known where nothing else tells of earlier instances.
	Logged map[string]uint32
	// Surplus holds the IDs of dead containers that are to go, because the node has too many in all.
	Surplus map[string]bool
	// Cleaned: directories and cgroups of the pod are gone.
	Cleaned bool
}

// Keys of Input.EndFailures that are not IDs.
const (
	EndCleanup = "cleanup"
	EndRecord  = "record"
)

// heldBack says whether ending the thing failed lately and must wait, and plans that wait.
func (p *Plan) heldBack(in *Input, key, resource string) bool {
	f, ok := in.EndFailures[key]
	if !ok || !in.Now.Before(f.NotBefore) {
		return false
	}
	p.wait(Wait{Step: StepDeletion, Resource: resource, Message: f.Message, Since: f.At, Until: f.NotBefore})
	return true
}

// hasVolumes says whether the pod waits for volumed at all. Image volumes are the runtime's business.
func (in *Input) hasVolumes() bool {
	return slices.ContainsFunc(in.Pod.Spec.Volumes, func(v v1.Volume) bool { return v.Image == nil })
}

// verdict returns the probe's verdict on this instance.
func (in *Input) verdict(container string, kind ProbeKind, id string) (Verdict, bool) {
	v, ok := in.Probes[ProbeKey{Container: container, Kind: kind}]
	if !ok || v.ContainerID != id {
		return Verdict{}, false
	}
	return v, true
}

// Interrupted says whether the container was being started when the process before this one ended, and so never ran: it counts as if it
// were not there. One whose start failed in earnest was either seen by this process or published by an earlier one.
func (in *Input) Interrupted(c *pod.Container) bool {
	if c.State != pod.ContainerExited || !c.StartedAt.IsZero() || in.StartFailed[c.ID] {
		return false
	}
	prev := in.previous(c.Name)
	if prev == nil {
		return true
	}
	for _, ended := range []*v1.ContainerStateTerminated{prev.State.Terminated, prev.LastTerminationState.Terminated} {
		if ended != nil && SameContainer(ended.ContainerID, c.ID) {
			return false
		}
	}
	return true
}

// Newest returns the newest container of the name that counts, nil when there is none. Ephemeral containers run once: theirs always counts.
func (in *Input) Newest(name string) *pod.Container {
	for i := range in.Runtime.Containers {
		if c := &in.Runtime.Containers[i]; c.Name == name && !in.Interrupted(c) && (!in.Past(c) || in.isEphemeral(name)) {
			return c
		}
	}
	return nil
}

// IsSidecar says whether the init container is a restartable one.
func IsSidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// previous returns the container's status in the last published one, nil when there is none.
func (in *Input) previous(name string) *v1.ContainerStatus {
	if in.Previous == nil {
		return nil
	}
	for _, list := range [][]v1.ContainerStatus{in.Previous.ContainerStatuses, in.Previous.InitContainerStatuses, in.Previous.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// spec returns the container's specification, nil when there is none.
func (in *Input) spec(name string) *v1.Container { return pod.FindContainer(in.Pod, name) }

func (in *Input) isEphemeral(name string) bool {
	for i := range in.Pod.Spec.EphemeralContainers {
		if in.Pod.Spec.EphemeralContainers[i].Name == name {
			return true
		}
	}
	return false
}
