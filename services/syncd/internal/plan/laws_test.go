package plan_test

import (
	"maps"
	"reflect"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// The laws of decisions. They are written from the documentation of what a pod may expect, by what happened in the world, and share no code with what they check but
// for small look-ups.

// checkPlan says what must hold of each decision.
func (m *model) checkPlan(p *plan.Plan) {
	in := &m.in
	if p.Phase < in.Phase {
		m.fail("the phase went from %s back to %s", in.Phase, p.Phase)
	}
	if !p.Again.IsZero() && !p.Again.After(in.Now) {
		m.fail("it is to be decided again at %s, which is not after now: that spins", p.Again.Sub(modelStart))
	}
	if (p.Phase == plan.Syncing) != (p.Stop == nil) {
		m.fail("stop %+v in phase %s", p.Stop, p.Phase)
	}
	if old := in.Stop; old != nil {
		if p.Stop.Cause < old.Cause || p.Stop.Deadline.After(old.Deadline) || (old.NoGrace && !p.Stop.NoGrace) || (old.Reason != "" && p.Stop.Reason != old.Reason) {
			m.fail("the decision to stop was softened from %+v to %+v", *old, *p.Stop)
		}
	}
	if p.Phase == plan.Terminated && in.Phase != plan.Terminated {
		m.checkOver(p)
	}
	if in.Eviction != nil && m.evictAt.IsZero() {
		m.evictAt = in.Now // the order is seen now
	}
	m.checkSaysWhy(p)
}

// checkOver says what must hold when a pod is declared over.
func (m *model) checkOver(*plan.Plan) {
	in := &m.in
	if in.Stale || in.Busy.Sandbox || len(in.Busy.Containers)+len(in.Busy.Kills) > 0 {
		m.fail("terminated while something is under way or not known")
	}
	for _, c := range in.Runtime.Containers {
		if c.State == pod.ContainerRunning || c.State == pod.ContainerUnknown {
			m.fail("terminated while %s (%s) is %s", c.Name, c.ID, c.State)
		}
	}
	if s := in.Runtime.ReadySandbox(); s != nil {
		m.fail("terminated while sandbox %s is ready", s.ID)
	}
}

// checkSaysWhy wants whatever does not move to say what it waits for.
func (m *model) checkSaysWhy(p *plan.Plan) {
	in := &m.in
	if len(p.Actions)+len(m.pending)+len(p.Waits) > 0 || in.Stale {
		return
	}
	switch {
	case p.Phase == plan.Terminated && in.Pod.DeletionTimestamp == nil:
	case p.Phase == plan.Syncing && len(in.Runtime.Running()) > 0: // it is theirs to go on
	default:
		m.fail("in phase %s nothing happens, and nobody says why", p.Phase)
	}
}

// checkPure wants the same decision twice, and an input that is left as it was.
func (m *model) checkPure(p *plan.Plan) {
	before := m.in.Runtime
	kept := &pod.RuntimePod{Sandboxes: slices.Clone(before.Sandboxes), Containers: slices.Clone(before.Containers), ObservedAt: before.ObservedAt}
	if again := plan.Next(m.in); !reflect.DeepEqual(again.Actions, p.Actions) || !reflect.DeepEqual(again.Stop, p.Stop) || !again.Again.Equal(p.Again) {
		m.fail("the same input led to %v and to %v", p.Actions, again.Actions)
	}
	in := m.in
	for _, d := range slices.Concat(plan.Explain(&in, p), plan.Standing(&in)) {
		if d.Action == "" || (d.Because.Kind == "" && d.Because.Message != "") {
			m.fail("a decision that says nothing: %+v", d)
		}
	}
	for i := range p.Waits {
		plan.Postponed(&in, &p.Waits[i])
	}
	if !reflect.DeepEqual(kept, before) {
		m.fail("deciding changed the input")
	}
}

// checkNoRepeat wants nothing to be planned again that was just begun, and nothing else either.
func (m *model) checkNoRepeat(p *plan.Plan) {
	if len(p.Actions) > 0 {
		m.fail("with everything planned under way there is more to do: %v", p.Actions)
	}
}

// checkAction says what must hold of each action.
func (m *model) checkAction(p *plan.Plan, a *plan.Action) {
	in, busy := &m.in, &m.in.Busy
	switch a.Kind {
	case plan.CreateSandbox:
		if busy.Sandbox || p.Phase != plan.Syncing || m.terminal {
			m.fail("%s while busy or in phase %s", a, p.Phase)
		}
		m.checkNewSandbox(a)
	case plan.EnsureImage:
		m.checkPull(p, a)
	case plan.StartContainer:
		m.checkStart(p, a)
	case plan.KillContainer:
		m.checkKill(p, a)
	case plan.StopSandbox, plan.RemoveSandbox, plan.RemoveContainer:
		if busy.Removals[a.ID] {
			m.fail("%s is under way already", a)
		}
		m.checkEnd(p, a)
	case plan.Resize:
		if busy.Resize || p.Phase != plan.Syncing || !in.Resize.Due {
			m.fail("%s while busy, not due or in phase %s", a, p.Phase)
		}
	case plan.Cleanup, plan.RemoveRecord:
		if len(in.Runtime.Sandboxes)+len(in.Runtime.Containers) > 0 || in.Pod.DeletionTimestamp == nil || busy.Cleanup || p.Phase != plan.Terminated || in.Stale {
			m.fail("%s too early", a)
		}
		if len(in.Pod.Spec.Volumes) > 0 && in.Pod.Spec.Volumes[0].Image == nil && !in.Volumes.Gone {
			m.fail("%s before the volumes are gone", a)
		}
		if a.Kind == plan.RemoveRecord && !in.Cleaned {
			m.fail("%s before the cleanup", a)
		}
	}
}

// checkNewSandbox wants a new sandbox only where there is no good one, nothing runs and the pod may begin again.
func (m *model) checkNewSandbox(a *plan.Action) {
	rp := m.in.Runtime
	for _, c := range rp.Containers {
		if c.State == pod.ContainerRunning || c.State == pod.ContainerUnknown {
			m.fail("%s while %s (%s) is %s", a, c.Name, c.ID, c.State)
		}
	}
	if s := rp.ReadySandbox(); s != nil {
		m.fail("%s while %s is ready", a, s.ID)
	}
	over := true
	for i := range m.in.Pod.Spec.Containers {
		over = over && m.overForGood(&m.in.Pod.Spec.Containers[i])
	}
	if over {
		m.fail("%s though nothing is left to run", a)
	}
}

// checkPull wants one pull of an image at a time, for something that is to be started.
func (m *model) checkPull(p *plan.Plan, a *plan.Action) {
	in := &m.in
	if in.Busy.Images[a.ImageKey()] || p.Phase != plan.Syncing {
		m.fail("%s while busy or in phase %s", a, p.Phase)
	}
	ref, _, ok := plan.ImageOf(in.Pod, a.ImageKey())
	if !ok {
		m.fail("%s: of what?", a)
	}
	for key := range in.Busy.Images {
		if other, _, _ := plan.ImageOf(in.Pod, key); other == ref {
			m.fail("%s while the same image is being pulled", a)
		}
	}
	for _, img := range in.Images {
		if img.Ref == ref && !img.Ready && in.Now.Before(img.NotBefore) {
			m.fail("%s before its back-off is over", a)
		}
	}
}

// checkEnd wants only what is dead to be stopped or removed.
func (m *model) checkEnd(p *plan.Plan, a *plan.Action) {
	for _, c := range m.in.Runtime.Containers {
		alive := c.State == pod.ContainerRunning || c.State == pod.ContainerUnknown
		if (c.ID == a.ID || c.SandboxID == a.ID) && alive {
			m.fail("%s while %s (%s) is %s", a, c.Name, c.ID, c.State)
		}
	}
	if s := m.in.Runtime.Sandbox(a.ID); a.Kind == plan.RemoveSandbox && s.Ready {
		m.fail("%s, which is ready", a)
	}
	if a.Kind == plan.StopSandbox && p.Phase == plan.Syncing && m.healthy() {
		m.fail("%s, which is the pod's good one", a)
	}
}

// checkRemoval says what must hold of the world when something goes.
func (m *model) checkRemoval(op *operation) {
	for _, c := range m.world.Containers {
		if (c.ID == op.ID || c.SandboxID == op.ID) && c.State == pod.ContainerRunning && !op.ghost && !m.haunted(c.ID) {
			m.fail("%s removes %s (%s), which runs", op.Action, c.Name, c.ID)
		}
	}
}

// haunted says whether a container could have been started by a process that is gone, after the present one had looked.
func (m *model) haunted(id string) bool {
	c := m.in.Runtime.Container(id)
	return c == nil || c.State != pod.ContainerRunning
}

// healthy says whether the newest sandbox, and no other, is ready as the pod wants it.
func (m *model) healthy() bool {
	ready := 0
	for _, s := range m.in.Runtime.Sandboxes {
		if s.Ready {
			ready++
		}
	}
	return ready == 1 && m.in.Runtime.Sandboxes[0].Ready
}

// checkWorld says what must hold of what really runs.
func (m *model) checkWorld() {
	running := make(map[string]string, 4)
	for i := range m.world.Containers {
		c := &m.world.Containers[i]
		if c.State != pod.ContainerRunning {
			continue
		}
		if other, two := running[c.Name]; two && !m.world.lives[other].ghost && !m.world.lives[c.ID].ghost {
			m.fail("two instances of %s run: %s and %s", c.Name, c.ID, other)
		}
		running[c.Name] = c.ID
		if m.terminal && m.in.Runtime.Container(c.ID) != nil && !m.world.lives[c.ID].ghost {
			m.fail("%s (%s) runs though the pod was told to be over", c.Name, c.ID)
		}
	}
	for _, s := range m.world.Sandboxes {
		if m.gone && !m.world.late[s.ID] { // nobody could know of a late one: it is ended as a pod that nobody wishes for
			m.fail("the record is gone, sandbox %s is left: %v %v", s.ID, m.world.Sandboxes, m.world.Containers)
		}
	}
}

// sortedKeys are a map's keys in order, so that a seed always means the same history.
func sortedKeys[V any](of map[string]V) []string { return slices.Sorted(maps.Keys(of)) }

// overForGood says whether a regular container has ended, or was ended, and must not run again.
func (m *model) overForGood(spec *v1.Container) bool {
	l := m.counted(spec.Name)
	return l != nil && m.seenDead(l) && !m.mayRunAgain(spec, l)
}

// mustRun says whether a regular container must run in a pod that goes on. What only an earlier process knew leaves it open.
func (m *model) mustRun(spec *v1.Container) bool {
	l := m.counted(spec.Name)
	switch {
	case l == nil || !m.seenDead(l):
		return true
	case m.restartsAll(), l.killed && !m.in.Killed[l.id]:
		return false
	case l.killed:
		return l.image != spec.Image && m.renewed[spec.Name].Before(l.finished) || m.policyOf(spec) != v1.RestartPolicyNever
	}
	return m.mayRunAgain(spec, l)
}

func (m *model) policyOf(spec *v1.Container) v1.RestartPolicy {
	if spec.RestartPolicy != nil {
		return v1.RestartPolicy(*spec.RestartPolicy)
	}
	return m.in.Pod.Spec.RestartPolicy
}

// counted is the newest instance that the worker knows of and that ran, or failed to start in earnest; nil when there is none.
func (m *model) counted(name string) *life {
	all := m.world.named[name]
	for i := len(all) - 1; i >= 0; i-- {
		if c := m.in.Runtime.Container(all[i].id); c != nil && (all[i].ran || m.in.StartFailed[all[i].id] || all[i].shown || c.State != pod.ContainerExited) {
			return all[i]
		}
	}
	return nil
}

// seenDead says whether the worker knows of the container's end.
func (m *model) seenDead(l *life) bool {
	c := m.in.Runtime.Container(l.id)
	return c != nil && c.State == pod.ContainerExited
}

// mayRunAgain says whether restart policies and rules let a container run again after this end.
func (m *model) mayRunAgain(spec *v1.Container, l *life) bool {
	if m.allRestart(l) || l.image != spec.Image && l.killed {
		return true
	}
	if ruleOf(spec, l) != "" {
		return true
	}
	switch m.policyOf(spec) {
	case v1.RestartPolicyNever:
		return false
	case v1.RestartPolicyOnFailure:
		return !l.well() || l.killed
	}
	return true
}

// ruleOf is the action of the first rule that fits the exit code.
func ruleOf(spec *v1.Container, l *life) v1.ContainerRestartRuleAction {
	for _, r := range spec.RestartPolicyRules {
		listed := slices.Contains(r.ExitCodes.Values, l.code)
		if r.ExitCodes.Operator == v1.ContainerRestartRuleOnExitCodesOpIn && listed || r.ExitCodes.Operator == v1.ContainerRestartRuleOnExitCodesOpNotIn && !listed {
			return r.Action
		}
	}
	return ""
}

// allRestart says whether some container asked for a restart of all that comes into force after this one was made, and was in force when the pod was ended.
func (m *model) allRestart(l *life) bool {
	for _, spec := range specs(m.in.Pod) {
		for _, other := range m.world.named[spec.Name] {
			at := other.finished.Add(other.owed)
			if other.exited && at.After(l.decided) && (m.endedAt.IsZero() || m.endedOn[other.id] && !other.killed && !at.After(m.endedAt)) && ruleOf(spec, other) == v1.ContainerRestartRuleActionRestartAllContainers {
				return true
			}
		}
	}
	return false
}

func (m *model) restartsAll() bool {
	return slices.ContainsFunc(specs(m.in.Pod), func(c *v1.Container) bool {
		return slices.ContainsFunc(c.RestartPolicyRules, func(r v1.ContainerRestartRule) bool {
			return r.Action == v1.ContainerRestartRuleActionRestartAllContainers
		})
	})
}

// series is the back-off that is due before the next start of the container, and the one that follows it, by the documented series: the first restart at once, then
// 10 s, doubling to the limit; anew after ten minutes of life, or with another definition. known is false where no end is known that it could be about.
func (m *model) series(spec *v1.Container) (due, next time.Duration, known bool) {
	limit := m.in.MaxRestartDelay
	if limit == 0 {
		limit = 300 * time.Second
	}
	l := m.counted(spec.Name)
	if l == nil || !m.seenDead(l) {
		return 0, 0, false
	}
	if l.well() && m.isInit(spec.Name) && !plan.IsSidecar(spec) {
		return 0, 0, true // it only runs again in a new sandbox, anew
	}
	if l.owed == 0 || l.finished.Sub(l.created) > 10*time.Minute || l.image != spec.Image {
		return 0, min(10*time.Second, limit), true
	}
	if cpu, memory := plan.Resized(m.in.Pod, spec, m.in.Runtime.Container(l.id)); cpu || memory {
		return 0, min(10*time.Second, limit), true
	}
	due = min(l.owed, limit)
	return due, min(2*due, limit), true
}
