package diff

import (
	"time"

	"github.com/podplane/podplane/internal/pod"
)

// Type is what happened. Its text is the last token of the event's subject.
type Type uint8

// The types of events.
const (
	ContainerCreated Type = iota + 1
	ContainerStarted
	ContainerDied
	ContainerRemoved
	// ContainerChanged: the runtime lost track of the container (state unknown). At most once for a container.
	ContainerChanged
	SandboxStarted
	SandboxStopped
	SandboxRemoved

	typeCount
)

var typeNames = [typeCount]string{
	ContainerCreated: pod.LifecycleContainerCreated, ContainerStarted: pod.LifecycleContainerStarted, ContainerDied: pod.LifecycleContainerDied,
	ContainerRemoved: pod.LifecycleContainerRemoved, ContainerChanged: pod.LifecycleContainerChanged, SandboxStarted: pod.LifecycleSandboxStarted,
	SandboxStopped: pod.LifecycleSandboxStopped, SandboxRemoved: pod.LifecycleSandboxRemoved,
}

// String returns the type's name on the wire, such as "ContainerDied" or "PodSandboxStopped".
func (t Type) String() string {
	if t < typeCount && t > 0 {
		return typeNames[t]
	}
	return "Unknown"
}

// ParseType is the inverse of String.
func ParseType(name string) (Type, bool) {
	for t := ContainerCreated; t < typeCount; t++ {
		if typeNames[t] == name {
			return t, true
		}
	}
	return 0, false
}

// Phase is where an object is in its life. It only moves forward.
type Phase uint8

// The phases.
const (
	// PhaseNone: never seen. Transitions to: any.
	PhaseNone Phase = iota
	// PhaseCreated: a container or sandbox that did not run yet. Transitions to: PhaseRunning, PhaseExited, PhaseRemoved.
	PhaseCreated
	// PhaseRunning: a running container or a ready sandbox. Transitions to: PhaseExited.
	PhaseRunning
	// PhaseExited: a container that ended or a sandbox that is not ready. Transitions to: PhaseRemoved.
	PhaseExited
	// PhaseRemoved: the runtime has forgotten it. Transitions to: nothing.
	PhaseRemoved
)

var phaseNames = [...]string{"none", "created", "running", "exited", "removed"}

// String returns the phase's name.
func (p Phase) String() string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return "invalid"
}

// Object is what was said about one sandbox or container.
type Object struct {
	ID string
	// Name is the container's name, empty for a sandbox.
	Name      string
	SandboxID string
	Attempt   uint32
	Phase     Phase
	// Lost says that ContainerChanged was said about it.
	Lost        bool
	ExitCode    int32
	CreatedAt   time.Time
	Traceparent string
	// SeenAt is the time of the last observation that had it.
	SeenAt time.Time
}

// IsSandbox says that the object is a sandbox.
func (o *Object) IsSandbox() bool { return o.ID == o.SandboxID }

// Ref names a pod.
type Ref struct {
	UID, Namespace, Name string
}

// Pod is the record of what was said about one pod, by the IDs of its sandboxes and containers. It is a value: Diff
// returns a new one and leaves the old one as it is. Removed objects stay for as long as the caller keeps them (see
// [Pod.Forget]), so that an observation that comes late does not bring them back.
type Pod struct {
	Ref
	Objects map[string]Object
}

// Via says how something was seen.
type Via string

// The ways.
const (
	ViaStream Via = "stream"
	ViaRelist Via = "relist"
)

// Observation is what the runtime shows of one pod: statuses, not list entries, so that times and exit codes are there.
type Observation struct {
	Pod pod.RuntimePod
	// Complete: what is not there is gone (if it was last seen before Pod.ObservedAt). Payloads of events are not.
	Complete bool
	// RemovedID is the sandbox or container that the runtime said it removed, at RemovedAt.
	RemovedID string
	RemovedAt time.Time
	// At is when the observation ended: when its answer arrived.
	At  time.Time
	Via Via
}

// Event is one thing that happened.
type Event struct {
	// ID is the same each time for the same object and type.
	ID   string
	Type Type
	Pod  Ref
	// Object is the object as it is after the event.
	Object Object
	// ExitKnown says that Object.ExitCode is the runtime's; only with ContainerDied.
	ExitKnown bool
	Reason    string
	Message   string
	// OccurredAt is the runtime's time where it has one, else ObservedAt.
	OccurredAt time.Time
	ObservedAt time.Time
	Via        Via
	// Containers are the pod's containers after all events of the same observation, the oldest first.
	Containers []Object
}

// EventID returns the ID of the event of this type about the object.
func EventID(objectID string, t Type) string {
	return pod.LifecycleEventID(objectID, t.String())
}
