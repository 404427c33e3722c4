package plan

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
)

// Standing says what the input decides without any action: who is ready and who not, by their probes, and who ended and is left so. Only what
// differs from the status that was published last.
func Standing(in *Input) []Decision {
	var list []Decision
	for _, all := range [][]v1.Container{in.Pod.Spec.InitContainers, in.Pod.Spec.Containers} {
		for i := range all {
			spec := &all[i]
			c := in.Newest(spec.Name)
			if c == nil {
				continue
			}
			prev := in.previous(spec.Name)
			switch c.State {
			case pod.ContainerRunning:
				if d, ok := in.whyReady(spec, c, prev); ok {
					list = append(list, d)
				}
			case pod.ContainerExited:
				if d, ok := in.whyLeft(spec, c, prev); ok {
					list = append(list, d)
				}
			}
		}
	}
	return list
}

func (in *Input) whyReady(spec *v1.Container, c *pod.Container, prev *v1.ContainerStatus) (Decision, bool) {
	v, ok := in.verdict(spec.Name, Readiness, c.ID)
	if !ok || spec.ReadinessProbe == nil || v.Success == v.Failure {
		return Decision{}, false
	}
	ready := in.Ready(spec)
	was := prev != nil && prev.Ready && SameContainer(prev.ContainerID, c.ID)
	if ready != v.Success || ready == was {
		return Decision{}, false
	}
	d := Decision{
		Action: DecidedNotReady, Container: spec.Name, ID: c.ID, Attempt: c.Attempt, Message: "not ready", Because: ProbeBecause(spec, Readiness, v),
	}
	if ready {
		d.Action, d.Message = DecidedReady, "ready"
	}
	d.Because.ID, d.Because.Container = c.ID, spec.Name
	return d, true
}

func (in *Input) whyLeft(spec *v1.Container, c *pod.Container, prev *v1.ContainerStatus) (Decision, bool) {
	if in.Phase != Syncing || (prev != nil && prev.State.Terminated != nil && SameContainer(prev.State.Terminated.ContainerID, c.ID)) {
		return Decision{}, false
	}
	next, _ := in.judge(spec, c, in.currentSandbox())
	if next != done && next != failed {
		return Decision{}, false
	}
	d := Decision{Action: DecidedLeave, Container: spec.Name, ID: c.ID, Attempt: c.Attempt, Because: died(c)}
	d.Message = fmt.Sprintf("restartPolicy %s: it is not started again", in.Pod.Spec.RestartPolicy)
	if next == done && in.isInit(spec.Name) {
		d.Message = "an init container that is done is not started again"
	}
	return d, true
}

// Postponed turns a wait for a point in time into the decision to wait. ok is false for other waits.
func Postponed(in *Input, w *Wait) (d Decision, ok bool) {
	if w.Until.IsZero() {
		return Decision{}, false
	}
	d = Decision{Action: DecidedRetry, Container: w.Container, Period: max(w.Until.Sub(in.Now), 0).Round(100 * time.Millisecond)}
	c, spec := in.Newest(w.Container), in.spec(w.Container)
	if w.Step == StepBackoff && c != nil && spec != nil {
		due, _ := in.restartDelay(spec, c)
		d.Action, d.ID, d.Attempt, d.Period, d.Because = DecidedBackOff, c.ID, c.Attempt, due, died(c)
		d.Message = in.restartRule(spec, c) + backOffText(due)
		return d, true
	}
	d.Message = fmt.Sprintf("tried again in %s", d.Period)
	d.Because = Because{Kind: BecauseFailure, Container: w.Container, At: w.Since, Message: failureText(w)}
	return d, true
}

// Unwanted is the decision to end a pod of the runtime that nobody wishes for.
func Unwanted() Decision {
	return Decision{
		Action: DecidedStop, Message: "what runs of it is ended", Period: MinGrace,
		Because: Because{Kind: BecausePod, Message: "the runtime has a pod of this node that is not wished for any more"},
	}
}

func failureText(w *Wait) string {
	what := map[string]string{
		StepSandbox: "creating the sandbox failed", StepStart: "starting container " + w.Resource + " failed", StepImage: "pulling image " + w.Resource + " failed",
		StepDeletion: "ending " + w.Resource + " failed",
	}[w.Step]
	if what == "" {
		what = w.Step + " failed"
	}
	if w.Reason != "" {
		what += " (" + w.Reason + ")"
	}
	return what + ": " + w.Message
}

// ProbeBecause describes a probe's verdict.
func ProbeBecause(spec *v1.Container, kind ProbeKind, v Verdict) Because {
	name, probe := "startup", spec.StartupProbe
	switch kind {
	case Liveness:
		name, probe = "liveness", spec.LivenessProbe
	case Readiness:
		name, probe = "readiness", spec.ReadinessProbe
	}
	text := name + " probe" + handler(probe)
	outcome := "succeeded"
	if v.Failure {
		outcome = "failed"
	}
	if v.InARow > 1 {
		outcome += fmt.Sprintf(" %d times", v.InARow)
	}
	text += " " + outcome
	if output := strings.TrimPrefix(v.Output, "HTTP probe failed with statuscode: "); v.Failure && output != "" {
		text += ": " + output
	}
	return Because{Kind: BecauseProbe, Message: text, At: v.At, Trace: v.Trace}
}

// handler says what a probe does.
func handler(p *v1.Probe) string {
	switch {
	case p == nil:
		return ""
	case p.HTTPGet != nil:
		return " HTTP " + p.HTTPGet.Path
	case p.TCPSocket != nil:
		return " TCP " + p.TCPSocket.Port.String()
	case p.GRPC != nil:
		return fmt.Sprintf(" gRPC %d", p.GRPC.Port)
	case p.Exec != nil && len(p.Exec.Command) > 0:
		return " exec " + p.Exec.Command[0]
	}
	return ""
}
