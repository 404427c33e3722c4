package plan_test

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

func modelPod(r *rand.Rand) *v1.Pod {
	grace := int64(30)
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}, Spec: v1.PodSpec{TerminationGracePeriodSeconds: &grace}}
	p.Spec.RestartPolicy = []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}[r.IntN(3)]
	always := v1.ContainerRestartPolicyAlways
	for i := range r.IntN(3) {
		c := v1.Container{Name: "init" + strconv.Itoa(i), Image: "x"}
		if r.IntN(2) == 0 {
			c.RestartPolicy = &always
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	for i := range 1 + r.IntN(3) {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "app" + strconv.Itoa(i), Image: "x", LivenessProbe: &v1.Probe{}})
	}
	if r.IntN(3) == 0 {
		p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "y"}}}}
		for i := range p.Spec.Containers {
			if r.IntN(2) == 0 {
				p.Spec.Containers[i].VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
			}
		}
	}
	return p
}

// settle completes everything well, init containers included, until nothing is to be done any more.
func (m *model) settle() plan.Plan {
	m.t.Helper()
	for range 300 {
		p := m.step()
		if m.gone {
			return p
		}
		for len(m.pending) > 0 {
			m.complete(0, true)
			if m.gone {
				return p
			}
		}
		for i := range m.in.Pod.Spec.InitContainers {
			spec := &m.in.Pod.Spec.InitContainers[i]
			if c := m.in.Runtime.Newest(spec.Name); c != nil && c.State == pod.ContainerRunning && !plan.IsSidecar(spec) {
				m.end(c.ID, 0)
			}
		}
		if p = plan.Next(m.in); len(p.Actions) == 0 {
			if p.Again.IsZero() {
				m.in.Phase, m.in.Stop = p.Phase, p.Stop
				m.publish(p)
				return p
			}
			m.in.Now = p.Again
		}
	}
	m.fail("does not come to rest")
	return plan.Plan{}
}

// TestModelConverges throws everything at pods of all shapes and then leaves them alone: they must come to rest where they belong, and go when they are told to.
func TestModelConverges(t *testing.T) {
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := newModel(t, r, modelPod(r))
		for range 60 {
			m.step()
			for len(m.pending) > 0 && r.IntN(3) > 0 {
				m.complete(r.IntN(len(m.pending)), r.IntN(4) > 0)
			}
			m.disturb()
		}
		m.in.Probes = nil
		p := m.settle()
		switch {
		case p.Phase == plan.Syncing:
			for _, c := range m.in.Pod.Spec.Containers {
				newest := m.in.Runtime.Newest(c.Name)
				done := m.in.Pod.Spec.RestartPolicy != v1.RestartPolicyAlways && newest != nil && newest.State == pod.ContainerExited
				if !done && (newest == nil || newest.State != pod.ContainerRunning) {
					m.fail("seed %d: at rest, but %s does not run: %+v %+v", seed, c.Name, newest, p)
				}
			}
		case m.in.Pod.Spec.RestartPolicy == v1.RestartPolicyAlways:
			m.fail("seed %d: a pod that restarts always ended", seed)
		case len(m.in.Runtime.Running()) > 0 || m.in.Runtime.ReadySandbox() != nil:
			m.fail("seed %d: something runs in a pod that ended", seed)
		}
		grace := int64(30)
		deleted := metav1.NewTime(m.in.Now.Add(30 * time.Second))
		m.in.Pod.DeletionTimestamp, m.in.Pod.DeletionGracePeriodSeconds = &deleted, &grace
		if m.settle(); !m.gone {
			m.fail("seed %d: the pod does not go", seed)
		}
	}
}

// FuzzNext drives the model by the fuzzer's bytes.
func FuzzNext(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed, []byte("0123456789abcdef"))
	}
	f.Fuzz(func(t *testing.T, seed uint64, script []byte) {
		r := rand.New(rand.NewPCG(seed, 2))
		m := newModel(t, r, modelPod(r))
		for _, b := range script[:min(len(script), 200)] {
			m.step()
			switch {
			case b < 160 && len(m.pending) > 0:
				m.complete(int(b)%len(m.pending), b%5 != 0)
			case b == 255:
				grace := int64(b % 40)
				deleted := metav1.NewTime(m.in.Now.Add(time.Duration(grace) * time.Second))
				m.in.Pod.DeletionTimestamp, m.in.Pod.DeletionGracePeriodSeconds = &deleted, &grace
			case b > 250:
				m.in.Eviction = &plan.Eviction{Reason: plan.ReasonEvicted, Grace: time.Duration(b) * time.Second}
			default:
				m.disturb()
			}
			if m.gone {
				return
			}
		}
	})
}
