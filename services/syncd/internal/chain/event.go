package chain

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// lifecycle puts an event of the runtime into the chain of what asked for it, or begins one.
func (c *composer) lifecycle(e *podplanev1.LifecycleEvent) {
	name := "container " + e.GetContainer()
	switch e.GetType() {
	case podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_CREATED:
		// Its start, or its end, tells more.
	case podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_STARTED:
		c.came(c.starts, attemptKey(e.GetContainer(), e.GetAttempt()), e, name+" started"+restart(e.GetAttempt()))
	case podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_DIED:
		c.died(e)
	case podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_CHANGED:
		c.came(nil, "", e, "the runtime lost track of "+name)
	case podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_REMOVED:
		if _, with := c.ends[plan.RemoveSandbox.String()+"/"+e.GetSandboxId()]; with {
			return // it goes with its sandbox
		}
		c.came(c.ends, plan.RemoveContainer.String()+"/"+e.GetContainerId(), e, name+restart(e.GetAttempt())+" removed")
	case podplanev1.LifecycleType_LIFECYCLE_TYPE_SANDBOX_STARTED:
		c.came(c.starts, attemptKey("", e.GetAttempt()), e, "sandbox ready")
	case podplanev1.LifecycleType_LIFECYCLE_TYPE_SANDBOX_STOPPED:
		c.came(c.ends, plan.StopSandbox.String()+"/"+e.GetSandboxId(), e, "sandbox stopped")
	case podplanev1.LifecycleType_LIFECYCLE_TYPE_SANDBOX_REMOVED:
		c.came(c.ends, plan.RemoveSandbox.String()+"/"+e.GetSandboxId(), e, "sandbox removed")
	}
}

// came notes an event: as what came of the action under the key, or as the begin of a chain.
func (c *composer) came(asked map[string]*act, key string, e *podplanev1.LifecycleEvent, text string) {
	if a := asked[key]; a != nil {
		a.happened(text, e)
		c.events[e.GetId()] = a.link
		if e.GetType() == podplanev1.LifecycleType_LIFECYCLE_TYPE_SANDBOX_STARTED {
			delete(c.events, e.GetId()) // what follows from a sandbox is a chain of its own
		}
		return
	}
	c.events[e.GetId()] = c.begin(e.GetContainer(), step(KindEvent, text, lifecycleSource(e), e.GetOccurredAt(), e.GetTrace().GetTraceparent()))
}

// died notes the end of a container: with what killed it, where it was killed.
func (c *composer) died(e *podplanev1.LifecycleEvent) {
	text := ending(e)
	kill := c.ends[plan.KillContainer.String()+"/"+e.GetContainerId()]
	if kill == nil {
		c.events[e.GetId()] = c.begin(e.GetContainer(), step(KindEvent, text, lifecycleSource(e), e.GetOccurredAt(), e.GetTrace().GetTraceparent()))
		return
	}
	took := e.GetOccurredAt().AsTime().Sub(kill.step.GetAt().AsTime())
	if took > 0 {
		text += " after " + took.Round(100*time.Millisecond).String()
	}
	kill.happened(text, e)
	kill.step.Kind = KindAction
	c.events[e.GetId()] = kill.link
}

func ending(e *podplanev1.LifecycleEvent) string {
	text := "container " + e.GetContainer()
	if e.ExitCode == nil {
		return text + " ended, its exit code is not known"
	}
	text += fmt.Sprintf(" ended with exit code %d", e.GetExitCode())
	switch r := e.GetReason(); r {
	case "", "Completed", "Error":
	default:
		text += " (" + r + ")"
	}
	return text
}

// told says whether chains tell what a Kubernetes Event of syncd's says.
func told(e *v1.Event) bool {
	switch e.Reason {
	case "Created", "Started", "Killing", "SandboxChanged", "BackOff", "FailedCreatePodSandBox", "FailedKillPod", "FailedPostStartHook":
		return true
	case "Pulled":
		return strings.Contains(e.Message, "already present")
	case "Failed":
		return strings.HasPrefix(e.Message, "Error: ")
	}
	return false
}

func (r *Reported) time() time.Time {
	e := r.Event
	if !r.At.IsZero() {
		return r.At
	}
	if !e.FirstTimestamp.IsZero() {
		return e.FirstTimestamp.Time
	}
	return e.CreationTimestamp.Time
}

// report notes a Kubernetes Event that says more than the chains do.
func (c *composer) report(r *Reported) {
	e := r.Event
	if told(e) {
		return
	}
	text := e.Reason + ": " + e.Message
	if e.Count > 1 {
		text += fmt.Sprintf(" (%d times until %s)", e.Count, e.LastTimestamp.UTC().Format(time.RFC3339))
	}
	if e.ReportingController != "" {
		text += " [" + e.ReportingController + "]"
	}
	c.begin(fieldContainer(e.InvolvedObject.FieldPath), step(KindReport, text, fmt.Sprintf("EVENTS/%d", r.Sequence), timestamppb.New(r.time()), r.Trace))
}

// fieldContainer is the container in a field path such as spec.containers{web}.
func fieldContainer(path string) string {
	_, name, ok := strings.Cut(path, "{")
	if !ok {
		return ""
	}
	return strings.TrimSuffix(name, "}")
}
