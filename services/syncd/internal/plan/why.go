package plan

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
)

// Decisions that are not kinds of actions.
const (
	// DecidedStop: the pod is being stopped.
	DecidedStop = "StopPod"
	// DecidedBackOff: a container is started again, but not yet.
	DecidedBackOff = "BackOff"
	// DecidedRetry: what failed is tried again, but not yet.
	DecidedRetry = "Retry"
	// DecidedLeave: a container that ended is not started again.
	DecidedLeave = "LeaveEnded"
	// DecidedReady and DecidedNotReady: a readiness probe changed what a container counts as.
	DecidedReady    = "Ready"
	DecidedNotReady = "NotReady"
)

// Kinds of a [Because].
const (
	BecauseLifecycle  = "lifecycle"
	BecauseProbe      = "probe"
	BecauseSpec       = "spec"
	BecausePod        = "pod"
	BecauseDeletion   = "deletion"
	BecauseEviction   = "eviction"
	BecauseDeadline   = "deadline"
	BecauseHook       = "hook"
	BecauseFailure    = "failure"
	BecauseCompletion = "completion"
	// BecauseHousekeeping: nothing happened; the pod keeps less than it has.
	BecauseHousekeeping = "housekeeping"
)

// Decision is one thing that was decided, and why.
type Decision struct {
	// Action is the name of a [Kind] or one of the Decided constants.
	Action    string
	Container string
	// ID is the container or the sandbox that it is about, Attempt its number.
	ID      string
	Attempt uint32
	// Message is the rule that led from the cause to the action.
	Message string
	// Period is how long is waited or given.
	Period  time.Duration
	Because Because
}

// Because is what a decision was taken upon.
type Because struct {
	// Kind is one of the Because constants. With BecauseLifecycle the event of type Event about the object ID is meant.
	Kind      string
	Event     string
	ID        string
	Container string
	Message   string
	At        time.Time
	Trace     string
}

// Explain says why the plan stops the pod, if it begins to, and why it does what it does. What every start needs (images) and what follows
// from the end of a pod by itself (directories) is left out.
func Explain(in *Input, p *Plan) []Decision {
	var list []Decision
	if p.Stop != nil && (in.Stop == nil || p.Stop.Cause > in.Stop.Cause || (p.Stop.NoGrace && !in.Stop.NoGrace)) {
		list = append(list, in.whyStop(p.Stop))
	}
	for i := range p.Actions {
		if d, ok := in.why(&p.Actions[i], p.Stop); ok {
			list = append(list, d)
		}
	}
	return list
}

func (in *Input) why(a *Action, stop *Stop) (Decision, bool) {
	d := Decision{Action: a.Kind.String(), Container: a.Container, ID: a.ID, Attempt: a.Attempt}
	switch a.Kind {
	case CreateSandbox:
		in.whySandbox(&d)
	case StartContainer:
		in.whyStart(&d, a)
	case KillContainer:
		in.whyKill(&d, a, stop)
	case StopSandbox:
		d.Message, d.Because = a.Message, in.afterLast()
		if stop != nil {
			d.Message = "no container of the pod runs any more"
		}
	case RemoveSandbox:
		d.Message, d.Because = "a newer sandbox took its place", in.afterLast()
		if stop != nil && stop.Cause == CauseDeletion {
			d.Message, d.Because = "nothing of the pod runs any more", in.deleted()
		}
	case RemoveContainer:
		in.whyRemove(&d)
	case Resize:
		d.Message = "its cgroup and its running containers get what was allocated to it"
		d.Because = Because{Kind: BecauseSpec, Message: "the pod has other resources than it was given"}
	case RemoveRecord:
		d.Message, d.Because = "nothing of the pod is left on the node", in.deleted()
	default:
		return d, false
	}
	return d, true
}

func (in *Input) whyStop(s *Stop) Decision {
	d := Decision{Action: DecidedStop, Message: "its containers are stopped", Period: max(s.Deadline.Sub(in.Now), 0)}
	switch s.Cause {
	case CauseDeletion:
		d.Because = in.deleted()
	case CauseEviction, CauseDeadline:
		d.Because = in.stopped(s)
	case CauseInitFailed:
		d.Because, d.Message = in.afterLast(), fmt.Sprintf("restartPolicy %s: an init container failed for good, so the pod failed", in.Pod.Spec.RestartPolicy)
	default:
		d.Because, d.Message = in.afterLast(), fmt.Sprintf("restartPolicy %s: nothing is left to run", in.Pod.Spec.RestartPolicy)
		if in.lostForGood() {
			d.Message = fmt.Sprintf("restartPolicy %s: the pod lost its sandbox and may not begin again", in.Pod.Spec.RestartPolicy)
		}
	}
	if s.NoGrace {
		d.Period, d.Message = 0, d.Message+" at once"
	}
	return d
}

// stopped is why a pod is being stopped that was not deleted.
func (in *Input) stopped(s *Stop) Because {
	switch {
	case s.Cause == CauseDeletion:
		return in.deleted()
	case s.Cause == CauseEviction && s.Reason == ReasonPreempting:
		b := Because{Kind: BecauseEviction, Message: "preempted: " + s.Message}
		if in.Eviction != nil {
			b.At, b.Trace = in.Eviction.OrderedAt, in.Eviction.Trace
		}
		return b
	case s.Cause == CauseEviction && in.Eviction != nil:
		return Because{Kind: BecauseEviction, Message: "evicted: " + in.Eviction.Message, At: in.Eviction.OrderedAt, Trace: in.Eviction.Trace}
	case s.Cause == CauseEviction:
		return Because{Kind: BecauseEviction, Message: "evicted: " + s.Message}
	case s.Cause == CauseDeadline:
		b := Because{Kind: BecauseDeadline, Message: s.Message}
		if seconds := in.Pod.Spec.ActiveDeadlineSeconds; seconds != nil {
			b.Message = fmt.Sprintf("the pod ran for longer than its activeDeadlineSeconds of %d", *seconds)
		}
		return b
	case s.Cause == CauseInitFailed:
		return Because{Kind: BecauseCompletion, Message: "an init container failed for good"}
	}
	return Because{Kind: BecauseCompletion, Message: "nothing is left to run"}
}

func (in *Input) deleted() Because {
	b := Because{Kind: BecauseDeletion, Message: "pod deleted"}
	if in.Pod.DeletionTimestamp == nil {
		return b
	}
	if seconds := in.Pod.DeletionGracePeriodSeconds; seconds != nil {
		grace := time.Duration(*seconds) * time.Second
		b.At = in.Pod.DeletionTimestamp.Add(-grace)
		b.Message = fmt.Sprintf("pod deleted, grace period %s", grace)
	}
	return b
}

// afterLast is the end of the container that ended last; the end of the sandbox where there is none.
func (in *Input) afterLast() Because {
	var last *pod.Container
	for i := range in.Runtime.Containers {
		c := &in.Runtime.Containers[i]
		if c.State == pod.ContainerExited && (last == nil || c.FinishedAt.After(last.FinishedAt)) {
			last = c
		}
	}
	if last != nil {
		return died(last)
	}
	if s := in.Runtime.NewestSandbox(); s != nil && !s.Ready {
		return Because{Kind: BecauseLifecycle, Event: pod.LifecycleSandboxStopped, ID: s.ID, Message: "sandbox stopped"}
	}
	return Because{Kind: BecauseCompletion, Message: "no container runs"}
}

// died is the end of a container.
func died(c *pod.Container) Because {
	b := Because{
		Kind: BecauseLifecycle, Event: pod.LifecycleContainerDied, ID: c.ID, Container: c.Name, At: c.FinishedAt,
		Message: fmt.Sprintf("container %s ended with exit code %d", c.Name, c.ExitCode),
	}
	if c.Reason == "OOMKilled" {
		b.Message += " (OOMKilled)"
	}
	return b
}

// annotationSource is Kubernetes' annotation of where a pod comes from.
const annotationSource = "kubernetes.io/config.source"

func (in *Input) whySandbox(d *Decision) {
	newest := in.Runtime.NewestSandbox()
	if newest == nil {
		d.Message = "it is to run here"
		d.Because = Because{Kind: BecausePod, Message: "pod created over the API", At: in.Pod.CreationTimestamp.Time}
		if from := in.Pod.Annotations[annotationSource]; from == "file" || from == "http" {
			d.Because.Message = "pod created from a manifest (" + from + ")"
		}
		return
	}
	d.Because = Because{Kind: BecauseLifecycle, Event: pod.LifecycleSandboxStopped, ID: newest.ID, Message: "sandbox stopped"}
	d.Message = "a pod needs a sandbox that is ready: a new one takes its place"
}

func (in *Input) whyStart(d *Decision, a *Action) {
	spec, newest := in.spec(a.Container), in.Newest(a.Container)
	switch {
	case spec == nil:
	case newest != nil && newest.State == pod.ContainerExited:
		d.Because, d.Message = died(newest), in.restartRule(spec, newest)
		if due, _ := in.restartDelay(spec, newest); due > 0 {
			d.Period, d.Message = due, d.Message+backOffText(due)
		}
	case newest != nil:
		d.Message = "it was created and not started yet"
		d.Because = Because{Kind: BecauseLifecycle, Event: pod.LifecycleContainerCreated, ID: newest.ID, Container: newest.Name, At: newest.CreatedAt, Message: "container " + newest.Name + " created"}
	default:
		d.Message, d.Because = in.firstStart(spec, a.SandboxID)
	}
}

// firstStart is why a container is started of which the runtime has no earlier instance.
func (in *Input) firstStart(spec *v1.Container, sandboxID string) (rule string, b Because) {
	b = Because{Kind: BecauseLifecycle, Event: pod.LifecycleSandboxStarted, ID: sandboxID, Message: "sandbox ready"}
	if s := in.Runtime.Sandbox(sandboxID); s != nil {
		b.At = s.CreatedAt
	}
	rule = "its image and volumes are there"
	if source, _ := in.restartedAll(); source != nil {
		return "its restart rule restarts all containers of the pod", died(source)
	}
	if prev := in.previous(spec.Name); prev != nil && prev.ContainerID != "" {
		return "the runtime has lost its earlier instance", b
	}
	var before *pod.Container
	for i := range in.Pod.Spec.InitContainers {
		c := &in.Pod.Spec.InitContainers[i]
		if c.Name == spec.Name {
			break
		}
		if done := in.Newest(c.Name); done != nil && done.State == pod.ContainerExited && !IsSidecar(c) {
			before = done
		}
	}
	if before != nil {
		b, rule = died(before), "the init containers before it are done"
	}
	return rule, b
}

// restartRule says what makes a container that ended run again.
func (in *Input) restartRule(spec *v1.Container, dead *pod.Container) string {
	current := in.Runtime.NewestSandbox()
	switch {
	case current != nil && dead.SandboxID != current.ID:
		return "it runs in the new sandbox"
	case in.rule(spec, dead) != "":
		return fmt.Sprintf("its restart rule for exit code %d", dead.ExitCode)
	case in.isInit(spec.Name) && IsSidecar(spec), spec.RestartPolicy != nil:
		return fmt.Sprintf("its own restartPolicy %s", *spec.RestartPolicy)
	}
	return fmt.Sprintf("restartPolicy %s", in.Pod.Spec.RestartPolicy)
}

func backOffText(due time.Duration) string { return ", back-off " + due.String() }

func (in *Input) whyKill(d *Decision, a *Action, stop *Stop) {
	d.Period, d.Message = a.Grace, graceText(a.Grace)
	c := in.Runtime.Container(a.ID)
	switch {
	case stop != nil:
		d.Because = in.stopped(stop)
	case !a.Restart || c == nil:
		d.Because = Because{Kind: BecauseLifecycle, Event: pod.LifecycleSandboxStopped, Message: a.Message}
		if s := in.Runtime.NewestSandbox(); s != nil {
			d.Because.ID = s.ID
		}
		if a.Reason != "SandboxChanged" {
			d.Because = Because{Kind: BecauseFailure, ID: a.ID, Container: a.Container, Message: a.Message}
		}
	default:
		d.Because = in.whyRestart(in.spec(a.Container), c)
		d.Because.ID, d.Because.Container = a.ID, a.Container
	}
	if c != nil {
		d.Attempt = c.Attempt
	}
}

func graceText(grace time.Duration) string {
	if grace <= 0 {
		return "killed at once"
	}
	return fmt.Sprintf("asked to stop within %s", grace.Round(time.Millisecond*100))
}

// whyRestart repeats what checkRunning found wrong with a running container.
func (in *Input) whyRestart(spec *v1.Container, c *pod.Container) Because {
	if spec == nil {
		return Because{Kind: BecauseSpec, Message: "container " + c.Name + " is not in the spec any more"}
	}
	if changed(spec, c) {
		return Because{Kind: BecauseSpec, Message: fmt.Sprintf("definition of container %s changed: its image is %s now", c.Name, spec.Image)}
	}
	if in.HookFailed[c.ID] {
		return Because{Kind: BecauseHook, Message: "postStart hook of container " + c.Name + " failed: " + in.Failures[c.Name].Message}
	}
	for _, kind := range []ProbeKind{Startup, Liveness} {
		if v, ok := in.verdict(c.Name, kind, c.ID); ok && v.Failure {
			return ProbeBecause(spec, kind, v)
		}
	}
	return Because{Kind: BecauseSpec, Message: "container " + c.Name + " is to be restarted"}
}

func (in *Input) whyRemove(d *Decision) {
	d.Because = Because{Kind: BecauseHousekeeping, ID: d.ID, Container: d.Container, Message: "only the newest dead container of each name is kept"}
	if c := in.Runtime.Container(d.ID); c != nil {
		d.Attempt = c.Attempt
		if in.Interrupted(c) {
			d.Because.Message = "the start of container " + c.Name + " was interrupted: it never ran and makes room"
		}
	}
}
