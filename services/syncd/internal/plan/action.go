package plan

import (
	"fmt"
	"strings"
	"time"
)

// Kind is what an action does.
type Kind uint8

// The kinds of actions.
const (
	// CreateSandbox runs a sandbox with Attempt.
	CreateSandbox Kind = iota
	// StopSandbox stops the sandbox ID.
	StopSandbox
	// RemoveSandbox removes the sandbox ID and its containers.
	RemoveSandbox
	// EnsureImage makes the image of Container, or of the image volume Volume, present, by its pull policy.
	EnsureImage
	// StartContainer creates Container with Attempt in the sandbox SandboxID, starts it and runs its postStart hook. With ID set, a
	// container that was created already is started.
	StartContainer
	// KillContainer stops the container ID within Grace.
	KillContainer
	// RemoveContainer removes the dead container ID.
	RemoveContainer
	// Resize gives the pod and its running containers the resources that were allocated.
	Resize
	// Cleanup removes what the pod left on the node: directories, logs, cgroups.
	Cleanup
	// RemoveRecord removes the pod's records: the last thing that is done for a pod.
	RemoveRecord
)

var kindNames = [...]string{"CreateSandbox", "StopSandbox", "RemoveSandbox", "EnsureImage", "StartContainer", "KillContainer", "RemoveContainer", "Resize", "Cleanup", "RemoveRecord"}

// String returns the kind's name.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Action is one thing to do. Fields that the kind does not mention are zero.
type Action struct {
	Kind      Kind
	Container string
	Volume    string
	ID        string
	SandboxID string
	Attempt   uint32
	// Delay is the back-off that is due when the container that is started now ends.
	Delay time.Duration
	// Decided is when the start was decided, where that is to be remembered: see [AnnotationStartDecided].
	Decided time.Time
	// Grace is the time between asking and killing; NoHook leaves preStop out.
	Grace  time.Duration
	NoHook bool
	// Reason and Message are for the event.
	Reason  string
	Message string
	// Restart: the container is killed in order to be started again.
	Restart bool
}

// String describes the action in one line.
func (a Action) String() string {
	var b strings.Builder
	b.WriteString(a.Kind.String())
	add := func(key, value string) {
		if value != "" {
			b.WriteString(" " + key + "=" + value)
		}
	}
	add("container", a.Container)
	add("volume", a.Volume)
	add("id", a.ID)
	if a.Kind == CreateSandbox || a.Kind == StartContainer {
		fmt.Fprintf(&b, " attempt=%d", a.Attempt)
	}
	if a.Kind == KillContainer {
		add("grace", a.Grace.String())
	}
	add("reason", a.Reason)
	return b.String()
}

// Wait says what a pod, or one of its containers, waits for.
type Wait struct {
	// Step is one of the Step constants, Resource what blocks.
	Step     string
	Resource string
	// Container is set when only that container waits; Reason is then its waiting reason.
	Container string
	Reason    string
	Message   string
	Since     time.Time
	// Until is when it is tried again, zero when that does not depend on time.
	Until time.Time
}

// Steps of a [Wait].
const (
	StepRuntime  = "runtime"
	StepRoom     = "room"
	StepSandbox  = "sandbox"
	StepVolumes  = "volumes"
	StepImage    = "image"
	StepStart    = "start"
	StepBackoff  = "backoff"
	StepResize   = "resize"
	StepDeletion = "deletion"
)

// Plan is what to do next.
type Plan struct {
	// Phase is never before the input's; Stop is set from Terminating on.
	Phase Phase
	Stop  *Stop
	// Actions may all be started at once.
	Actions []Action
	Waits   []Wait
	// Again is when to decide again even if nothing happens; zero: never.
	Again time.Time
}

func (p *Plan) do(a Action) { p.Actions = append(p.Actions, a) }

func (p *Plan) wait(w Wait) {
	p.Waits = append(p.Waits, w)
	p.again(w.Until)
}

// again asks for another look at t, or earlier.
func (p *Plan) again(t time.Time) {
	if !t.IsZero() && (p.Again.IsZero() || t.Before(p.Again)) {
		p.Again = t
	}
}
