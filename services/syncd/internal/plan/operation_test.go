package plan_test

import (
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// complete ends a pending action, well or badly, and tells the worker.
func (m *model) complete(i int, ok bool) {
	op := m.pending[i]
	m.pending = append(m.pending[:i:i], m.pending[i+1:]...)
	ok = m.effect(op, ok && !m.down)
	m.logf("complete %s ok=%v", op.Action, ok)
	m.told(op, ok)
}

// effect does to the world what the action does, or a part of it when it fails. It says whether the action succeeded.
func (m *model) effect(op *operation, ok bool) bool {
	w, now := m.world, m.in.Now
	switch op.Kind {
	case plan.CreateSandbox:
		if !ok && m.rand.IntN(3) > 0 {
			return false
		}
		id, made := w.newSandbox(op.Action, m.in.Pod, now, ok)
		op.id, w.late[id] = id, op.ghost
		return ok && made
	case plan.StartContainer:
		return m.start(op, ok)
	case plan.KillContainer:
		if ok || m.rand.IntN(2) == 0 {
			w.end(op.ID, pick(m.rand, int32(137), 143, 0), false, now)
		}
	case plan.StopSandbox:
		if ok || m.rand.IntN(2) == 0 {
			w.stopSandbox(op.ID, now)
		}
	case plan.RemoveSandbox, plan.RemoveContainer:
		if ok || m.rand.IntN(2) == 0 {
			m.checkRemoval(op)
			w.remove(op.ID)
		}
	case plan.Resize:
		if ok {
			m.resize(op)
		}
	case plan.RemoveRecord:
		m.gone = m.gone || ok
	}
	return ok
}

// part does the next part of a start, which goes on: the container is there, then it runs and has its postStart hook to come.
func (m *model) part(op *operation) {
	if op.Kind != plan.StartContainer || m.down {
		return
	}
	if op.id == "" {
		if m.make(op) {
			m.logf("%s is created", op.Container)
		}
		return
	}
	if op.spec.Lifecycle != nil && m.world.run(op.id, m.in.Now) {
		m.logf("%s runs, its hook is to come", op.Container)
		if !op.ghost {
			m.saw(op.id)
		}
	}
}

func (m *model) make(op *operation) bool {
	id, ok := m.world.create(op.Action, op.spec, m.in.Now)
	op.id = id
	if ok {
		l := m.world.lives[id]
		l.owed, l.ghost, l.decided = op.owed, op.ghost, op.begun
	}
	return ok
}

// start makes a container and runs it. Where it fails, it does so at any stage.
func (m *model) start(op *operation, ok bool) bool {
	if op.id == "" {
		if !ok && m.rand.IntN(2) == 0 {
			return false
		}
		if !m.make(op) {
			return false
		}
	}
	c := m.world.Container(op.id)
	if c != nil && c.State != pod.ContainerCreated {
		return ok // it ran already, and perhaps ended; the hook went well or not
	}
	if ok && m.world.run(op.id, m.in.Now) {
		m.world.lives[op.id].ghost = m.world.lives[op.id].ghost || op.ghost
		return true
	}
	if m.rand.IntN(2) == 0 {
		m.world.failStart(op.id, m.in.Now)
	}
	return false
}

func (m *model) resize(op *operation) {
	for i := range m.world.Containers {
		c := &m.world.Containers[i]
		spec := pod.FindContainer(m.in.Pod, c.Name)
		if c.State != pod.ContainerRunning || spec == nil || plan.ResizeRestarts(m.in.Pod, spec, c) {
			continue
		}
		r := op.given[c.Name]
		given := plan.Resources(&r)
		c.Resources = &given
	}
}

// told is what the worker does with the end of an action.
func (m *model) told(op *operation, ok bool) {
	in, busy, a := &m.in, &m.in.Busy, op.Action
	stopped := in.Phase != plan.Syncing // starts are cancelled then: their failures say nothing
	switch a.Kind {
	case plan.CreateSandbox:
		busy.Sandbox = false
		if ok {
			in.SandboxFailure = plan.Failure{}
			m.saw(op.id)
			return
		}
		in.Stale = true
		if !stopped {
			in.SandboxFailure = m.failed(in.SandboxFailure, "")
		}
	case plan.EnsureImage:
		delete(busy.Images, a.ImageKey())
		m.pulled(op, ok)
	case plan.StartContainer:
		m.toldStart(op, ok, stopped)
	case plan.KillContainer:
		if busy.Kills[a.ID].Equal(op.end) {
			delete(busy.Kills, a.ID)
		}
		if m.down {
			in.Stale = true
		} else {
			m.saw(a.ID)
		}
		m.ended(a.ID, ok)
	case plan.StopSandbox:
		delete(busy.Removals, a.ID)
		m.ended(a.ID, ok)
		if s := in.Runtime.Sandbox(a.ID); ok && s != nil {
			s.Ready = false
		}
		in.Stale = in.Stale || !ok
	case plan.RemoveSandbox:
		delete(busy.Removals, a.ID)
		m.ended(a.ID, ok)
		if ok {
			m.unsee(a.ID)
		}
		in.Stale = in.Stale || !ok
	case plan.RemoveContainer:
		delete(busy.Removals, a.ID)
		m.ended(a.ID, ok)
		if ok {
			m.unsee(a.ID)
		}
	case plan.Resize:
		m.toldResize(op, ok)
	case plan.Cleanup:
		busy.Cleanup, in.Cleaned = false, ok
		m.ended(plan.EndCleanup, ok)
	case plan.RemoveRecord:
		busy.Cleanup = false
		m.ended(plan.EndRecord, ok)
	}
}

func (m *model) toldStart(op *operation, ok, stopped bool) {
	in, a := &m.in, op.Action
	delete(in.Busy.Containers, a.Container)
	delete(in.Images, a.Container)
	c := m.world.Container(op.id)
	ran := c != nil && m.world.lives[op.id].ran
	switch {
	case ok:
		delete(in.Failures, a.Container)
		m.saw(op.id)
	case ran && op.spec.Lifecycle != nil:
		m.saw(op.id) // it ran; only its hook failed
		delete(in.Failures, a.Container)
		if !stopped {
			in.Failures[a.Container] = m.failed(plan.Failure{}, "PostStartHookError")
			in.HookFailed[op.id] = true
		}
	default:
		for i := range op.spec.VolumeMounts {
			delete(in.Images, plan.VolumeImage(op.spec.VolumeMounts[i].Name))
		}
		in.Stale = true
		if stopped {
			return
		}
		if a.ID == "" && op.id != "" && c != nil {
			in.StartFailed[op.id] = true
		}
		in.Failures[a.Container] = m.failed(in.Failures[a.Container], pick(m.rand, "CreateContainerConfigError", "CreateContainerError", "RunContainerError"))
	}
}

func (m *model) toldResize(op *operation, ok bool) {
	in := &m.in
	in.Busy.Resize = false
	waits := false
	var ids []string
	for _, c := range in.Runtime.Running() {
		ids = append(ids, c.ID)
	}
	for _, id := range ids {
		if m.world.Container(id) != nil {
			m.saw(id)
		}
	}
	for _, c := range in.Runtime.Running() {
		if spec := pod.FindContainer(in.Pod, c.Name); spec != nil && plan.ResizeRestarts(in.Pod, spec, c) {
			waits = true
		}
	}
	switch {
	case !ok:
		in.Resize.Failure = m.failed(in.Resize.Failure, "")
	case waits || !plan.Allocation(op.given).Equal(plan.Allocate(in.Pod)):
		in.Resize.Failure = plan.Failure{NotBefore: in.Now.Add(plan.CreateDelay(1))}
	default:
		in.Resize = plan.ResizeState{}
	}
}

func (m *model) failed(f plan.Failure, reason string) plan.Failure {
	f.Count++
	f.Reason, f.Message = reason, "the test says so"
	if f.At.IsZero() {
		f.At = m.in.Now
	}
	f.NotBefore = m.in.Now.Add(plan.CreateDelay(f.Count))
	return f
}

func (m *model) ended(key string, ok bool) {
	if ok {
		delete(m.in.EndFailures, key)
		return
	}
	m.in.EndFailures[key] = m.failed(m.in.EndFailures[key], "")
}

// pulled is the end of an image's pull: failures are the pod's, whichever container asked.
func (m *model) pulled(op *operation, ok bool) {
	in, key := &m.in, op.ImageKey()
	if ok {
		maps.DeleteFunc(in.Images, func(_ string, i plan.Image) bool { return i.Ref == op.ref && !i.Ready })
		in.Images[key] = plan.Image{Ref: op.ref, Ready: true}
		return
	}
	img := plan.Image{Ref: op.ref}
	for _, k := range sortedKeys(in.Images) {
		if other := in.Images[k]; other.Ref == op.ref && other.Failures > img.Failures {
			img = other
		}
	}
	img.Failures++
	img.Reason = pick(m.rand, plan.ReasonErrImagePull, "RegistryUnavailable", "InvalidImageName", "ErrImageNeverPull")
	img.Message, img.FailedAt, img.NotBefore = "the test says so", in.Now, in.Now.Add(plan.ImageDelay(img.Failures))
	in.Images[key] = img
}

// hauntsFor is for how long at most a runtime goes on with what a process had begun that is gone.
const hauntsFor = 2 * time.Second

// haunt lets what a process that is gone had begun happen now.
func (m *model) haunt(i int) {
	op := m.ghosts[i]
	m.ghosts = append(m.ghosts[:i:i], m.ghosts[i+1:]...)
	if m.in.Now.Sub(op.left) > hauntsFor {
		return
	}
	ok := m.effect(op, m.rand.IntN(3) > 0)
	m.logf("an earlier process's %s ok=%v", op.Action, ok)
}

// specs are all of the pod's containers but the ephemeral ones.
func specs(p *v1.Pod) []*v1.Container {
	var list []*v1.Container
	for i := range p.Spec.InitContainers {
		list = append(list, &p.Spec.InitContainers[i])
	}
	for i := range p.Spec.Containers {
		list = append(list, &p.Spec.Containers[i])
	}
	return list
}
