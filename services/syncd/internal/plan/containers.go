package plan

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
)

// Waiting reasons of containers.
const (
	ReasonCrashLoopBackOff  = "CrashLoopBackOff"
	ReasonImagePullBackOff  = "ImagePullBackOff"
	ReasonErrImagePull      = "ErrImagePull"
	ReasonContainerCreating = "ContainerCreating"
	ReasonPodInitializing   = "PodInitializing"
)

// verdictOf is what becomes of a container whose newest instance has ended (or never was).
type verdictOf uint8

const (
	done      verdictOf = iota // it ended and stays so
	failed                     // it ended badly and stays so
	startNow                   // it is to be started
	startSoon                  // it is to be started when its back-off is over
)

// containers works on the containers of the pod: kills what must not run, starts what must.
func (p *Plan) containers(in *Input, current *pod.Sandbox) {
	if current != nil {
		p.killStrays(in, current)
		p.ephemeral(in, current)
		p.resize(in)
	}
	for _, c := range in.due(current) {
		newest := in.Newest(c.Name)
		if newest != nil && current != nil && newest.SandboxID == current.ID {
			switch newest.State {
			case pod.ContainerRunning:
				p.checkRunning(in, c, newest)
				continue
			case pod.ContainerUnknown:
				p.kill(in, newest, in.Now.Add(specGrace(in.Pod)), false, "Killing", fmt.Sprintf("Container %s is in an unknown state, it will be killed and restarted", c.Name))
				continue
			}
		}
		p.start(in, c, newest, current)
	}
}

// ephemeral starts the ephemeral containers that never were: none is started twice.
func (p *Plan) ephemeral(in *Input, current *pod.Sandbox) {
	for i := range in.Pod.Spec.EphemeralContainers {
		c := v1.Container(in.Pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		newest := in.Newest(c.Name)
		if prev := in.previous(c.Name); newest == nil && prev != nil && prev.ContainerID != "" {
			continue // its record was lost
		}
		if newest == nil || (newest.State == pod.ContainerCreated && newest.SandboxID == current.ID) {
			p.start(in, &c, newest, current)
		}
	}
}

// resize gives what runs the resources that were allocated.
func (p *Plan) resize(in *Input) {
	if !in.Resize.Due || in.Busy.Resize {
		return
	}
	if f := in.Resize.Failure; in.Now.Before(f.NotBefore) {
		p.wait(Wait{Step: StepResize, Resource: "resources", Message: f.Message, Since: f.At, Until: f.NotBefore})
		return
	}
	p.do(Action{Kind: Resize})
}

// killStrays ends running instances that must not be: of older sandboxes, and all but the newest of one name.
func (p *Plan) killStrays(in *Input, current *pod.Sandbox) {
	for i := range in.Runtime.Containers {
		c := &in.Runtime.Containers[i]
		if !isAlive(c) || (c.SandboxID == current.ID && in.Newest(c.Name) == c && !in.Past(c)) {
			continue
		}
		if in.Past(c) {
			p.kill(in, c, in.Now, true, "Killing", fmt.Sprintf("Container %s is restarted with all containers of the pod", c.Name))
			continue
		}
		p.kill(in, c, in.Now.Add(MinGrace), false, "Killing", fmt.Sprintf("Container %s was replaced by a newer one", c.Name))
	}
}

// checkRunning restarts a running container whose definition changed or that its probes gave up on.
func (p *Plan) checkRunning(in *Input, spec *v1.Container, c *pod.Container) {
	if in.Busy.Containers[spec.Name] {
		return
	}
	grace := specGrace(in.Pod)
	if changed(spec, c) {
		p.killForRestart(in, c, grace, "definition changed")
		return
	}
	if in.Resize.Due && ResizeRestarts(in.Pod, spec, c) {
		p.killForRestart(in, c, grace, "resize requires restart")
		return
	}
	if in.HookFailed[c.ID] {
		p.killForRestart(in, c, grace, "failed its postStart hook")
		return
	}
	for _, probe := range []struct {
		kind ProbeKind
		spec *v1.Probe
		why  string
	}{{Startup, spec.StartupProbe, "failed startup probe"}, {Liveness, spec.LivenessProbe, "failed liveness probe"}} {
		if probe.spec == nil {
			continue
		}
		if v, ok := in.verdict(spec.Name, probe.kind, c.ID); ok && v.Failure {
			if s := probe.spec.TerminationGracePeriodSeconds; s != nil {
				grace = time.Duration(*s) * time.Second
			}
			p.killForRestart(in, c, grace, probe.why)
			return
		}
	}
}

// start plans what leads to a new instance of the container: its image, and once everything is there its creation.
func (p *Plan) start(in *Input, spec *v1.Container, newest *pod.Container, current *pod.Sandbox) {
	if in.Busy.Containers[spec.Name] || in.aliveElsewhere(spec.Name) || p.clearInterrupted(in, spec.Name) {
		return
	}
	next, delay := in.judge(spec, newest, current)
	switch next {
	case done, failed:
		return
	case startSoon:
		due, _ := in.restartDelay(spec, newest)
		p.wait(Wait{
			Step: StepBackoff, Resource: spec.Name, Container: spec.Name, Reason: ReasonCrashLoopBackOff,
			Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)", due, spec.Name, in.Pod.Name, in.Pod.Namespace, in.Pod.UID),
			Since:   newest.FinishedAt, Until: newest.FinishedAt.Add(due),
		})
		return
	}
	if f, ok := in.Failures[spec.Name]; ok && in.Now.Before(f.NotBefore) {
		p.wait(Wait{Step: StepStart, Resource: spec.Name, Container: spec.Name, Reason: f.Reason, Message: f.Message, Since: f.At, Until: f.NotBefore})
		return
	}
	ready := p.images(in, spec)
	if in.hasVolumes() && !in.Volumes.Ready {
		p.wait(Wait{
			Step: StepVolumes, Resource: in.Volumes.Resource, Container: spec.Name, Reason: in.creating(),
			Message: in.Volumes.Message, Since: in.Volumes.Since,
		})
		return
	}
	if !ready || current == nil {
		return
	}
	a := Action{Kind: StartContainer, Container: spec.Name, SandboxID: current.ID, Attempt: in.attempt(spec.Name, newest), Delay: delay}
	if in.mayRestartAll() {
		a.Decided = in.Now
	}
	if reusable(spec, newest, current) {
		a.ID, a.Attempt = newest.ID, newest.Attempt
	}
	p.do(a)
}

// clearInterrupted removes what an interrupted start left, so that its name is free, and what was never started before all containers were
// restarted. It says whether there was any.
func (p *Plan) clearInterrupted(in *Input, name string) bool {
	found := false
	for i := range in.Runtime.Containers {
		c := &in.Runtime.Containers[i]
		if c.Name != name || (!in.Interrupted(c) && (c.State != pod.ContainerCreated || !in.Past(c))) {
			continue
		}
		found = true
		if !in.Busy.Removals[c.ID] && !p.heldBack(in, c.ID, name) {
			p.do(Action{Kind: RemoveContainer, Container: name, ID: c.ID})
		}
	}
	return found
}

// creating is the waiting reason of a container that is on its way.
func (in *Input) creating() string {
	if len(in.Pod.Spec.InitContainers) > 0 {
		return ReasonPodInitializing
	}
	return ReasonContainerCreating
}

// attempt is the restart count for the next instance.
func (in *Input) attempt(name string, newest *pod.Container) uint32 {
	var n uint32
	for i := range in.Runtime.Containers {
		if c := &in.Runtime.Containers[i]; c.Name == name && (c == newest || in.Past(c)) {
			n = max(n, c.Attempt+1)
		}
	}
	prev := in.previous(name)
	never := prev == nil || (prev.ContainerID == "" && prev.LastTerminationState.Terminated == nil)
	if last, logged := in.Logged[name]; logged && never && newest == nil {
		n = max(n, last+1)
	}
	if prev == nil || prev.RestartCount < 0 {
		return n
	}
	count := uint32(prev.RestartCount)
	if newest == nil && (prev.State.Running != nil || prev.State.Terminated != nil || prev.LastTerminationState.Terminated != nil) {
		count++ // it ran, and its record was lost
	}
	return max(n, count)
}

// reusable says whether the newest instance was created for this sandbox and definition and only lacks its start.
func reusable(spec *v1.Container, newest *pod.Container, current *pod.Sandbox) bool {
	return newest != nil && newest.State == pod.ContainerCreated && newest.SandboxID == current.ID && !changed(spec, newest)
}

// aliveElsewhere says whether an instance of the container still runs: then a new one must wait.
func (in *Input) aliveElsewhere(name string) bool {
	for i := range in.Runtime.Containers {
		if c := &in.Runtime.Containers[i]; c.Name == name && isAlive(c) {
			return true
		}
	}
	return false
}

// judge says what becomes of a container that does not run now. delay is the back-off to put on its next instance.
func (in *Input) judge(spec *v1.Container, newest *pod.Container, current *pod.Sandbox) (next verdictOf, delay time.Duration) {
	if newest == nil {
		return startNow, in.delayAfterRestartAll(spec)
	}
	if newest.State != pod.ContainerExited {
		return startNow, 0
	}
	if in.isEphemeral(spec.Name) {
		return done, 0
	}
	inHere := current != nil && newest.SandboxID == current.ID
	ok := succeeded(newest)
	switch {
	case in.isInit(spec.Name) && !IsSidecar(spec):
		if ok && inHere {
			return done, 0
		}
		if !ok && in.rule(spec, newest) == "" && in.policy(spec) == v1.RestartPolicyNever && !in.Killed[newest.ID] {
			return failed, 0
		}
		if ok {
			return startNow, 0 // a new sandbox: it runs again
		}
	case !in.mayRestart(spec, newest):
		if ok {
			return done, 0
		}
		return failed, 0
	}
	due, following := in.restartDelay(spec, newest)
	if due > 0 && in.Now.Before(newest.FinishedAt.Add(due)) {
		return startSoon, following
	}
	return startNow, following
}

func succeeded(c *pod.Container) bool { return c.ExitCode == 0 && c.Reason != "OOMKilled" }

func (in *Input) isInit(name string) bool {
	for i := range in.Pod.Spec.InitContainers {
		if in.Pod.Spec.InitContainers[i].Name == name {
			return true
		}
	}
	return false
}

// Initialized says whether the init containers are over, as far as the sandbox in which containers run now is concerned.
func Initialized(in *Input) bool {
	next, _ := in.initStep(in.currentSandbox())
	return next < 0
}

// currentSandbox returns the newest sandbox if it is usable.
func (in *Input) currentSandbox() *pod.Sandbox {
	if s := in.Runtime.NewestSandbox(); s != nil && usable(in, s) {
		return s
	}
	return nil
}

// initStep returns the index of the init container that holds up the others, -1 when none does, and the sidecars before it.
func (in *Input) initStep(current *pod.Sandbox) (next int, sidecars []*v1.Container) {
	begun := in.regularBegun(current)
	for i := range in.Pod.Spec.InitContainers {
		c := &in.Pod.Spec.InitContainers[i]
		if IsSidecar(c) {
			if !begun && !in.startedIn(c, current) {
				return i, sidecars
			}
			sidecars = append(sidecars, c)
			continue
		}
		if begun {
			continue
		}
		newest := in.Newest(c.Name)
		if newest == nil || current == nil || newest.SandboxID != current.ID || newest.State != pod.ContainerExited || !succeeded(newest) {
			return i, sidecars
		}
	}
	return -1, sidecars
}

// regularBegun says whether a regular container exists in the sandbox, or is being created: they are only created when the init containers are over.
func (in *Input) regularBegun(current *pod.Sandbox) bool {
	if current == nil {
		return false
	}
	anew := !in.RestartedAllAt().IsZero() // what is being created could be of the time before
	for i := range in.Pod.Spec.Containers {
		if !anew && in.Busy.Containers[in.Pod.Spec.Containers[i].Name] {
			return true
		}
		for j := range in.Runtime.Containers {
			if c := &in.Runtime.Containers[j]; c.Name == in.Pod.Spec.Containers[i].Name && c.SandboxID == current.ID && !in.Past(c) {
				return true
			}
		}
	}
	return false
}

// due returns the containers that are to run now, in order: sidecars and the present init container, then, with all init containers
// over, the regular ones.
func (in *Input) due(current *pod.Sandbox) []*v1.Container {
	next, list := in.initStep(current)
	if next >= 0 {
		return append(list, &in.Pod.Spec.InitContainers[next])
	}
	for i := range in.Pod.Spec.Containers {
		list = append(list, &in.Pod.Spec.Containers[i])
	}
	return list
}

// Started says whether the newest instance of the container runs, has its postStart hook behind it and passed its startup probe.
func (in *Input) Started(spec *v1.Container) bool {
	c := in.Newest(spec.Name)
	if c == nil || c.State != pod.ContainerRunning || in.Busy.Containers[spec.Name] {
		return false
	}
	if spec.StartupProbe == nil {
		return true
	}
	if v, ok := in.verdict(spec.Name, Startup, c.ID); ok && (v.Success || v.Failure) {
		return v.Success
	}
	prev := in.previous(spec.Name)
	return prev != nil && SameContainer(prev.ContainerID, c.ID) && prev.Started != nil && *prev.Started
}

// startedIn says whether the container is started, and runs in this sandbox.
func (in *Input) startedIn(spec *v1.Container, s *pod.Sandbox) bool {
	return s != nil && in.Started(spec) && in.Newest(spec.Name).SandboxID == s.ID
}

// Ready says whether the newest instance of the container is started and its readiness probe, if any, passes. Without a verdict on
// this instance what was published for it before counts. What runs in a sandbox that is given up is about to be stopped, and not ready.
func (in *Input) Ready(spec *v1.Container) bool {
	if !in.startedIn(spec, in.currentSandbox()) {
		return false
	}
	c := in.Newest(spec.Name)
	if spec.ReadinessProbe == nil {
		return true
	}
	if v, ok := in.verdict(spec.Name, Readiness, c.ID); ok && (v.Success || v.Failure) {
		return v.Success
	}
	prev := in.previous(spec.Name)
	return prev != nil && SameContainer(prev.ContainerID, c.ID) && prev.Ready
}

// SameContainer compares a container ID of a status ("containerd://…") with one of the runtime.
func SameContainer(statusID, id string) bool {
	n := len(statusID) - len(id)
	return id != "" && n > 3 && statusID[n:] == id && statusID[n-3:n] == "://"
}
