package plan_test

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// checkStart says what must hold when a container is started.
func (m *model) checkStart(p *plan.Plan, a *plan.Action) {
	in := &m.in
	spec := pod.FindContainer(in.Pod, a.Container)
	if p.Phase != plan.Syncing || in.Busy.Containers[a.Container] || in.Stale || m.terminal {
		m.fail("%s while busy, after the end or in phase %s", a, p.Phase)
	}
	for i := range in.Runtime.Containers {
		c := &in.Runtime.Containers[i]
		if c.Name == a.Container && (c.State == pod.ContainerRunning || c.State == pod.ContainerUnknown) {
			m.fail("%s while %s is %s", a, c.ID, c.State)
		}
		if c.Name == a.Container && a.ID == "" && c.Attempt >= a.Attempt {
			m.fail("%s, but %s was attempt %d", a, c.ID, c.Attempt)
		}
	}
	if s := in.Runtime.NewestSandbox(); s == nil || s.ID != a.SandboxID || !m.healthy() {
		m.fail("%s in a sandbox that is not the pod's good one", a)
	}
	m.checkNeeds(a, spec)
	if m.isEphemeral(a.Container) {
		m.checkOnce(a)
		return
	}
	m.checkTurn(a)
	m.checkRestart(a, spec)
	m.checkBackoff(a, spec)
}

// checkNeeds wants a container's image, those that it mounts and the volumes to be there before it starts.
func (m *model) checkNeeds(a *plan.Action, spec *v1.Container) {
	keys := []string{a.Container}
	for _, mount := range spec.VolumeMounts {
		for _, v := range m.in.Pod.Spec.Volumes {
			if v.Name == mount.Name && v.Image != nil {
				keys = append(keys, plan.VolumeImage(v.Name))
			}
		}
	}
	for _, key := range keys {
		if ref, _, _ := plan.ImageOf(m.in.Pod, key); !m.in.Images[key].Ready || m.in.Images[key].Ref != ref {
			m.fail("%s before image %q of %s is there", a, ref, key)
		}
	}
	for _, v := range m.in.Pod.Spec.Volumes {
		if v.Image == nil && !m.in.Volumes.Ready {
			m.fail("%s before volume %s is there", a, v.Name)
		}
	}
}

func (m *model) isEphemeral(name string) bool {
	for i := range m.in.Pod.Spec.EphemeralContainers {
		if m.in.Pod.Spec.EphemeralContainers[i].Name == name {
			return true
		}
	}
	return false
}

// checkOnce wants an ephemeral container to be started once.
func (m *model) checkOnce(a *plan.Action) {
	for _, l := range m.world.named[a.Container] {
		if c := m.in.Runtime.Container(l.id); l.ran && c != nil && c.State != pod.ContainerCreated { // an earlier process's start is news
			m.fail("%s, but it ran before as %s", a, l.id)
		}
	}
}

// checkTurn wants all before it in the list of init containers to be over, or started up if they are sidecars, before a container starts for the first time in a
// sandbox; and an init container that ended well not to start again there.
func (m *model) checkTurn(a *plan.Action) {
	if m.begun(a.SandboxID) {
		return
	}
	for i := range m.in.Pod.Spec.InitContainers {
		spec := &m.in.Pod.Spec.InitContainers[i]
		if spec.Name == a.Container {
			return
		}
		if plan.IsSidecar(spec) {
			m.checkStartedUp(a, spec)
			continue
		}
		if !m.world.done[a.SandboxID+"/"+spec.Name] {
			m.fail("%s before init container %s is done in sandbox %s", a, spec.Name, a.SandboxID)
		}
	}
}

// begun says whether a regular container was made in the sandbox, as far as the runtime can know, or is being made there.
func (m *model) begun(sandbox string) bool {
	for _, op := range m.pending {
		if op.Kind == plan.StartContainer && op.SandboxID == sandbox && !m.isInit(op.Container) && !m.isEphemeral(op.Container) {
			return true
		}
	}
	for i := range m.in.Pod.Spec.Containers {
		for _, l := range m.world.named[m.in.Pod.Spec.Containers[i].Name] {
			if l.sandbox == sandbox && m.in.Runtime.Container(l.id) != nil {
				return true
			}
		}
	}
	return false
}

func (m *model) checkStartedUp(a *plan.Action, spec *v1.Container) {
	for i := range m.in.Runtime.Containers {
		c := &m.in.Runtime.Containers[i]
		l := m.world.lives[c.ID]
		if c.Name == spec.Name && c.SandboxID == a.SandboxID && c.State == pod.ContainerRunning && !m.in.Busy.Containers[spec.Name] &&
			(spec.StartupProbe == nil || l.startedUp) {
			return
		}
	}
	m.fail("%s before sidecar %s has started up", a, spec.Name)
}

// checkRestart wants nothing to run again that must not.
func (m *model) checkRestart(a *plan.Action, spec *v1.Container) {
	l := m.counted(spec.Name)
	if l == nil || !m.seenDead(l) || a.ID != "" {
		return
	}
	init := false
	for i := range m.in.Pod.Spec.InitContainers {
		init = init || m.in.Pod.Spec.InitContainers[i].Name == spec.Name && !plan.IsSidecar(spec)
	}
	switch {
	case init && l.well():
		if l.sandbox == a.SandboxID && !m.allRestart(l) {
			m.fail("%s again in the sandbox in which it ended well", a)
		}
	case l.ran && !m.mayRunAgain(spec, l):
		m.fail("%s again, though it ended with %d under a policy that forbids it", a, l.code)
	case !l.ran && m.in.StartFailed[l.id] && !m.mayRunAgain(spec, l):
		m.fail("%s again, though its start failed under a policy that forbids it", a)
	}
}

// checkBackoff wants a restart to wait as long as is documented, and to owe the next one.
func (m *model) checkBackoff(a *plan.Action, spec *v1.Container) {
	due, next, known := m.series(spec)
	if a.ID != "" || m.restartsAll() {
		return
	}
	if known && m.in.Now.Before(m.counted(spec.Name).finished.Add(due)) {
		m.fail("%s before its back-off of %s is over", a, due)
	}
	if a.Delay != next {
		m.fail("%s owes %s, want %s", a, a.Delay, next)
	}
}

func (m *model) isInit(name string) bool {
	for i := range m.in.Pod.Spec.InitContainers {
		if m.in.Pod.Spec.InitContainers[i].Name == name {
			return true
		}
	}
	return false
}

// checkKill says what must hold when a container is to be stopped: it has earned it, comes in its turn, and is not given more time than it was given before.
func (m *model) checkKill(p *plan.Plan, a *plan.Action) {
	in := &m.in
	c := in.Runtime.Container(a.ID)
	if c == nil || (c.State != pod.ContainerRunning && c.State != pod.ContainerUnknown) {
		m.fail("%s of what does not run", a)
	}
	if a.Grace < plan.MinGrace && (a.Grace != 0 || !a.NoHook) {
		m.fail("%s with too little grace", a)
	}
	end := in.Now.Add(a.Grace)
	if p.Phase == plan.Syncing {
		if m.earned(c) == "" {
			m.fail("%s of a container that did nothing wrong", a)
		}
		if limit := max(graceOf(in.Pod), probeGrace(pod.FindContainer(in.Pod, c.Name)), plan.MinGrace); a.Grace > limit {
			m.fail("%s with more grace than %s", a, limit)
		}
		return
	}
	m.checkStopTurn(p, a, c)
	latest := in.Now.Add(max(graceOf(in.Pod), plan.MinGrace))
	if d := in.Pod.DeletionTimestamp; d != nil {
		latest = d.Time // it may be longer than the specification's
	}
	if e := in.Eviction; e != nil && m.evictAt.Add(e.Grace).Before(latest) {
		latest = m.evictAt.Add(e.Grace)
	}
	if before, ok := m.asked[a.ID]; ok && before.end.Before(latest) {
		latest = before.end
	}
	if least := in.Now.Add(plan.MinGrace); latest.Before(least) {
		latest = least
	}
	if end.After(latest) {
		m.fail("%s ends at %s, the latest is %s", a, end.Sub(modelStart), latest.Sub(modelStart))
	}
	if p.Stop.NoGrace && a.Grace != 0 {
		m.fail("%s though there is no grace", a)
	}
	m.asked[a.ID] = asked{a.Grace, end}
}

// checkStopTurn wants sidecars to be stopped after all others, the last one first.
func (m *model) checkStopTurn(p *plan.Plan, a *plan.Action, c *pod.Container) {
	turn := m.sidecar(c.Name)
	if p.Stop.NoGrace || turn < 0 {
		return
	}
	for i := range m.in.Runtime.Containers {
		o := &m.in.Runtime.Containers[i]
		if o.State != pod.ContainerRunning && o.State != pod.ContainerUnknown {
			continue
		}
		if other := m.sidecar(o.Name); other < 0 || other > turn {
			m.fail("%s before %s (%s) has ended", a, o.Name, o.ID)
		}
	}
}

func (m *model) sidecar(name string) int {
	for i := range m.in.Pod.Spec.InitContainers {
		if c := &m.in.Pod.Spec.InitContainers[i]; c.Name == name && plan.IsSidecar(c) {
			return i
		}
	}
	return -1
}

func probeGrace(spec *v1.Container) time.Duration {
	longest := time.Duration(0)
	for _, probe := range []*v1.Probe{spec.LivenessProbe, spec.StartupProbe} {
		if probe != nil && probe.TerminationGracePeriodSeconds != nil {
			longest = max(longest, time.Duration(*probe.TerminationGracePeriodSeconds)*time.Second)
		}
	}
	return longest
}

// earned says why a container of a pod that goes on is to be stopped, "" when there is no reason.
func (m *model) earned(c *pod.Container) string {
	in := &m.in
	spec, l := pod.FindContainer(in.Pod, c.Name), m.world.lives[c.ID]
	failed := func(kind plan.ProbeKind) bool {
		v := in.Probes[plan.ProbeKey{Container: c.Name, Kind: kind}]
		return v.ContainerID == c.ID && v.Failure
	}
	switch {
	case c.State == pod.ContainerUnknown:
		return "it is lost"
	case !m.healthy() || c.SandboxID != in.Runtime.Sandboxes[0].ID:
		return "its sandbox is no good"
	case in.Runtime.Newest(c.Name).ID != c.ID:
		return "there is a newer one"
	case m.allRestart(l):
		return "all restart"
	case l.image != spec.Image:
		return "its definition changed"
	case in.Resize.Due && plan.ResizeRestarts(in.Pod, spec, c):
		return "its resources changed"
	case in.HookFailed[c.ID]:
		return "its hook failed"
	case spec.LivenessProbe != nil && failed(plan.Liveness), spec.StartupProbe != nil && failed(plan.Startup):
		return "its probe failed"
	}
	return ""
}
