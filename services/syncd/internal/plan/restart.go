package plan

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
)

// policy is the restart policy that holds for the container: its own, else the pod's. An init container that is no sidecar is never
// started again once it has succeeded, so that Always means OnFailure for it.
func (in *Input) policy(spec *v1.Container) v1.RestartPolicy {
	if spec.RestartPolicy != nil {
		return v1.RestartPolicy(*spec.RestartPolicy)
	}
	return in.Pod.Spec.RestartPolicy
}

// rule returns the action of the first restart rule that fits the end of the container, "" when none does. The end of a container that
// was killed in order to restart it says nothing.
func (in *Input) rule(spec *v1.Container, dead *pod.Container) v1.ContainerRestartRuleAction {
	if in.Killed[dead.ID] {
		return ""
	}
	for i := range spec.RestartPolicyRules {
		r := &spec.RestartPolicyRules[i]
		if r.ExitCodes == nil {
			continue
		}
		among := slices.Contains(r.ExitCodes.Values, dead.ExitCode)
		if among == (r.ExitCodes.Operator == v1.ContainerRestartRuleOnExitCodesOpIn) {
			return r.Action
		}
	}
	return ""
}

// mayRestart says whether the container may run again after this end. One that was stopped because it is defined otherwise now always may.
func (in *Input) mayRestart(spec *v1.Container, dead *pod.Container) bool {
	if in.rule(spec, dead) != "" || (in.Killed[dead.ID] && changed(spec, dead)) {
		return true
	}
	switch in.policy(spec) {
	case v1.RestartPolicyNever:
		return false
	case v1.RestartPolicyOnFailure:
		return !succeeded(dead) || in.Killed[dead.ID]
	default:
		return true
	}
}

// StaysEnded says whether the container has ended and is not started again.
func (in *Input) StaysEnded(spec *v1.Container) bool {
	c := in.Newest(spec.Name)
	if c == nil || c.State != pod.ContainerExited {
		return false
	}
	next, _ := in.judge(spec, c, in.currentSandbox())
	return next == done || next == failed
}

// neverRestarts says whether no container of the pod may ever run twice.
func (in *Input) neverRestarts() bool {
	if in.Pod.Spec.RestartPolicy != v1.RestartPolicyNever {
		return false
	}
	for _, list := range [][]v1.Container{in.Pod.Spec.Containers, in.Pod.Spec.InitContainers} {
		for i := range list {
			c := &list[i]
			if len(c.RestartPolicyRules) > 0 || (in.policy(c) != v1.RestartPolicyNever && !IsSidecar(c)) {
				return false
			}
		}
	}
	return true
}

// restartedAll returns the container whose end last asked for a restart of all containers, nil when there is none, and since when that is in force. Until its
// back-off is over it is as if it had not asked.
func (in *Input) restartedAll() (last *pod.Container, since time.Time) {
	if in.Phase != Syncing {
		return nil, since
	}
	for _, list := range [][]v1.Container{in.Pod.Spec.Containers, in.Pod.Spec.InitContainers} {
		for i := range list {
			spec := &list[i]
			if !slices.ContainsFunc(spec.RestartPolicyRules, isRestartAll) {
				continue
			}
			for j := range in.Runtime.Containers {
				c := &in.Runtime.Containers[j]
				if c.Name != spec.Name || c.State != pod.ContainerExited || in.rule(spec, c) != v1.ContainerRestartRuleActionRestartAllContainers {
					continue
				}
				if at := c.FinishedAt.Add(in.owed(c)); !in.Now.Before(at) && at.After(since) {
					last, since = c, at
				}
			}
		}
	}
	return last, since
}

func isRestartAll(r v1.ContainerRestartRule) bool {
	return r.Action == v1.ContainerRestartRuleActionRestartAllContainers
}

// mayRestartAll says whether some container of the pod can ask for a restart of all.
func (in *Input) mayRestartAll() bool {
	return slices.ContainsFunc([][]v1.Container{in.Pod.Spec.Containers, in.Pod.Spec.InitContainers}, func(list []v1.Container) bool {
		return slices.ContainsFunc(list, func(c v1.Container) bool { return slices.ContainsFunc(c.RestartPolicyRules, isRestartAll) })
	})
}

// RestartedAllAt is the moment at which the pod began anew: containers whose start was decided before count no more. Zero when it never did.
func (in *Input) RestartedAllAt() time.Time {
	_, since := in.restartedAll()
	return since
}

// Past says whether the container is of the time before all were restarted.
func (in *Input) Past(c *pod.Container) bool {
	last, since := in.restartedAll()
	return isPast(c, last, since)
}

func isPast(c, last *pod.Container, since time.Time) bool {
	return last != nil && (c.ID == last.ID || decidedAt(c).Before(since))
}

// decidedAt is when the container's start was decided, as far as that is known.
func decidedAt(c *pod.Container) time.Time {
	if at, err := time.Parse(time.RFC3339Nano, c.Annotations[AnnotationStartDecided]); err == nil {
		return at
	}
	return c.CreatedAt
}

// RestartingAll says whether containers of the time before all were restarted have no successor yet.
func (in *Input) RestartingAll() bool {
	last, since := in.restartedAll()
	if last == nil {
		return false
	}
	seen := make(map[string]bool)
	for i := range in.Runtime.Containers {
		c := &in.Runtime.Containers[i]
		if seen[c.Name] || in.Interrupted(c) || in.isEphemeral(c.Name) {
			continue
		}
		seen[c.Name] = true
		if isPast(c, last, since) {
			return true
		}
	}
	return false
}

// delayAfterRestartAll is the back-off to put on a container that made all restart when it last ended; the others start without one.
func (in *Input) delayAfterRestartAll(spec *v1.Container) time.Duration {
	for i := range in.Runtime.Containers {
		c := &in.Runtime.Containers[i]
		if c.Name != spec.Name || !in.Past(c) {
			continue
		}
		if in.rule(spec, c) != v1.ContainerRestartRuleActionRestartAllContainers {
			return 0
		}
		_, next := in.restartDelay(spec, c)
		return next
	}
	return 0
}
