package cri

import (
	"fmt"
	"time"

	"github.com/podplane/podplane/internal/pod"
)

// EventType is what happened to a sandbox or container.
type EventType uint8

// What happens, in this order for each sandbox and container; but one that ends at once may be reported stopped before it
// is reported started.
const (
	EventCreated EventType = iota + 1
	EventStarted
	EventStopped
	EventDeleted
)

var eventTypes = [...]string{EventCreated: "Created", EventStarted: "Started", EventStopped: "Stopped", EventDeleted: "Deleted"}

// String returns the type's name.
func (t EventType) String() string {
	if t > 0 && int(t) < len(eventTypes) {
		return eventTypes[t]
	}
	return fmt.Sprintf("EventType(%d)", uint8(t))
}

// Event is a hint that something happened: look at the pod again. What it carries was true when the runtime sent it.
type Event struct {
	Type EventType
	// ID is the container's, or the sandbox's: then it equals Sandbox.ID.
	ID string
	// At is the runtime's time of the event.
	At time.Time
	// Sandbox is the status of the pod's sandbox, nil when the runtime could not tell (it was removed, or an error):
	// then the event may be about a pod of somebody else.
	Sandbox *pod.Sandbox
	// Containers are statuses of the sandbox's containers; runtimes may leave some or all out.
	Containers []pod.Container
}

// IsSandbox says that the event is about the sandbox itself.
func (e *Event) IsSandbox() bool { return e.Sandbox != nil && e.Sandbox.ID == e.ID }

// PodUID returns the pod's UID, empty when it is not known.
func (e *Event) PodUID() string {
	if e.Sandbox == nil {
		return ""
	}
	return e.Sandbox.UID
}

// Container returns the status of the container that the event is about, nil when it is not among them.
func (e *Event) Container() *pod.Container {
	for i := range e.Containers {
		if e.Containers[i].ID == e.ID {
			return &e.Containers[i]
		}
	}
	return nil
}
