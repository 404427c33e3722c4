package plan_test

import (
	"math/rand/v2"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// randomPod is a pod of any shape that is admitted.
func randomPod(r *rand.Rand) *v1.Pod {
	grace := int64(pick(r, 0, 1, 5, 30, 30, 120))
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", Generation: 1}, Spec: v1.PodSpec{TerminationGracePeriodSeconds: &grace}}
	p.Spec.RestartPolicy = pick(r, v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever)
	p.Spec.HostNetwork = r.IntN(8) == 0
	if r.IntN(10) == 0 {
		seconds := int64(1 + r.IntN(300))
		p.Spec.ActiveDeadlineSeconds = &seconds
	}
	for i := range r.IntN(4) {
		p.Spec.InitContainers = append(p.Spec.InitContainers, randomContainer(r, "init"+strconv.Itoa(i), p.Spec.RestartPolicy, true))
	}
	for i := range 1 + r.IntN(3) {
		p.Spec.Containers = append(p.Spec.Containers, randomContainer(r, "app"+strconv.Itoa(i), p.Spec.RestartPolicy, false))
	}
	switch r.IntN(6) {
	case 0:
		p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "y"}}}}
	case 1:
		p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	}
	for i := range p.Spec.Containers {
		if len(p.Spec.Volumes) > 0 && r.IntN(2) == 0 {
			p.Spec.Containers[i].VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
		}
	}
	if r.IntN(8) == 0 {
		p.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "example.com/gate"}}
	}
	return p
}

func randomContainer(r *rand.Rand, name string, policy v1.RestartPolicy, init bool) v1.Container {
	c := v1.Container{Name: name, Image: pick(r, "x", "x", "z")}
	own := func(p v1.ContainerRestartPolicy) { c.RestartPolicy = &p }
	switch {
	case init && r.IntN(3) == 0:
		own(v1.ContainerRestartPolicyAlways)
	case r.IntN(8) == 0:
		own(pick(r, v1.ContainerRestartPolicyNever, v1.ContainerRestartPolicyOnFailure))
	case !init && r.IntN(16) == 0:
		own(v1.ContainerRestartPolicyAlways)
	}
	if c.RestartPolicy != nil && r.IntN(2) == 0 {
		action := pick(r, v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestartAllContainers)
		c.RestartPolicyRules = []v1.ContainerRestartRule{{Action: action, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{
			Operator: pick(r, v1.ContainerRestartRuleOnExitCodesOpIn, v1.ContainerRestartRuleOnExitCodesOpNotIn), Values: []int32{1, 42},
		}}}
		if init && action == v1.ContainerRestartRuleActionRestartAllContainers {
			c.RestartPolicyRules[0].ExitCodes.Operator = v1.ContainerRestartRuleOnExitCodesOpIn // else it would begin anew for ever by going well
		}
	}
	if init && (c.RestartPolicy == nil || *c.RestartPolicy != v1.ContainerRestartPolicyAlways) {
		return c // no probes, no hooks
	}
	if r.IntN(3) == 0 {
		c.LivenessProbe = randomProbe(r)
	}
	if r.IntN(4) == 0 {
		c.StartupProbe = randomProbe(r)
	}
	if r.IntN(3) == 0 {
		c.ReadinessProbe = &v1.Probe{}
	}
	if r.IntN(5) == 0 {
		c.Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Sleep: &v1.SleepAction{}}}
	}
	if r.IntN(6) == 0 {
		c.Resources = randomResources(r)
		c.ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: v1.ResourceCPU, RestartPolicy: v1.NotRequired}}
		if policy != v1.RestartPolicyNever && c.RestartPolicy == nil && r.IntN(2) == 0 {
			c.ResizePolicy[0].RestartPolicy = v1.RestartContainer // the others may not ask for it
		}
	}
	return c
}

func randomProbe(r *rand.Rand) *v1.Probe {
	p := &v1.Probe{}
	if r.IntN(4) == 0 {
		seconds := int64(1 + r.IntN(60))
		p.TerminationGracePeriodSeconds = &seconds
	}
	return p
}

var amounts = []resource.Quantity{resource.MustParse("100m"), resource.MustParse("200m"), resource.MustParse("1")}

func randomResources(r *rand.Rand) v1.ResourceRequirements {
	return v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: amounts[r.IntN(len(amounts))]}}
}

// disturb lets something happen in the world.
func (m *model) disturb() {
	r := m.rand
	m.in.Now = m.in.Now.Add(time.Duration(1+r.IntN(40)) * time.Millisecond)
	switch r.IntN(32) {
	case 0, 1, 2, 3, 4:
		m.exit()
	case 5:
		m.breakSandbox()
	case 6:
		m.forgetful()
	case 7, 8, 9:
		m.probe()
	case 10:
		m.replace()
	case 11:
		m.down = !m.down
		m.logf("the runtime is away: %t", m.down)
	case 12:
		m.change()
	case 13:
		m.remove()
	case 14:
		if len(m.ghosts) > 0 {
			m.haunt(r.IntN(len(m.ghosts)))
		}
	case 15:
		if m.in.Previous != nil {
			m.store()
		}
	case 16:
		m.in.Volumes.Ready = m.in.Volumes.Ready || r.IntN(2) == 0
		m.in.Volumes.Gone = m.in.Phase == plan.Terminated && r.IntN(2) == 0
	case 17:
		m.in.Now = m.in.Now.Add(time.Duration(r.IntN(12)) * time.Minute)
	case 18, 19, 20, 21:
		m.in.Now = m.in.Now.Add(time.Duration(r.IntN(20)) * time.Second)
	default:
		m.inspect()
	}
}

// exit ends a container that runs; mostly the worker hears of it.
func (m *model) exit() {
	running := m.world.Running()
	if len(running) == 0 {
		return
	}
	c := running[m.rand.IntN(len(running))]
	id, code := c.ID, pick(m.rand, int32(0), 0, 1, 2, 42)
	m.world.end(id, code, m.rand.IntN(10) == 0, m.in.Now)
	m.logf("%s (%s) ended with %d", c.Name, id, code)
	m.hear(id)
}

// hear tells the worker of something, mostly. It hears nothing of what it does not know at all.
func (m *model) hear(id string) {
	if m.rand.IntN(4) > 0 && !m.down && (m.in.Runtime.Container(id) != nil || m.in.Runtime.Sandbox(id) != nil) {
		m.saw(id)
	}
}

func (m *model) breakSandbox() {
	if len(m.world.Sandboxes) == 0 {
		return
	}
	s := &m.world.Sandboxes[m.rand.IntN(len(m.world.Sandboxes))]
	if !s.Ready {
		if m.rand.IntN(4) == 0 {
			m.logf("sandbox %s is ready again", s.ID) // nobody may, but a runtime that comes back can look like that
			s.Ready = true
			m.hear(s.ID)
		}
		return
	}
	m.logf("sandbox %s dies", s.ID)
	s.Ready = false
	for _, c := range m.world.Running() {
		if c.SandboxID == s.ID && m.rand.IntN(2) == 0 {
			m.world.end(c.ID, 137, false, m.in.Now)
		}
	}
	m.hear(s.ID)
}

// forgetful is a runtime that loses track of something, or all record of it.
func (m *model) forgetful() {
	w := m.world
	if len(w.Containers) == 0 {
		return
	}
	c := &w.Containers[m.rand.IntN(len(w.Containers))]
	switch {
	case m.rand.IntN(3) > 0:
		if c.State == pod.ContainerRunning {
			m.logf("%s (%s) gets lost", c.Name, c.ID)
			c.State = pod.ContainerUnknown
			m.hear(c.ID)
		}
	case m.rand.IntN(4) == 0:
		m.logf("sandbox %s is forgotten", c.SandboxID)
		m.ghosts = nil // and what was under way for others
		w.lose(c.SandboxID, m.in.Now)
	default:
		m.logf("%s (%s) is forgotten", c.Name, c.ID)
		m.ghosts = nil
		w.lose(c.ID, m.in.Now)
	}
}

// probe is a verdict on something that the worker knows to run.
func (m *model) probe() {
	running := m.in.Runtime.Running()
	if len(running) == 0 {
		return
	}
	c := running[m.rand.IntN(len(running))]
	spec := pod.FindContainer(m.in.Pod, c.Name)
	for kind, probe := range []*v1.Probe{spec.StartupProbe, spec.LivenessProbe, spec.ReadinessProbe} {
		if probe != nil && m.rand.IntN(2) == 0 {
			m.verdict(c, plan.ProbeKind(kind), m.rand.IntN(3) > 0)
		}
	}
}

func (m *model) verdict(c *pod.Container, kind plan.ProbeKind, ok bool) {
	key := plan.ProbeKey{Container: c.Name, Kind: kind}
	if v := m.in.Probes[key]; kind == plan.Startup && v.ContainerID == c.ID && (v.Success || v.Failure) {
		return // it is given once
	}
	m.in.Probes[key] = plan.Verdict{ContainerID: c.ID, Success: ok, Failure: !ok, At: m.in.Now, InARow: 3}
	m.logf("probe %d of %s (%s): %t", kind, c.Name, c.ID, ok)
	if kind == plan.Startup && ok {
		m.world.lives[c.ID].startedUp = true
	}
}

// change changes the pod's definition: an image, resources, one more ephemeral container, a gate.
func (m *model) change() {
	p := m.in.Pod.DeepCopy()
	p.Generation++
	switch m.rand.IntN(4) {
	case 0:
		c := &p.Spec.Containers[m.rand.IntN(len(p.Spec.Containers))]
		c.Image = pick(m.rand, "x", "z", "new")
		m.renewed[c.Name] = m.in.Now
		m.logf("%s has image %s", c.Name, c.Image)
	case 1:
		c := &p.Spec.Containers[m.rand.IntN(len(p.Spec.Containers))]
		if len(c.ResizePolicy) == 0 || m.in.Phase != plan.Syncing {
			return
		}
		c.Resources = randomResources(m.rand)
		m.in.Resize = plan.ResizeState{Due: true}
		m.logf("%s is resized", c.Name)
	case 2:
		if len(p.Spec.EphemeralContainers) > 1 {
			return
		}
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon{
			Name: "debug" + strconv.Itoa(len(p.Spec.EphemeralContainers)), Image: "x",
		}})
	case 3:
		p.Status.Conditions = []v1.PodCondition{{Type: "example.com/gate", Status: pick(m.rand, v1.ConditionTrue, v1.ConditionFalse)}}
	}
	m.in.Pod = p
}

// remove deletes the pod, or deletes it again with less grace, or has it evicted.
func (m *model) remove() {
	switch {
	case m.rand.IntN(3) == 0:
	case m.rand.IntN(2) == 0 && m.in.Eviction == nil:
		m.in.Eviction = &plan.Eviction{Reason: plan.ReasonEvicted, Message: "the test says so", Grace: time.Duration(m.rand.IntN(3)*m.rand.IntN(20)) * time.Second, OrderedAt: m.in.Now}

		m.logf("evicted within %s", m.in.Eviction.Grace)
	default:
		m.deleteWithin(int64(m.rand.IntN(3) * m.rand.IntN(40)))
	}
}

// deleteWithin is what a deletion does to the record: a later one can only shorten the grace.
func (m *model) deleteWithin(seconds int64) {
	p := m.in.Pod.DeepCopy()
	end := metav1.NewTime(m.in.Now.Add(time.Duration(seconds) * time.Second))
	if d := p.DeletionTimestamp; d != nil && d.Before(&end) {
		return
	}
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &end, &seconds
	m.in.Pod = p
	m.logf("deleted within %d s", seconds)
}
