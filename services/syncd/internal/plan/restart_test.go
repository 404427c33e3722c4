package plan_test

import (
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// TestContainerRestartPolicy checks which of a pod's policy, a container's policy and its rules decides after an end.
func TestContainerRestartPolicy(t *testing.T) {
	rule := func(op v1.ContainerRestartRuleOnExitCodesOperator, codes ...int32) v1.ContainerRestartRule {
		return v1.ContainerRestartRule{Action: v1.ContainerRestartRuleActionRestart, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: op, Values: codes}}
	}
	own := func(p v1.ContainerRestartPolicy) *v1.ContainerRestartPolicy { return &p }
	for _, c := range []struct {
		name   string
		pods   v1.RestartPolicy
		own    *v1.ContainerRestartPolicy
		rules  []v1.ContainerRestartRule
		code   int32
		killed bool
		want   bool
	}{
		{name: "the pod's Never", pods: v1.RestartPolicyNever, code: 1},
		{name: "the pod's Always", pods: v1.RestartPolicyAlways, want: true},
		{name: "own Always over Never", pods: v1.RestartPolicyNever, own: own(v1.ContainerRestartPolicyAlways), want: true},
		{name: "own Never over Always", pods: v1.RestartPolicyAlways, own: own(v1.ContainerRestartPolicyNever), code: 1},
		{name: "own OnFailure after success", pods: v1.RestartPolicyAlways, own: own(v1.ContainerRestartPolicyOnFailure)},
		{name: "own OnFailure after failure", pods: v1.RestartPolicyNever, own: own(v1.ContainerRestartPolicyOnFailure), code: 1, want: true},
		{name: "a rule that fits", own: own(v1.ContainerRestartPolicyNever), rules: []v1.ContainerRestartRule{rule("In", 1, 2)}, code: 2, want: true},
		{name: "a rule that does not fit", own: own(v1.ContainerRestartPolicyNever), rules: []v1.ContainerRestartRule{rule("In", 1, 2)}, code: 3},
		{name: "not in", own: own(v1.ContainerRestartPolicyNever), rules: []v1.ContainerRestartRule{rule("NotIn", 1, 2)}, code: 3, want: true},
		{name: "not in, but it is", own: own(v1.ContainerRestartPolicyNever), rules: []v1.ContainerRestartRule{rule("NotIn", 3)}, code: 3},
		{name: "no rule after a kill", own: own(v1.ContainerRestartPolicyNever), rules: []v1.ContainerRestartRule{rule("In", 137)}, code: 137, killed: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := restartInput(c.pods, v1.Container{Name: "app", Image: "i", RestartPolicy: c.own, RestartPolicyRules: c.rules})
			in.Runtime.Containers = []pod.Container{ended("app", "1", c.code, in.Now.Add(-time.Minute))}
			if c.killed {
				in.Killed = map[string]bool{"1": true}
			}
			p := plan.Next(in)
			starts := slices.ContainsFunc(p.Actions, func(a plan.Action) bool { return a.Kind == plan.EnsureImage || a.Kind == plan.StartContainer })
			if starts != c.want || (p.Phase == plan.Syncing) != c.want {
				t.Errorf("phase %s, actions %v; want a start: %t", p.Phase, p.Actions, c.want)
			}
		})
	}
}

// TestRestartAllContainers follows a pod from the end that asks for it until everything has a successor.
func TestRestartAllContainers(t *testing.T) {
	never := v1.ContainerRestartPolicyNever
	in := restartInput(v1.RestartPolicyNever, v1.Container{Name: "source", Image: "i", RestartPolicy: &never, RestartPolicyRules: []v1.ContainerRestartRule{{
		Action: v1.ContainerRestartRuleActionRestartAllContainers, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: "In", Values: []int32{88}},
	}}}, v1.Container{Name: "other", Image: "i"})
	in.Pod.Spec.InitContainers = []v1.Container{{Name: "init", Image: "i"}}
	at := in.Now.Add(-10 * time.Second)
	other := pod.Container{Name: "other", ID: "o0", SandboxID: "s", State: pod.ContainerRunning, CreatedAt: at.Add(-time.Minute), StartedAt: at.Add(-time.Minute)}
	in.Runtime.Containers = []pod.Container{ended("source", "s0", 88, at), other, ended("init", "i0", 0, at.Add(-2*time.Minute))}

	p := plan.Next(in)
	if !plans(p, plan.KillContainer, "other") || !plans(p, plan.EnsureImage, "init") || plans(p, plan.EnsureImage, "source") || !in.RestartingAll() {
		t.Fatalf("after the end: %v", p.Actions)
	}
	in.Runtime.Containers[1] = ended("other", "o0", 137, at.Add(time.Second))
	in.Runtime.Containers[1].CreatedAt = other.CreatedAt
	in.Images = map[string]plan.Image{"init": {Ref: "i", Ready: true}, "source": {Ref: "i", Ready: true}, "other": {Ref: "i", Ready: true}}
	if p = plan.Next(in); p.Phase != plan.Syncing || !plans(p, plan.StartContainer, "init") || plans(p, plan.StartContainer, "source") {
		t.Fatalf("with all ended: %s %v", p.Phase, p.Actions)
	}
	in.Runtime.Containers = append(in.Runtime.Containers, ended("init", "i1", 0, at.Add(3*time.Second)))
	in.Runtime.Containers[3].Attempt = 1
	in.Runtime.Containers[3].CreatedAt = at.Add(2 * time.Second)
	in.Runtime.Sort()
	p = plan.Next(in)
	if !plans(p, plan.StartContainer, "source") || !plans(p, plan.StartContainer, "other") {
		t.Fatalf("with init done: %v", p.Actions)
	}
	for _, a := range p.Actions {
		if a.Kind == plan.StartContainer && a.Attempt != 1 {
			t.Errorf("%v: want attempt 1", a)
		}
	}
	for _, name := range []string{"source", "other"} {
		in.Runtime.Containers = append(in.Runtime.Containers, pod.Container{
			Name: name, ID: name + "1", SandboxID: "s", Attempt: 1, State: pod.ContainerRunning, CreatedAt: at.Add(4 * time.Second), StartedAt: at.Add(4 * time.Second),
		})
	}
	in.Runtime.Sort()
	if p = plan.Next(in); in.RestartingAll() || plans(p, plan.KillContainer, "other") || plans(p, plan.KillContainer, "source") || plans(p, plan.StartContainer, "init") {
		t.Errorf("when all run again: %v", p.Actions)
	}
}

// TestRestartAllContainersEndsWhatIsLost ends containers of the time before that the runtime lost track of: their successors wait for that.
func TestRestartAllContainersEndsWhatIsLost(t *testing.T) {
	in := restartsAll("source")
	at := in.Now.Add(-10 * time.Second)
	in.Pod.Spec.Containers = append(in.Pod.Spec.Containers, v1.Container{Name: "other", Image: "i"})
	in.Runtime.Containers = []pod.Container{
		ended("source", "s0", 88, at), {Name: "other", ID: "o0", SandboxID: "s", State: pod.ContainerUnknown, CreatedAt: at.Add(-time.Minute)},
	}
	if p := plan.Next(in); !plans(p, plan.KillContainer, "other") {
		t.Errorf("a container in an unknown state is left: %v", p.Actions)
	}
}

// TestRestartAllContainersBacksOff keeps a series of delays for each container that makes all restart, however many there are.
func TestRestartAllContainersBacksOff(t *testing.T) {
	in := restartsAll("a", "b")
	at := in.Now.Add(-time.Minute)
	first, second := ended("a", "a0", 88, at), ended("b", "b0", 88, at.Add(time.Second))
	first.Annotations = map[string]string{plan.AnnotationRestartDelay: "20s"}
	in.Runtime.Containers = []pod.Container{first, second}
	in.Images = map[string]plan.Image{"a": {Ref: "i", Ready: true}, "b": {Ref: "i", Ready: true}}
	want := map[string]time.Duration{"a": 40 * time.Second, "b": 10 * time.Second}
	for _, action := range plan.Next(in).Actions {
		if action.Kind == plan.StartContainer && action.Delay != want[action.Container] {
			t.Errorf("%s owes %s, want %s", action, action.Delay, want[action.Container])
		}
		delete(want, action.Container)
	}
	if len(want) > 0 {
		t.Errorf("not started: %v", want)
	}
}

// restartsAll is a pod in which the end with 88 of each of these containers makes all restart.
func restartsAll(names ...string) plan.Input {
	never := v1.ContainerRestartPolicyNever
	in := restartInput(v1.RestartPolicyNever)
	for _, name := range names {
		in.Pod.Spec.Containers = append(in.Pod.Spec.Containers, v1.Container{
			Name: name, Image: "i", RestartPolicy: &never, RestartPolicyRules: []v1.ContainerRestartRule{{
				Action: v1.ContainerRestartRuleActionRestartAllContainers, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: "In", Values: []int32{88}},
			}},
		})
	}
	return in
}

func restartInput(policy v1.RestartPolicy, containers ...v1.Container) plan.Input {
	if policy == "" {
		policy = v1.RestartPolicyAlways
	}
	return plan.Input{
		Pod: &v1.Pod{Spec: v1.PodSpec{RestartPolicy: policy, Containers: containers}}, Now: time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC),
		Runtime: &pod.RuntimePod{Sandboxes: []pod.Sandbox{{ID: "s", Ready: true, IPs: []string{"10.0.0.1"}}}},
	}
}

func ended(name, id string, code int32, at time.Time) pod.Container {
	return pod.Container{
		Name: name, ID: id, SandboxID: "s", State: pod.ContainerExited, ExitCode: code,
		CreatedAt: at.Add(-time.Second), StartedAt: at.Add(-time.Second), FinishedAt: at,
	}
}

func plans(p plan.Plan, k plan.Kind, container string) bool {
	return slices.ContainsFunc(p.Actions, func(a plan.Action) bool { return a.Kind == k && a.Container == container })
}
