package plan

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
)

// MinGrace is the least time that a container gets between being asked to stop and being killed, unless it is to be killed at once.
const MinGrace = 2 * time.Second

// Reasons that become the reason of the pod's status.
const (
	ReasonEvicted          = "Evicted"
	ReasonDeadlineExceeded = "DeadlineExceeded"
	ReasonPreempting       = "Preempting"
)

// Next decides what to do for the pod.
func Next(in Input) Plan {
	p := Plan{Phase: in.Phase, Stop: in.Stop}
	p.updateStop(&in)
	if p.Phase == Syncing && p.Stop != nil {
		p.Phase = Terminating
	}
	if in.RuntimeError != "" {
		p.wait(Wait{Step: StepRuntime, Resource: "container runtime", Message: in.RuntimeError, Since: in.RuntimeErrorSince})
	}
	if in.Stale {
		if p.Phase == Terminating {
			p.killAll(&in) // what is known to run is stopped, whatever else there may be
		}
		return p
	}
	if p.Phase == Syncing {
		p.sync(&in)
		if p.Stop != nil {
			p.Phase, p.Actions, p.Waits, p.Again = Terminating, nil, nil, time.Time{}
		}
	}
	if p.Phase != Syncing && p.terminate(&in) {
		p.Phase = Terminated
		p.discard(&in)
		p.cleanup(&in)
	}
	return p
}

// updateStop takes the decision to stop, or sharpens an earlier one: a stronger cause replaces a weaker one, and the time left only shrinks,
// whichever of a deletion and an eviction leaves more of it.
func (p *Plan) updateStop(in *Input) {
	if in.Eviction != nil {
		p.sharpen(eviction(in))
	}
	if in.Pod.DeletionTimestamp != nil {
		p.sharpen(deletion(in))
	}
	if in.Eviction == nil && in.Pod.DeletionTimestamp == nil {
		p.sharpen(p.deadline(in))
	}
}

// sharpen adds one more reason to stop; nil is none.
func (p *Plan) sharpen(s *Stop) {
	if s == nil || p.Stop == nil {
		p.Stop = cmp.Or(p.Stop, s)
		return
	}
	merged := *p.Stop
	if s.Cause > merged.Cause {
		merged.Cause = s.Cause
		if merged.Reason == "" {
			merged.Reason, merged.Message = s.Reason, s.Message
		}
	}
	merged.Deadline = minTime(s.Deadline, merged.Deadline)
	merged.NoGrace = merged.NoGrace || s.NoGrace
	p.Stop = &merged
}

// eviction is the stop of a pod that has to make room.
func eviction(in *Input) *Stop {
	e := in.Eviction
	return &Stop{
		Cause: CauseEviction, Reason: cmp.Or(e.Reason, ReasonEvicted), Message: e.Message,
		Deadline: in.Now.Add(min(e.Grace, specGrace(in.Pod))), NoGrace: e.Grace <= 0,
	}
}

// deletion is the stop of a pod that is to go. Its deadline is the deletion timestamp, which Kubernetes sets to the end of the grace period.
func deletion(in *Input) *Stop {
	s := &Stop{Cause: CauseDeletion, Deadline: in.Pod.DeletionTimestamp.Time}
	if seconds := in.Pod.DeletionGracePeriodSeconds; seconds != nil {
		s.NoGrace = *seconds == 0
		s.Deadline = minTime(s.Deadline, in.Now.Add(time.Duration(*seconds)*time.Second))
	}
	return s
}

// deadline stops a pod that ran for longer than it may.
func (p *Plan) deadline(in *Input) *Stop {
	seconds := in.Pod.Spec.ActiveDeadlineSeconds
	if seconds == nil || in.Previous == nil || in.Previous.StartTime == nil || in.Phase != Syncing {
		return nil
	}
	end := in.Previous.StartTime.Add(time.Duration(*seconds) * time.Second)
	if in.Now.Before(end) {
		p.again(end)
		return nil
	}
	return &Stop{
		Cause: CauseDeadline, Reason: ReasonDeadlineExceeded, Message: "Pod was active on the node longer than the specified deadline",
		Deadline: in.Now.Add(specGrace(in.Pod)),
	}
}

func specGrace(p *v1.Pod) time.Duration {
	if p.Spec.TerminationGracePeriodSeconds == nil {
		return 30 * time.Second
	}
	return max(0, time.Duration(*p.Spec.TerminationGracePeriodSeconds)*time.Second)
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// sync works towards running containers.
func (p *Plan) sync(in *Input) {
	if finished, stop := in.finished(); finished {
		p.Stop = stop
		return
	}
	if p.waitForRoom(in) {
		return
	}
	current := p.sandbox(in)
	p.containers(in, current)
	p.prune(in)
}

// roomAgain is how often it is looked again whether the pods that make room have ended: another process may drive them.
const roomAgain = time.Second

// waitForRoom says whether a pod of which there is nothing yet has to wait for those that make room for it.
func (p *Plan) waitForRoom(in *Input) bool {
	if len(in.After) == 0 || len(in.Runtime.Sandboxes) > 0 || in.Busy.Sandbox {
		return false
	}
	p.wait(Wait{
		Step: StepRoom, Resource: in.After[0], Until: in.Now.Add(roomAgain),
		Message: fmt.Sprintf("pods that make room for this one have not ended yet: %s", strings.Join(in.After, ", ")),
	})
	return true
}

// prune removes what is dead and of no use any more: of each container name the newest instance and the newest dead one are kept, of the sandboxes that
// are not ready the newest one and those that still have a container. What was created and never started is of use as the newest instance only.
func (p *Plan) prune(in *Input) {
	dead := make(map[string]int)
	restarted, _ := in.restartedAll()
	if restarted != nil && !in.RestartingAll() {
		restarted = nil // everything has a successor: nobody needs to know any more
	}
	inUse := make(map[string]bool)
	for i := range in.Runtime.Containers {
		c := &in.Runtime.Containers[i]
		keep := c.State != pod.ContainerExited
		if in.Interrupted(c) {
			continue // it goes before the next start
		}
		switch c.State {
		case pod.ContainerExited:
			superseded := c != in.Newest(c.Name)
			keep = (dead[c.Name] == 0 && !(superseded && in.Surplus[c.ID])) || c == restarted
			dead[c.Name]++
		case pod.ContainerCreated:
			keep = c == in.Newest(c.Name) || in.Busy.Containers[c.Name] || in.Past(c) // the last go before the next start
		}
		if !keep && !in.Busy.Removals[c.ID] && !in.failedLately(c.ID) {
			p.do(Action{Kind: RemoveContainer, Container: c.Name, ID: c.ID})
		}
		inUse[c.SandboxID] = true
	}
	for i := 1; i < len(in.Runtime.Sandboxes); i++ {
		if s := &in.Runtime.Sandboxes[i]; !s.Ready && !inUse[s.ID] && !in.Busy.Removals[s.ID] && !in.failedLately(s.ID) {
			p.do(Action{Kind: RemoveSandbox, ID: s.ID})
		}
	}
}

// failedLately says whether ending the thing failed and must wait, without saying that the pod waits for it.
func (in *Input) failedLately(key string) bool {
	f, ok := in.EndFailures[key]
	return ok && in.Now.Before(f.NotBefore)
}

// sandbox returns the sandbox in which containers may run, nil while there is none; then it has planned what leads to one.
func (p *Plan) sandbox(in *Input) *pod.Sandbox {
	newest := in.Runtime.NewestSandbox()
	if newest != nil && usable(in, newest) {
		return newest
	}
	if in.Busy.Sandbox {
		p.wait(Wait{Step: StepSandbox, Resource: "sandbox", Message: "the sandbox is being created"})
		return nil
	}
	if !p.retire(in) {
		return nil
	}
	attempt := uint32(0)
	if newest != nil {
		attempt = newest.Attempt + 1
	}
	if f := in.SandboxFailure; in.Now.Before(f.NotBefore) {
		p.wait(Wait{Step: StepSandbox, Resource: "sandbox", Message: f.Message, Since: f.At, Until: f.NotBefore})
		return nil
	}
	p.do(Action{Kind: CreateSandbox, Attempt: attempt})
	return nil
}

// usable says whether containers may run in this sandbox, the newest one.
func usable(in *Input, s *pod.Sandbox) bool {
	if !s.Ready || s.HostNetwork != in.Pod.Spec.HostNetwork {
		return false
	}
	if !in.Pod.Spec.HostNetwork && len(s.IPs) == 0 {
		return false
	}
	ready := 0
	for i := range in.Runtime.Sandboxes {
		if in.Runtime.Sandboxes[i].Ready {
			ready++
		}
	}
	return ready == 1
}

// retire ends what is left in unusable sandboxes. It returns true when nothing is left to end.
func (p *Plan) retire(in *Input) bool {
	clear := true
	for i := range in.Runtime.Containers {
		c := &in.Runtime.Containers[i]
		if c.State != pod.ContainerRunning && c.State != pod.ContainerUnknown {
			continue
		}
		clear = false
		p.kill(in, c, in.Now.Add(specGrace(in.Pod)), false, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
	}
	if !clear || len(in.Busy.Containers) > 0 {
		return false
	}
	for i := range in.Runtime.Sandboxes {
		s := &in.Runtime.Sandboxes[i]
		if !s.Ready {
			continue
		}
		clear = false
		if !in.Busy.Removals[s.ID] && !p.heldBack(in, s.ID, "sandbox "+s.ID) {
			p.do(Action{Kind: StopSandbox, ID: s.ID, Reason: "SandboxChanged", Message: "Pod sandbox changed, it will be killed and re-created."})
		}
	}
	return clear
}

// kill asks for the end of a container, unless that is under way and ends early enough.
func (p *Plan) kill(in *Input, c *pod.Container, deadline time.Time, now bool, reason, message string) {
	grace := max(deadline.Sub(in.Now), MinGrace)
	if now {
		grace = 0
	}
	if end, busy := in.Busy.Kills[c.ID]; busy && !end.After(in.Now.Add(grace+time.Second)) {
		return
	}
	if p.heldBack(in, c.ID, c.Name) {
		return
	}
	p.do(Action{Kind: KillContainer, Container: c.Name, ID: c.ID, Grace: grace, NoHook: now, Reason: reason, Message: message})
}

// killForRestart ends a running container of a pod that goes on.
func (p *Plan) killForRestart(in *Input, c *pod.Container, grace time.Duration, why string) {
	if _, busy := in.Busy.Kills[c.ID]; busy || p.heldBack(in, c.ID, c.Name) {
		return
	}
	message := fmt.Sprintf("Container %s %s", c.Name, why)
	if spec := in.spec(c.Name); spec == nil || in.policy(spec) != v1.RestartPolicyNever || changed(spec, c) {
		message += ", will be restarted"
	}
	p.do(Action{Kind: KillContainer, Container: c.Name, ID: c.ID, Grace: max(grace, MinGrace), Reason: "Killing", Message: message, Restart: true})
}
