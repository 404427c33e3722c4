package status_test

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/plan"
	"github.com/podplane/podplane/services/syncd/internal/status"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// make decides and makes the status, from a pod with one container "a" in a ready sandbox.
func makeStatus(changes ...func(*status.Input)) v1.PodStatus {
	in := status.Input{
		Input: plan.Input{
			Now: now,
			Pod: &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", Generation: 3},
				Spec:       v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, Containers: []v1.Container{{Name: "a", Image: "x"}}},
			},
			Runtime: &pod.RuntimePod{Sandboxes: []pod.Sandbox{{ID: "s0", Ready: true, IPs: []string{"10.0.0.1", "fd00::1"}}}},
		},
		HostIPs: []string{"192.0.2.1"}, RuntimeName: "containerd", FirstSeen: now.Add(-time.Minute), Messages: map[string]string{},
	}
	for _, c := range changes {
		c(&in)
	}
	in.Runtime.Sort()
	in.Plan = plan.Next(in.Input)
	return status.Make(in)
}

type change = func(*status.Input)

func has(c pod.Container) change {
	return func(in *status.Input) {
		c.SandboxID = "s0"
		if c.ID == "" {
			c.ID = c.Name + "-id"
		}
		in.Runtime.Containers = append(in.Runtime.Containers, c)
	}
}

func running(name string) change {
	return has(pod.Container{Name: name, State: pod.ContainerRunning, StartedAt: now.Add(-time.Second), Image: "x:1", ImageRef: "x@sha256:1"})
}

func exited(name string, code int32, delay string) change {
	return has(pod.Container{
		Name: name, State: pod.ContainerExited, ExitCode: code, CreatedAt: now.Add(-9 * time.Second), StartedAt: now.Add(-9 * time.Second), FinishedAt: now.Add(-time.Second),
		Annotations: map[string]string{plan.AnnotationRestartDelay: delay}, Attempt: 2,
	})
}

func policy(p v1.RestartPolicy) change {
	return func(in *status.Input) { in.Pod.Spec.RestartPolicy = p }
}

func initContainer(name string) change {
	return func(in *status.Input) {
		in.Pod.Spec.InitContainers = append(in.Pod.Spec.InitContainers, v1.Container{Name: name, Image: "x"})
	}
}

func sidecar(name string) change {
	always := v1.ContainerRestartPolicyAlways
	return func(in *status.Input) {
		in.Pod.Spec.InitContainers = append(in.Pod.Spec.InitContainers, v1.Container{Name: name, Image: "x", RestartPolicy: &always})
	}
}

func deadSandbox(in *status.Input) { in.Runtime.Sandboxes[0].Ready = false }
func noSandbox(in *status.Input)   { in.Runtime.Sandboxes = nil }

func readiness(in *status.Input) { in.Pod.Spec.Containers[0].ReadinessProbe = &v1.Probe{} }

func verdict(kind plan.ProbeKind, id string, success bool) change {
	return func(in *status.Input) {
		in.Probes = map[plan.ProbeKey]plan.Verdict{{Container: "a", Kind: kind}: {ContainerID: id, Success: success, Failure: !success}}
	}
}

func previous(s v1.PodStatus) change { return func(in *status.Input) { in.Previous = &s } }

func stopped(cause plan.Cause, reason string) change {
	return func(in *status.Input) {
		in.Phase, in.Stop = plan.Terminating, &plan.Stop{Cause: cause, Reason: reason, Message: "why", Deadline: now}
	}
}

// brief puts a status into one line: phase, Ready, then each container as name=state.
func brief(s *v1.PodStatus) string {
	parts := []string{string(s.Phase)}
	for _, c := range s.Conditions {
		if c.Type == v1.PodReady {
			parts = append(parts, "ready="+string(c.Status)+"/"+c.Reason)
		}
	}
	for _, list := range [][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for _, c := range list {
			state := c.Name + "="
			switch {
			case c.State.Running != nil:
				state += "running"
			case c.State.Terminated != nil:
				state += "terminated:" + c.State.Terminated.Reason
			case c.State.Waiting != nil:
				state += "waiting:" + c.State.Waiting.Reason
			}
			if c.Ready {
				state += "+"
			}
			if c.LastTerminationState.Terminated != nil {
				state += "<" + c.LastTerminationState.Terminated.Reason
			}
			parts = append(parts, state)
		}
	}
	return strings.Join(parts, " ")
}

func TestMake(t *testing.T) {
	wasRunning := v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{{
		Name: "a", ContainerID: "containerd://a-id", Ready: true, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}},
	}}}
	for name, test := range map[string]struct {
		got  v1.PodStatus
		want string
	}{
		"new":                    {makeStatus(noSandbox), "Pending ready=False/ContainersNotReady a=waiting:ContainerCreating"},
		"created":                {makeStatus(has(pod.Container{Name: "a", State: pod.ContainerCreated})), "Pending ready=False/ContainersNotReady a=waiting:ContainerCreating"},
		"running":                {makeStatus(running("a")), "Running ready=True/ a=running+"},
		"hook still runs":        {makeStatus(running("a"), func(in *status.Input) { in.Busy.Containers = map[string]bool{"a": true} }), "Running ready=False/ContainersNotReady a=running"},
		"probe has no verdict":   {makeStatus(running("a"), readiness), "Running ready=False/ContainersNotReady a=running"},
		"probe passes":           {makeStatus(running("a"), readiness, verdict(plan.Readiness, "a-id", true)), "Running ready=True/ a=running+"},
		"probe of another":       {makeStatus(running("a"), readiness, verdict(plan.Readiness, "other", true)), "Running ready=False/ContainersNotReady a=running"},
		"kept over a restart":    {makeStatus(running("a"), readiness, previous(wasRunning)), "Running ready=True/ a=running+"},
		"verdict beats the past": {makeStatus(running("a"), readiness, previous(wasRunning), verdict(plan.Readiness, "a-id", false)), "Running ready=False/ContainersNotReady a=running"},
		"startup probe to come":  {makeStatus(running("a"), func(in *status.Input) { in.Pod.Spec.Containers[0].StartupProbe = &v1.Probe{} }), "Running ready=False/ContainersNotReady a=running"},
		"image backs off": {makeStatus(func(in *status.Input) {
			in.Images = map[string]plan.Image{"a": {Ref: "x", Failures: 1, Reason: "ErrImagePull", FailedAt: now.Add(-5 * time.Second), NotBefore: now.Add(time.Second)}}
		}), "Pending ready=False/ContainersNotReady a=waiting:ImagePullBackOff"},
		"config error": {makeStatus(func(in *status.Input) {
			in.Failures = map[string]plan.Failure{"a": {Reason: "CreateContainerConfigError", NotBefore: now.Add(time.Second)}}
		}), "Pending ready=False/ContainersNotReady a=waiting:CreateContainerConfigError"},
		"crash loop":               {makeStatus(exited("a", 1, "20s")), "Running ready=False/ContainersNotReady a=waiting:CrashLoopBackOff<Error"},
		"crashed just now":         {makeStatus(exited("a", 1, "")), "Running ready=False/ContainersNotReady a=terminated:Error"},
		"record is lost":           {makeStatus(previous(wasRunning)), "Running ready=False/ContainersNotReady a=waiting:ContainerCreating<ContainerStatusUnknown"},
		"runs again":               {makeStatus(has(pod.Container{Name: "a", ID: "new", State: pod.ContainerRunning, Attempt: 3}), exited("a", 1, "")), "Running ready=True/ a=running+<Error"},
		"unknown":                  {makeStatus(has(pod.Container{Name: "a", State: pod.ContainerUnknown})), "Running ready=False/ContainersNotReady a=terminated:ContainerStatusUnknown"},
		"init runs":                {makeStatus(initContainer("i"), running("i")), "Pending ready=False/ContainersNotReady i=running a=waiting:PodInitializing"},
		"init is over":             {makeStatus(initContainer("i"), exited("i", 0, ""), running("a")), "Running ready=True/ i=terminated:Completed+ a=running+"},
		"init record is gone":      {makeStatus(initContainer("i"), running("a")), "Running ready=True/ i=terminated:Completed+ a=running+"},
		"init failed for good":     {makeStatus(policy(v1.RestartPolicyNever), deadSandbox, initContainer("i"), exited("i", 1, "")), "Failed ready=False/PodFailed i=terminated:Error a=waiting:PodInitializing"},
		"sidecar runs":             {makeStatus(sidecar("s"), running("s"), running("a")), "Running ready=True/ s=running+ a=running+"},
		"sidecar is down":          {makeStatus(sidecar("s"), running("a")), "Running ready=False/ContainersNotReady s=waiting:PodInitializing a=running+"},
		"succeeded":                {makeStatus(policy(v1.RestartPolicyNever), deadSandbox, exited("a", 0, "")), "Succeeded ready=False/PodCompleted a=terminated:Completed"},
		"failed":                   {makeStatus(policy(v1.RestartPolicyNever), deadSandbox, exited("a", 2, "")), "Failed ready=False/PodFailed a=terminated:Error"},
		"ends, not told yet":       {makeStatus(policy(v1.RestartPolicyNever), exited("a", 0, "")), "Running ready=False/ContainersNotReady a=terminated:Completed"},
		"never taken back":         {makeStatus(running("a"), previous(v1.PodStatus{Phase: v1.PodFailed})), "Failed ready=False/PodFailed a=running+"},
		"evicted, still running":   {makeStatus(running("a"), previous(wasRunning), stopped(plan.CauseEviction, "Evicted")), "Running ready=True/ a=running+"},
		"evicted":                  {makeStatus(deadSandbox, exited("a", 0, ""), stopped(plan.CauseEviction, "Evicted")), "Failed ready=False/PodFailed a=terminated:Completed"},
		"deleted before it began":  {makeStatus(noSandbox, stopped(plan.CauseDeletion, "")), "Failed ready=False/PodFailed a=terminated:ContainerStatusUnknown"},
		"deleted after it had run": {makeStatus(deadSandbox, exited("a", 0, ""), stopped(plan.CauseDeletion, "")), "Succeeded ready=False/PodCompleted a=terminated:Completed"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := brief(&test.got); got != test.want {
				t.Errorf("\n got %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestDetails(t *testing.T) {
	s := makeStatus(running("a"), func(in *status.Input) {
		in.Runtime.Containers[0].Attempt = 4
		in.Runtime.Containers[0].User = &pod.LinuxUser{UID: 7, GID: 8}
	})
	c := s.ContainerStatuses[0]
	if c.ContainerID != "containerd://a-id" || c.ImageID != "x@sha256:1" || c.Image != "x:1" || c.RestartCount != 4 || c.Started == nil || !*c.Started || c.User.Linux.UID != 7 {
		t.Errorf("container: %+v", c)
	}
	if s.PodIP != "10.0.0.1" || len(s.PodIPs) != 2 || s.HostIP != "192.0.2.1" || s.ObservedGeneration != 3 || !s.StartTime.Time.Equal(now.Add(-time.Minute)) {
		t.Errorf("status: %+v", s)
	}
	evicted := makeStatus(deadSandbox, exited("a", 0, ""), stopped(plan.CauseEviction, "Evicted"))
	found := false
	for _, c := range evicted.Conditions {
		found = found || (c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && c.Reason == "TerminationByKubelet")
	}
	if !found || evicted.Reason != "Evicted" || evicted.Message != "why" {
		t.Errorf("evicted: %+v", evicted)
	}
	message := makeStatus(exited("a", 1, "20s"), func(in *status.Input) { in.Messages["a-id"] = "last words" })
	if got := message.ContainerStatuses[0].LastTerminationState.Terminated.Message; got != "last words" {
		t.Errorf("termination message is %q", got)
	}
}

// TestUnobserved tells why a pod is being stopped though the runtime can't be asked, and nothing else.
func TestUnobserved(t *testing.T) {
	before := makeStatus(running("a"))
	after := status.Unobserved(&before, &plan.Stop{Cause: plan.CauseDeadline, Reason: "DeadlineExceeded", Message: "too long"})
	if after.Reason != "DeadlineExceeded" || after.Message != "too long" || before.Reason != "" || brief(after) != brief(&before) {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if again := status.Unobserved(after, &plan.Stop{Cause: plan.CauseEviction, Reason: "Evicted"}); again.Reason != "DeadlineExceeded" {
		t.Errorf("the reason became %s", again.Reason)
	}
}

// TestTheEndIsFinal keeps what was told of a pod that is over while its containers are removed.
func TestTheEndIsFinal(t *testing.T) {
	end := makeStatus(policy(v1.RestartPolicyNever), deadSandbox, exited("a", 3, ""), stopped(plan.CauseDeletion, ""))
	later := makeStatus(policy(v1.RestartPolicyNever), noSandbox, stopped(plan.CauseDeletion, ""), previous(end))
	if got := later.ContainerStatuses[0].State.Terminated; got == nil || got.ExitCode != 3 {
		t.Errorf("after its removal the container is %+v", later.ContainerStatuses[0].State)
	}
}

func TestRestartingAllContainers(t *testing.T) {
	restarts := func(in *status.Input) {
		always := v1.ContainerRestartPolicyAlways
		in.Pod.Spec.Containers = append(in.Pod.Spec.Containers, v1.Container{Name: "b", Image: "x", RestartPolicy: &always, RestartPolicyRules: []v1.ContainerRestartRule{{
			Action:    v1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{88}},
		}}})
	}
	for code, want := range map[int32]v1.ConditionStatus{88: v1.ConditionTrue, 1: ""} {
		s := makeStatus(restarts, has(pod.Container{Name: "a", State: pod.ContainerRunning, CreatedAt: now.Add(-10 * time.Second), StartedAt: now.Add(-10 * time.Second)}), exited("b", code, ""))
		var got v1.PodCondition
		for _, c := range s.Conditions {
			if c.Type == v1.AllContainersRestarting {
				got = c
			}
		}
		if got.Status != want || (want != "" && got.Reason != "RestartAllContainersStarted") {
			t.Errorf("after exit code %d: %+v, want status %q", code, got, want)
		}
	}
}

func TestTransitionTimes(t *testing.T) {
	first := makeStatus(running("a"))
	later := makeStatus(running("a"), previous(first), func(in *status.Input) { in.Now = now.Add(time.Hour) })
	for i := range later.Conditions {
		if !later.Conditions[i].LastTransitionTime.Equal(&first.Conditions[i].LastTransitionTime) {
			t.Errorf("%s: transition time moved without a transition", later.Conditions[i].Type)
		}
	}
	down := makeStatus(exited("a", 1, "20s"), previous(later), func(in *status.Input) { in.Now = now.Add(time.Second) })
	for _, c := range down.Conditions {
		if c.Type == v1.PodReady && !c.LastTransitionTime.Time.Equal(now.Add(time.Second)) {
			t.Errorf("Ready went down at %s", c.LastTransitionTime)
		}
	}
}

func TestReadinessGates(t *testing.T) {
	gate := func(in *status.Input) {
		in.Pod.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "example.com/lb"}}
	}
	closed := makeStatus(running("a"), gate)
	if got := brief(&closed); got != "Running ready=False/ReadinessGatesNotReady a=running+" {
		t.Errorf("gate closed: %s", got)
	}
	open := makeStatus(running("a"), gate, func(in *status.Input) {
		in.Pod.Status.Conditions = []v1.PodCondition{{Type: "example.com/lb", Status: v1.ConditionTrue}}
	})
	if got := brief(&open); got != "Running ready=True/ a=running+" {
		t.Errorf("gate open: %s", got)
	}
	if len(open.Conditions) != 6 {
		t.Errorf("somebody else's condition was dropped: %+v", open.Conditions)
	}
}

func TestQOSClass(t *testing.T) {
	q := func(s string) v1.ResourceList {
		if s == "" {
			return nil
		}
		return v1.ResourceList{v1.ResourceCPU: resource.MustParse(s), v1.ResourceMemory: resource.MustParse(s + "Mi")}
	}
	for _, test := range []struct {
		request, limit string
		want           v1.PodQOSClass
	}{{"", "", v1.PodQOSBestEffort}, {"1", "", v1.PodQOSBurstable}, {"1", "2", v1.PodQOSBurstable}, {"2", "2", v1.PodQOSGuaranteed}, {"", "2", v1.PodQOSGuaranteed}} {
		p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Resources: v1.ResourceRequirements{Requests: q(test.request), Limits: q(test.limit)}}}}}
		if got := status.QOSClass(p); got != test.want {
			t.Errorf("request %q, limit %q: %s, want %s", test.request, test.limit, got, test.want)
		}
		// What the pod asks for as a whole counts, whatever its containers ask for.
		whole := &v1.Pod{Spec: v1.PodSpec{
			Resources:  &v1.ResourceRequirements{Requests: q(test.request), Limits: q(test.limit)},
			Containers: []v1.Container{{}, {Resources: v1.ResourceRequirements{Requests: q("1")}}},
		}}
		want := test.want
		if want == v1.PodQOSBestEffort {
			want = v1.PodQOSBurstable // it asks for nothing as a whole
		}
		if got := status.QOSClass(whole); got != want {
			t.Errorf("as a whole, request %q, limit %q: %s, want %s", test.request, test.limit, got, want)
		}
	}
}

// FuzzMake makes statuses of arbitrary situations, one from the other: whatever the runtime shows, they keep the promises of the package and survive their encoding.
func FuzzMake(f *testing.F) {
	for seed := range uint64(16) {
		f.Add(seed, uint8(10))
	}
	f.Fuzz(func(t *testing.T, seed uint64, steps uint8) {
		r := rand.New(rand.NewPCG(seed, 3))
		var prev *v1.PodStatus
		phase, stop := plan.Syncing, (*plan.Stop)(nil)
		p := fuzzPod(r)
		for i := range int(steps % 32) {
			in := status.Input{Input: plan.Input{
				Pod: p, Now: now.Add(time.Duration(i) * time.Second), Phase: phase, Stop: stop, Runtime: fuzzRuntime(r, p), Previous: prev, Volumes: plan.Volumes{Ready: true},
			}, RuntimeName: "containerd", FirstSeen: now}
			in.Plan = plan.Next(in.Input)
			phase, stop = in.Plan.Phase, in.Plan.Stop
			s := status.Make(in)
			if prev != nil && (prev.Phase == v1.PodFailed || prev.Phase == v1.PodSucceeded) && s.Phase != prev.Phase {
				t.Fatalf("the phase went from %s to %s", prev.Phase, s.Phase)
			}
			if (s.Phase == v1.PodFailed || s.Phase == v1.PodSucceeded) && phase != plan.Terminated {
				t.Fatalf("phase %s is told in %s", s.Phase, phase)
			}
			for j, c := range s.ContainerStatuses {
				if prev != nil && c.RestartCount < prev.ContainerStatuses[j].RestartCount {
					t.Fatalf("restart count of %s shrank from %d to %d", c.Name, prev.ContainerStatuses[j].RestartCount, c.RestartCount)
				}
				if c.Ready && c.State.Running == nil {
					t.Fatalf("%s is ready but does not run: %+v", c.Name, c)
				}
				states := 0
				for _, set := range []bool{c.State.Running != nil, c.State.Waiting != nil, c.State.Terminated != nil} {
					if set {
						states++
					}
				}
				if states != 1 {
					t.Fatalf("%s is in %d states", c.Name, states)
				}
			}
			raw, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			prev = new(v1.PodStatus)
			if err := json.Unmarshal(raw, prev); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func fuzzPod(r *rand.Rand) *v1.Pod {
	p := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}[r.IntN(3)]}}
	if r.IntN(2) == 0 {
		p.Spec.InitContainers = []v1.Container{{Name: "i", Image: "x"}}
	}
	p.Spec.Containers = []v1.Container{{Name: "a", Image: "x"}, {Name: "b", Image: "x"}}
	return p
}

func fuzzRuntime(r *rand.Rand, p *v1.Pod) *pod.RuntimePod {
	rp := &pod.RuntimePod{}
	for i := range r.IntN(3) {
		rp.Sandboxes = append(rp.Sandboxes, pod.Sandbox{ID: string(rune('s' + i)), Attempt: uint32(i), Ready: r.IntN(2) == 0, IPs: []string{"10.0.0.1"}})
	}
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range list {
			for i := range r.IntN(3) {
				rp.Containers = append(rp.Containers, pod.Container{
					ID: c.Name + string(rune('0'+i)), Name: c.Name, SandboxID: string(rune('s' + r.IntN(3))), Attempt: uint32(r.IntN(5)),
					State: pod.ContainerState(r.IntN(4)), ExitCode: int32(r.IntN(2)), CreatedAt: now, StartedAt: now, FinishedAt: now,
				})
			}
		}
	}
	rp.Sort()
	return rp
}
