package plan_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/plan"
	"github.com/podplane/podplane/services/syncd/internal/status"
)

// model is a runtime and a worker in one, driven step by step: actions take effect after a while, in any order, or fail; containers end when they like. It
// checks after each step what must always hold.
type model struct {
	t    testing.TB
	rand *rand.Rand
	in   plan.Input

	pending []plan.Action
	ids     int
	runs    map[string]int // instances of a container that ever ran
	gone    bool
	trace   []string
}

var modelStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newModel(t testing.TB, r *rand.Rand, p *v1.Pod) *model {
	return &model{
		t: t, rand: r, runs: make(map[string]int),
		in: plan.Input{
			Pod: p, Now: modelStart, Runtime: &pod.RuntimePod{UID: string(p.UID)}, Images: map[string]plan.Image{}, Failures: map[string]plan.Failure{},
			EndFailures: map[string]plan.Failure{}, Killed: map[string]bool{}, Volumes: plan.Volumes{Ready: true},
			Busy: plan.Busy{Containers: map[string]bool{}, Images: map[string]bool{}, Kills: map[string]time.Time{}, Removals: map[string]bool{}},
		},
	}
}

func (m *model) logf(format string, args ...any) {
	m.trace = append(m.trace, m.in.Now.Sub(modelStart).String()+" "+fmt.Sprintf(format, args...))
}

func (m *model) fail(format string, args ...any) {
	m.t.Helper()
	for _, line := range m.trace[max(0, len(m.trace)-40):] {
		m.t.Log(line)
	}
	m.t.Fatalf(format, args...)
}

// step decides once and takes the actions on.
func (m *model) step() plan.Plan {
	m.t.Helper()
	before := m.in.Phase
	p := plan.Next(m.in)
	if p.Phase < before {
		m.fail("the phase went from %s back to %s", before, p.Phase)
	}
	for _, a := range p.Actions {
		m.begin(p, a)
	}
	m.in.Phase, m.in.Stop = p.Phase, p.Stop
	m.publish(p)
	m.check(p)
	return p
}

// begin marks what the action is about as busy.
func (m *model) begin(p plan.Plan, a plan.Action) {
	m.t.Helper()
	m.logf("begin %s", a)
	busy := &m.in.Busy
	switch a.Kind {
	case plan.CreateSandbox:
		if busy.Sandbox || p.Phase != plan.Syncing {
			m.fail("%s while busy or in phase %s", a, p.Phase)
		}
		busy.Sandbox = true
	case plan.EnsureImage:
		if busy.Images[a.ImageKey()] || p.Phase != plan.Syncing {
			m.fail("%s while busy or in phase %s", a, p.Phase)
		}
		ref, _, _ := plan.ImageOf(m.in.Pod, a.ImageKey())
		for key := range busy.Images {
			if other, _, _ := plan.ImageOf(m.in.Pod, key); other == ref {
				m.fail("%s while the same image is being pulled", a)
			}
		}
		busy.Images[a.ImageKey()] = true
	case plan.StartContainer:
		m.checkStart(p, a)
		busy.Containers[a.Container] = true
	case plan.KillContainer:
		busy.Kills[a.ID] = m.in.Now.Add(a.Grace)
		if a.Restart {
			m.in.Killed[a.ID] = true
		}
	case plan.StopSandbox, plan.RemoveSandbox, plan.RemoveContainer:
		if busy.Removals[a.ID] {
			m.fail("%s is under way already", a)
		}
		busy.Removals[a.ID] = true
	case plan.Cleanup, plan.RemoveRecord:
		if len(m.in.Runtime.Sandboxes) > 0 || m.in.Pod.DeletionTimestamp == nil {
			m.fail("%s too early", a)
		}
		busy.Cleanup = true
	}
	m.pending = append(m.pending, a)
}

// checkStart says what must hold when a container is started.
func (m *model) checkStart(p plan.Plan, a plan.Action) {
	m.t.Helper()
	if p.Phase != plan.Syncing || m.in.Busy.Containers[a.Container] {
		m.fail("%s while busy or in phase %s", a, p.Phase)
	}
	if a.ID == "" && int(a.Attempt) > m.runs[a.Container] {
		m.fail("%s, but it only ran %d times", a, m.runs[a.Container])
	}
	m.checkImages(a)
	sandbox := m.in.Runtime.Sandbox(a.SandboxID)
	if sandbox == nil || !sandbox.Ready {
		m.fail("%s in a sandbox that is not ready", a)
	}
	for i := range m.in.Runtime.Containers {
		if c := &m.in.Runtime.Containers[i]; c.Name == a.Container && (c.State == pod.ContainerRunning || c.State == pod.ContainerUnknown) {
			m.fail("%s while %s runs", a, c.ID)
		}
	}
	for _, spec := range m.in.Pod.Spec.Containers {
		if spec.Name == a.Container && !m.begun(a.SandboxID) {
			m.checkInit(a, len(m.in.Pod.Spec.InitContainers))
		}
	}
	for i, spec := range m.in.Pod.Spec.InitContainers {
		if spec.Name == a.Container && !m.begun(a.SandboxID) {
			m.checkInit(a, i)
		}
	}
}

// checkImages wants a container's image, and those that it mounts, to be there before it starts.
func (m *model) checkImages(a plan.Action) {
	m.t.Helper()
	keys := []string{a.Container}
	for _, spec := range m.in.Pod.Spec.Containers {
		if spec.Name == a.Container && len(spec.VolumeMounts) > 0 {
			keys = append(keys, plan.VolumeImage("data"))
		}
	}
	for _, key := range keys {
		if ref, _, _ := plan.ImageOf(m.in.Pod, key); !m.in.Images[key].Ready || m.in.Images[key].Ref != ref {
			m.fail("%s before image %q of %s is there", a, ref, key)
		}
	}
}

// begun says whether a regular container was made in the sandbox.
func (m *model) begun(sandbox string) bool {
	for _, spec := range m.in.Pod.Spec.Containers {
		if c := m.in.Runtime.Newest(spec.Name); c != nil && c.SandboxID == sandbox {
			return true
		}
	}
	return false
}

// checkInit says that the first n init containers must be over, or run if they are sidecars, in the sandbox in which something is started.
func (m *model) checkInit(a plan.Action, n int) {
	m.t.Helper()
	for i := range m.in.Pod.Spec.InitContainers[:n] {
		spec := &m.in.Pod.Spec.InitContainers[i]
		c := m.in.Runtime.Newest(spec.Name)
		ok := c != nil && c.SandboxID == a.SandboxID
		if plan.IsSidecar(spec) {
			ok = ok && c.State == pod.ContainerRunning
		} else {
			ok = ok && c.State == pod.ContainerExited && c.ExitCode == 0
		}
		if !ok {
			m.fail("%s before %s: %+v", a, spec.Name, c)
		}
	}
}

// check says what must always hold.
func (m *model) check(plan.Plan) {
	m.t.Helper()
	running := map[string]int{}
	for i := range m.in.Runtime.Containers {
		if c := &m.in.Runtime.Containers[i]; c.State == pod.ContainerRunning {
			if running[c.Name]++; running[c.Name] > 1 {
				m.fail("two instances of %s run", c.Name)
			}
		}
	}
}

// publish makes the status, as the worker does, and checks it against the one before.
func (m *model) publish(p plan.Plan) {
	m.t.Helper()
	s := status.Make(status.Input{Input: m.in, Plan: p, RuntimeName: "test", FirstSeen: modelStart})
	if err := checkStatus(m.in.Previous, &s); err != nil {
		m.fail("%v", err)
	}
	m.in.Previous = &s
}

// checkStatus says what must hold between two statuses of a pod.
func checkStatus(before, after *v1.PodStatus) error {
	if before == nil {
		return nil
	}
	if (before.Phase == v1.PodSucceeded || before.Phase == v1.PodFailed) && after.Phase != before.Phase {
		return fmt.Errorf("the phase went from %s to %s", before.Phase, after.Phase)
	}
	for i := range after.ContainerStatuses {
		if i < len(before.ContainerStatuses) && after.ContainerStatuses[i].RestartCount < before.ContainerStatuses[i].RestartCount {
			return fmt.Errorf("the restart count of %s went from %d to %d", after.ContainerStatuses[i].Name, before.ContainerStatuses[i].RestartCount, after.ContainerStatuses[i].RestartCount)
		}
	}
	for _, c := range after.Conditions {
		for _, old := range before.Conditions {
			if c.Type == old.Type && c.Status == old.Status && !c.LastTransitionTime.Equal(&old.LastTransitionTime) {
				return fmt.Errorf("the transition time of %s changed without its status", c.Type)
			}
		}
	}
	return nil
}

// complete ends one pending action, well or badly.
func (m *model) complete(i int, ok bool) {
	m.t.Helper()
	a := m.pending[i]
	m.pending = append(m.pending[:i:i], m.pending[i+1:]...)
	m.logf("complete %s ok=%v", a, ok)
	busy := &m.in.Busy
	switch a.Kind {
	case plan.CreateSandbox:
		busy.Sandbox = false
		m.createSandbox(a, ok)
	case plan.EnsureImage:
		delete(busy.Images, a.ImageKey())
		m.in.Images[a.ImageKey()] = m.image(a.ImageKey(), ok)
	case plan.StartContainer:
		delete(busy.Containers, a.Container)
		delete(m.in.Images, a.Container)
		m.startContainer(a, ok)
	case plan.KillContainer:
		delete(busy.Kills, a.ID)
		m.end(a.ID, 137)
	case plan.StopSandbox:
		delete(busy.Removals, a.ID)
		m.in.Runtime.Sandbox(a.ID).Ready = false
		for _, c := range m.in.Runtime.Running() {
			if c.SandboxID == a.ID {
				m.end(c.ID, 137)
			}
		}
	case plan.RemoveSandbox, plan.RemoveContainer:
		delete(busy.Removals, a.ID)
		m.remove(a.ID)
	case plan.Cleanup:
		busy.Cleanup, m.in.Cleaned = false, true
	case plan.RemoveRecord:
		busy.Cleanup, m.gone = false, true
	}
}

func (m *model) image(key string, ok bool) plan.Image {
	ref, _, _ := plan.ImageOf(m.in.Pod, key)
	if ok {
		return plan.Image{Ref: ref, Ready: true}
	}
	img := plan.Image{Ref: ref}
	for _, other := range m.in.Images {
		if other.Ref == ref && other.Failures > img.Failures {
			img = other
		}
	}
	img.Failures++
	img.Reason, img.FailedAt, img.NotBefore = plan.ReasonErrImagePull, m.in.Now, m.in.Now.Add(plan.ImageDelay(img.Failures))
	return img
}

func (m *model) createSandbox(a plan.Action, ok bool) {
	m.ids++
	id := "s" + strconv.Itoa(m.ids)
	if !ok {
		m.in.SandboxFailure.Count++
		m.in.SandboxFailure.NotBefore = m.in.Now.Add(plan.CreateDelay(m.in.SandboxFailure.Count))
		return
	}
	m.in.SandboxFailure = plan.Failure{}
	for i := range m.in.Runtime.Sandboxes {
		if m.in.Runtime.Sandboxes[i].Attempt == a.Attempt {
			m.fail("%s: the attempt is taken", a)
		}
	}
	m.in.Runtime.Sandboxes = append(m.in.Runtime.Sandboxes, pod.Sandbox{ID: id, Attempt: a.Attempt, Ready: true, CreatedAt: m.in.Now, IPs: []string{"10.0.0.1"}})
	m.in.Runtime.Sort()
}

func (m *model) startContainer(a plan.Action, ok bool) {
	if s := m.in.Runtime.Sandbox(a.SandboxID); s == nil || !s.Ready {
		ok = false
	}
	if !ok {
		f := m.in.Failures[a.Container]
		f.Count++
		f.NotBefore = m.in.Now.Add(plan.CreateDelay(f.Count))
		m.in.Failures[a.Container] = f
		return
	}
	delete(m.in.Failures, a.Container)
	m.runs[a.Container]++
	if a.ID != "" {
		c := m.in.Runtime.Container(a.ID)
		c.State, c.StartedAt = pod.ContainerRunning, m.in.Now
		return
	}
	for i := range m.in.Runtime.Containers {
		if c := &m.in.Runtime.Containers[i]; c.Name == a.Container && c.Attempt == a.Attempt {
			m.fail("%s: the attempt is taken by %s", a, c.ID)
		}
	}
	m.ids++
	m.in.Runtime.Containers = append(m.in.Runtime.Containers, pod.Container{
		ID: "c" + strconv.Itoa(m.ids), Name: a.Container, SandboxID: a.SandboxID, Attempt: a.Attempt, State: pod.ContainerRunning,
		CreatedAt: m.in.Now, StartedAt: m.in.Now, Annotations: map[string]string{plan.AnnotationRestartDelay: a.Delay.String()},
	})
	m.in.Runtime.Sort()
}

// interrupt leaves what a start leaves that nobody waits for any more.
func (m *model) interrupt(a plan.Action) {
	m.ids++
	m.in.Runtime.Containers = append(m.in.Runtime.Containers, pod.Container{
		ID: "c" + strconv.Itoa(m.ids), Name: a.Container, SandboxID: a.SandboxID, Attempt: a.Attempt, State: pod.ContainerExited, ExitCode: 128,
		CreatedAt: m.in.Now, FinishedAt: m.in.Now,
	})
	m.in.Runtime.Sort()
	m.logf("the start of %s was interrupted", a.Container)
}

func (m *model) end(id string, code int32) {
	c := m.in.Runtime.Container(id)
	if c == nil || c.State == pod.ContainerExited {
		return
	}
	c.State, c.ExitCode, c.FinishedAt = pod.ContainerExited, code, m.in.Now
	m.logf("%s (%s) ended with %d", c.Name, id, code)
}

func (m *model) remove(id string) {
	rp := &pod.RuntimePod{UID: m.in.Runtime.UID}
	for _, s := range m.in.Runtime.Sandboxes {
		if s.ID != id {
			rp.Sandboxes = append(rp.Sandboxes, s)
		}
	}
	for _, c := range m.in.Runtime.Containers {
		if c.ID != id && c.SandboxID != id {
			rp.Containers = append(rp.Containers, c)
		}
	}
	m.in.Runtime = rp
}

// disturb lets something happen in the world.
func (m *model) disturb() {
	running := m.in.Runtime.Running()
	switch m.rand.IntN(12) {
	case 0, 1, 2:
		if len(running) > 0 {
			m.end(running[m.rand.IntN(len(running))].ID, int32(m.rand.IntN(2)))
		}
	case 3:
		if s := m.in.Runtime.ReadySandbox(); s != nil {
			m.logf("sandbox %s dies", s.ID)
			s.Ready = false
			for _, c := range running {
				if c.SandboxID == s.ID && m.rand.IntN(2) == 0 {
					m.end(c.ID, 137)
				}
			}
		}
	case 6:
		if len(running) > 0 {
			c := running[m.rand.IntN(len(running))]
			m.logf("%s (%s) gets lost", c.Name, c.ID)
			c.State = pod.ContainerUnknown
		}
	case 7:
		// Somebody starts a sandbox again that was given up, with what is in it: nobody may, but a runtime that comes back can look like that.
		if n := len(m.in.Runtime.Sandboxes); n > 1 {
			m.logf("sandbox %s is ready again", m.in.Runtime.Sandboxes[n-1].ID)
			m.in.Runtime.Sandboxes[n-1].Ready = true
		}
	case 4:
		for i := range m.in.Pod.Spec.Containers {
			if c := m.in.Runtime.Newest(m.in.Pod.Spec.Containers[i].Name); c != nil && c.State == pod.ContainerRunning {
				m.in.Probes = map[plan.ProbeKey]plan.Verdict{{Container: c.Name, Kind: plan.Liveness}: {ContainerID: c.ID, Failure: true}}
				m.logf("%s fails its liveness probe", c.Name)
				return
			}
		}
	case 5:
		// The process is replaced: what it only had in memory is lost, what was under way is abandoned or happens all the same.
		for len(m.pending) > 0 {
			a, ok := m.pending[0], m.rand.IntN(2) == 0
			m.complete(0, ok)
			if a.Kind == plan.StartContainer && a.ID == "" && !ok && m.rand.IntN(2) == 0 {
				m.interrupt(a)
			}
		}
		m.in.Images, m.in.Failures, m.in.EndFailures = map[string]plan.Image{}, map[string]plan.Failure{}, map[string]plan.Failure{}
		m.in.SandboxFailure, m.in.Killed = plan.Failure{}, map[string]bool{}
		m.logf("the process is replaced")
	default:
		m.in.Now = m.in.Now.Add(time.Duration(m.rand.IntN(20)) * time.Second)
	}
}
