package plan_test

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// at is a moment so many seconds before now.
func at(secondsAgo int) time.Time { return now.Add(-time.Duration(secondsAgo) * time.Second) }

// situation starts from a pod with one container "a" in a ready sandbox "s0", its image present.
func situation(changes ...func(*plan.Input)) plan.Input {
	grace := int64(30)
	in := plan.Input{
		Now: now,
		Pod: &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"},
			Spec: v1.PodSpec{
				RestartPolicy: v1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace,
				Containers: []v1.Container{{Name: "a", Image: "x"}},
			},
		},
		Runtime: &pod.RuntimePod{Sandboxes: []pod.Sandbox{{ID: "s0", Ready: true, IPs: []string{"10.0.0.1"}}}},
		Images:  map[string]plan.Image{"a": present, "b": present, "init": present, "side": present},
	}
	for _, c := range changes {
		c(&in)
	}
	in.Runtime.Sort()
	return in
}

// present is an image that is there.
var present = plan.Image{Ref: "x", Ready: true}

type change = func(*plan.Input)

func policy(p v1.RestartPolicy) change { return func(in *plan.Input) { in.Pod.Spec.RestartPolicy = p } }

func initContainer(name string, sidecar bool) change {
	return func(in *plan.Input) {
		c := v1.Container{Name: name, Image: "x"}
		if sidecar {
			always := v1.ContainerRestartPolicyAlways
			c.RestartPolicy = &always
		}
		in.Pod.Spec.InitContainers = append(in.Pod.Spec.InitContainers, c)
	}
}

func regular(name string) change {
	return func(in *plan.Input) {
		in.Pod.Spec.Containers = append(in.Pod.Spec.Containers, v1.Container{Name: name, Image: "x"})
	}
}

func has(c pod.Container) change {
	return func(in *plan.Input) {
		if c.SandboxID == "" {
			c.SandboxID = "s0"
		}
		if c.ID == "" {
			c.ID = c.Name + "-id"
		}
		in.Runtime.Containers = append(in.Runtime.Containers, c)
	}
}

func running(name string) change {
	return has(pod.Container{Name: name, State: pod.ContainerRunning, StartedAt: at(100), CreatedAt: at(100)})
}

func exited(name string, code int32, secondsAgo int, delay string) change {
	return has(pod.Container{
		Name: name, State: pod.ContainerExited, ExitCode: code, CreatedAt: at(secondsAgo + 5), StartedAt: at(secondsAgo + 5), FinishedAt: at(secondsAgo),
		Annotations: map[string]string{plan.AnnotationRestartDelay: delay}, Attempt: 3,
	})
}

func sandbox(s pod.Sandbox) change {
	return func(in *plan.Input) { in.Runtime.Sandboxes = append(in.Runtime.Sandboxes, s) }
}

func noSandbox(in *plan.Input)   { in.Runtime.Sandboxes = nil }
func deadSandbox(in *plan.Input) { in.Runtime.Sandboxes[0].Ready = false }

func terminating(cause plan.Cause, grace time.Duration) change {
	return func(in *plan.Input) {
		in.Phase, in.Stop = plan.Terminating, &plan.Stop{Cause: cause, Deadline: now.Add(grace)}
	}
}

func deleted(grace int64) change {
	return func(in *plan.Input) {
		end := metav1.NewTime(now.Add(time.Duration(grace) * time.Second))
		in.Pod.DeletionTimestamp, in.Pod.DeletionGracePeriodSeconds = &end, &grace
	}
}

func liveness(failed bool, id string) change {
	return func(in *plan.Input) {
		in.Pod.Spec.Containers[0].LivenessProbe = &v1.Probe{}
		in.Probes = map[plan.ProbeKey]plan.Verdict{{Container: "a", Kind: plan.Liveness}: {ContainerID: id, Failure: failed, Success: !failed}}
	}
}

func TestNext(t *testing.T) {
	for name, test := range map[string]struct {
		in      plan.Input
		actions string
		waits   string
		phase   plan.Phase
		again   time.Duration
	}{
		"nothing yet": {in: situation(noSandbox), actions: "CreateSandbox attempt=0"},
		"image in parallel with the sandbox": {
			in:      situation(noSandbox, func(in *plan.Input) { in.Images = nil }),
			actions: "CreateSandbox attempt=0; EnsureImage container=a",
		},
		"sandbox being made": {in: situation(noSandbox, func(in *plan.Input) { in.Busy.Sandbox = true }), waits: "sandbox"},
		"sandbox failed lately": {
			in:    situation(noSandbox, func(in *plan.Input) { in.SandboxFailure = plan.Failure{Message: "no", NotBefore: now.Add(time.Second)} }),
			waits: "sandbox", again: time.Second,
		},
		"sandbox is dead":         {in: situation(deadSandbox), actions: "CreateSandbox attempt=1"},
		"sandbox without address": {in: situation(func(in *plan.Input) { in.Runtime.Sandboxes[0].IPs = nil }), actions: "StopSandbox id=s0 reason=SandboxChanged"},
		"host network needs no address": {
			in: situation(func(in *plan.Input) {
				in.Pod.Spec.HostNetwork, in.Runtime.Sandboxes[0].HostNetwork, in.Runtime.Sandboxes[0].IPs = true, true, nil
			}),
			actions: "StartContainer container=a attempt=0",
		},
		"two sandboxes are ready": {
			in:      situation(sandbox(pod.Sandbox{ID: "s1", Attempt: 1, Ready: true, IPs: []string{"10.0.0.2"}})),
			actions: "StopSandbox id=s1 reason=SandboxChanged; StopSandbox id=s0 reason=SandboxChanged",
		},
		"dead sandbox with a running container": {
			in:      situation(deadSandbox, running("a")),
			actions: "KillContainer container=a id=a-id grace=30s reason=SandboxChanged",
		},
		"restart never, sandbox is dead, container ended": {
			in: situation(deadSandbox, policy(v1.RestartPolicyNever), exited("a", 0, 5, "")), phase: plan.Terminated,
		},
		"on failure, sandbox is dead, one had succeeded": {
			in:      situation(deadSandbox, policy(v1.RestartPolicyOnFailure), regular("b"), exited("a", 0, 50, ""), exited("b", 1, 50, "")),
			actions: "CreateSandbox attempt=1",
		},
		"start":                     {in: situation(), actions: "StartContainer container=a attempt=0"},
		"start in parallel":         {in: situation(regular("b")), actions: "StartContainer container=a attempt=0; StartContainer container=b attempt=0"},
		"being started":             {in: situation(func(in *plan.Input) { in.Busy.Containers = map[string]bool{"a": true} })},
		"running":                   {in: situation(running("a"))},
		"created earlier is reused": {in: situation(has(pod.Container{Name: "a", State: pod.ContainerCreated, Attempt: 2})), actions: "StartContainer container=a id=a-id attempt=2"},
		"an interrupted start does not count": {
			in:      situation(policy(v1.RestartPolicyNever), has(pod.Container{Name: "a", State: pod.ContainerExited, ExitCode: 128, FinishedAt: at(1)})),
			actions: "RemoveContainer container=a id=a-id",
		},
		"an interrupted start, removed": {
			in:      situation(exited("a", 1, 50, ""), has(pod.Container{ID: "i", Name: "a", State: pod.ContainerExited, ExitCode: 128, FinishedAt: at(1), Attempt: 4}), func(in *plan.Input) { in.Busy.Removals = map[string]bool{"i": true} }),
			actions: "",
		},
		"a failed start counts": {
			in:      situation(has(pod.Container{Name: "a", State: pod.ContainerExited, ExitCode: 128, FinishedAt: at(1)}), func(in *plan.Input) { in.StartFailed = map[string]bool{"a-id": true} }),
			actions: "StartContainer container=a attempt=1",
		},
		"a failed start that was published counts": {
			in: situation(has(pod.Container{Name: "a", State: pod.ContainerExited, ExitCode: 128, FinishedAt: at(1)}), func(in *plan.Input) {
				in.Previous = &v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{
					Name: "a", ContainerID: "containerd://a-id", LastTerminationState: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: "containerd://a-id"}},
				}}}
			}),
			actions: "StartContainer container=a attempt=1",
		},
		"unknown is killed first": {
			in:      situation(has(pod.Container{Name: "a", State: pod.ContainerUnknown})),
			actions: "KillContainer container=a id=a-id grace=30s reason=Killing",
		},
		"an older instance runs": {
			in: situation(has(pod.Container{ID: "old", Name: "a", State: pod.ContainerRunning}),
				has(pod.Container{ID: "new", Name: "a", State: pod.ContainerExited, Attempt: 1, CreatedAt: at(5), StartedAt: at(5), FinishedAt: at(1)})),
			actions: "KillContainer container=a id=old grace=2s reason=Killing",
		},
		"volumes are not ready": {
			in: situation(func(in *plan.Input) {
				in.Pod.Spec.Volumes, in.Images = []v1.Volume{{Name: "v"}}, nil
				in.Volumes = plan.Volumes{Resource: "v", Message: "no"}
			}),
			actions: "EnsureImage container=a", waits: "volumes",
		},
		"image is being pulled": {
			in:    situation(func(in *plan.Input) { in.Images, in.Busy.Images = nil, map[string]bool{"a": true} }),
			waits: "image ContainerCreating",
		},
		"image failed just now": {
			in: situation(func(in *plan.Input) {
				in.Images["a"] = plan.Image{Ref: "x", Failures: 1, Reason: "ErrImagePull", FailedAt: at(1), NotBefore: now.Add(9 * time.Second)}
			}),
			waits: "image ErrImagePull", again: 2 * time.Second,
		},
		"image backs off": {
			in: situation(func(in *plan.Input) {
				in.Images["a"] = plan.Image{Ref: "x", Failures: 1, Reason: "ErrImagePull", FailedAt: at(5), NotBefore: now.Add(5 * time.Second)}
			}),
			waits: "image ImagePullBackOff", again: 5 * time.Second,
		},
		"image of an earlier spec": {
			in:      situation(func(in *plan.Input) { in.Images["a"] = plan.Image{Ref: "old", Ready: true} }),
			actions: "EnsureImage container=a",
		},
		"image may be tried again": {
			in: situation(func(in *plan.Input) {
				in.Images["a"] = plan.Image{Ref: "x", Failures: 1, Reason: "ErrImagePull", FailedAt: at(10), NotBefore: now}
			}),
			actions: "EnsureImage container=a",
		},
		"container failed lately": {
			in: situation(func(in *plan.Input) {
				in.Failures = map[string]plan.Failure{"a": {Reason: "CreateContainerConfigError", NotBefore: now.Add(4 * time.Second)}}
			}),
			waits: "start CreateContainerConfigError", again: 4 * time.Second,
		},
		"first crash restarts at once":   {in: situation(exited("a", 1, 0, "")), actions: "StartContainer container=a attempt=4"},
		"later crashes wait":             {in: situation(exited("a", 1, 4, "20s")), waits: "backoff CrashLoopBackOff", again: 16 * time.Second},
		"the wait is over":               {in: situation(exited("a", 1, 20, "20s")), actions: "StartContainer container=a attempt=4"},
		"a long run starts a new series": {in: situation(has(pod.Container{Name: "a", State: pod.ContainerExited, CreatedAt: at(700), StartedAt: at(700), FinishedAt: at(1), Annotations: map[string]string{plan.AnnotationRestartDelay: "5m0s"}})), actions: "StartContainer container=a attempt=1"},
		"the wait has a cap": {
			in:    situation(exited("a", 1, 4, "40s"), func(in *plan.Input) { in.MaxRestartDelay = 15 * time.Second }),
			waits: "backoff CrashLoopBackOff", again: 11 * time.Second,
		},
		"liveness failed":                  {in: situation(running("a"), liveness(true, "a-id")), actions: "KillContainer container=a id=a-id grace=30s reason=Killing"},
		"liveness of an earlier instance":  {in: situation(running("a"), liveness(true, "before"))},
		"liveness is well":                 {in: situation(running("a"), liveness(false, "a-id"))},
		"killed for its probe, on failure": {in: situation(policy(v1.RestartPolicyOnFailure), exited("a", 0, 1, ""), func(in *plan.Input) { in.Killed = map[string]bool{"a-id": true} }), actions: "StartContainer container=a attempt=4"},
		"killed for its probe, never":      {in: situation(policy(v1.RestartPolicyNever), exited("a", 0, 1, ""), func(in *plan.Input) { in.Killed = map[string]bool{"a-id": true} }), actions: "StopSandbox id=s0", phase: plan.Terminating},
		"postStart hook failed":            {in: situation(running("a"), func(in *plan.Input) { in.HookFailed = map[string]bool{"a-id": true} }), actions: "KillContainer container=a id=a-id grace=30s reason=Killing"},
		"kill failed lately": {in: situation(running("a"), liveness(true, "a-id"), func(in *plan.Input) {
			in.EndFailures = map[string]plan.Failure{"a-id": {NotBefore: now.Add(time.Second)}}
		}), waits: "deletion", again: time.Second},
		"hash of another image":   {in: situation(has(pod.Container{Name: "a", State: pod.ContainerRunning, Annotations: map[string]string{pod.AnnotationContainerHash: plan.Hash(&v1.Container{Name: "a", Image: "y"})}})), actions: "KillContainer container=a id=a-id grace=30s reason=Killing"},
		"hash of another version": {in: situation(has(pod.Container{Name: "a", State: pod.ContainerRunning, Annotations: map[string]string{pod.AnnotationContainerHash: "v0-1234"}}))},
		"stopped for another image, never": {in: situation(policy(v1.RestartPolicyNever), has(pod.Container{
			Name: "a", State: pod.ContainerExited, ExitCode: 137, StartedAt: at(9), FinishedAt: at(1), Annotations: map[string]string{pod.AnnotationContainerHash: plan.Hash(&v1.Container{Name: "a", Image: "y"})},
		}), func(in *plan.Input) { in.Killed = map[string]bool{"a-id": true} }), actions: "StartContainer container=a attempt=1"},
		"one that was never started makes room": {
			in:      situation(running("a"), has(pod.Container{Name: "b", ID: "b0", State: pod.ContainerCreated}), regular("b"), has(pod.Container{Name: "b", ID: "b1", Attempt: 1, State: pod.ContainerExited, StartedAt: at(9), FinishedAt: at(1)})),
			actions: "StartContainer container=b attempt=2; RemoveContainer container=b id=b0",
		},
		"completed":                            {in: situation(policy(v1.RestartPolicyOnFailure), exited("a", 0, 1, "")), actions: "StopSandbox id=s0", phase: plan.Terminating},
		"OOMKilled is no success":              {in: situation(policy(v1.RestartPolicyOnFailure), has(pod.Container{Name: "a", State: pod.ContainerExited, Reason: "OOMKilled", StartedAt: at(9), FinishedAt: at(1)})), actions: "StartContainer container=a attempt=1"},
		"init first":                           {in: situation(initContainer("init", false)), actions: "StartContainer container=init attempt=0"},
		"init runs":                            {in: situation(initContainer("init", false), running("init"))},
		"init is over":                         {in: situation(initContainer("init", false), exited("init", 0, 1, "")), actions: "StartContainer container=a attempt=0"},
		"init failed":                          {in: situation(initContainer("init", false), exited("init", 1, 1, "")), actions: "StartContainer container=init attempt=4"},
		"init failed for good":                 {in: situation(policy(v1.RestartPolicyNever), initContainer("init", false), exited("init", 1, 1, "")), actions: "StopSandbox id=s0", phase: plan.Terminating},
		"init of a new sandbox runs again":     {in: situation(initContainer("init", false), has(pod.Container{Name: "init", SandboxID: "old", State: pod.ContainerExited, StartedAt: at(60), FinishedAt: at(50)})), actions: "StartContainer container=init attempt=1"},
		"init records are gone, app runs":      {in: situation(initContainer("init", false), running("a"))},
		"init records are gone, app crashed":   {in: situation(initContainer("init", false), exited("a", 1, 1, "")), actions: "StartContainer container=a attempt=4"},
		"sidecar first":                        {in: situation(initContainer("side", true)), actions: "StartContainer container=side attempt=0"},
		"sidecar runs":                         {in: situation(initContainer("side", true), running("side")), actions: "StartContainer container=a attempt=0"},
		"sidecar waits for its startup probe":  {in: situation(initContainer("side", true), running("side"), func(in *plan.Input) { in.Pod.Spec.InitContainers[0].StartupProbe = &v1.Probe{} })},
		"sidecar restarts whatever the policy": {in: situation(policy(v1.RestartPolicyNever), initContainer("side", true), running("a"), exited("side", 0, 1, "")), actions: "StartContainer container=side attempt=4"},
		"sidecar ends with the pod":            {in: situation(policy(v1.RestartPolicyNever), initContainer("side", true), exited("a", 0, 1, ""), running("side")), actions: "KillContainer container=side id=side-id grace=30s reason=Killing", phase: plan.Terminating},
		"dead ones are removed": {
			in: situation(running("a"),
				has(pod.Container{ID: "d1", Name: "a", State: pod.ContainerExited, CreatedAt: at(300), StartedAt: at(300)}), has(pod.Container{ID: "d2", Name: "a", State: pod.ContainerExited, CreatedAt: at(400), StartedAt: at(400)}),
				sandbox(pod.Sandbox{ID: "old", CreatedAt: at(500)}), func(in *plan.Input) {
					in.Runtime.Sandboxes[0].Attempt = 1
					for i := range in.Runtime.Containers[:1] {
						in.Runtime.Containers[i].Attempt = 2
					}
				}),
			actions: "RemoveContainer container=a id=d2; RemoveSandbox id=old",
		},
		"restart count from the last status": {
			in: situation(func(in *plan.Input) {
				in.Previous = &v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{
					Name: "a", RestartCount: 6, ContainerID: "containerd://gone", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}},
				}}}
			}),
			actions: "StartContainer container=a attempt=7",
		},
		"unsure": {in: situation(func(in *plan.Input) { in.Stale = true })},
		"runtime is away": {
			in:    situation(func(in *plan.Input) { in.Stale, in.RuntimeError = true, "gone" }),
			waits: "runtime",
		},

		"deletion":                      {in: situation(running("a"), deleted(20)), actions: "KillContainer container=a id=a-id grace=20s reason=Killing", phase: plan.Terminating},
		"deletion without grace":        {in: situation(running("a"), deleted(0)), actions: "KillContainer container=a id=a-id grace=0s reason=Killing", phase: plan.Terminating},
		"deletion, least grace":         {in: situation(running("a"), deleted(1)), actions: "KillContainer container=a id=a-id grace=2s reason=Killing", phase: plan.Terminating},
		"deletion while unsure":         {in: situation(running("a"), deleted(20), func(in *plan.Input) { in.Stale = true }), actions: "KillContainer container=a id=a-id grace=20s reason=Killing", phase: plan.Terminating},
		"being killed":                  {in: situation(running("a"), deleted(20), func(in *plan.Input) { in.Busy.Kills = map[string]time.Time{"a-id": now.Add(20 * time.Second)} }), waits: "deletion", phase: plan.Terminating},
		"being killed, but too slowly":  {in: situation(running("a"), deleted(5), func(in *plan.Input) { in.Busy.Kills = map[string]time.Time{"a-id": now.Add(20 * time.Second)} }), actions: "KillContainer container=a id=a-id grace=5s reason=Killing", waits: "deletion", phase: plan.Terminating},
		"a start is under way":          {in: situation(deleted(20), func(in *plan.Input) { in.Busy.Containers = map[string]bool{"a": true} }), phase: plan.Terminating},
		"nothing runs any more":         {in: situation(exited("a", 0, 1, ""), deleted(20)), actions: "StopSandbox id=s0", phase: plan.Terminating},
		"everything is stopped":         {in: situation(deadSandbox, exited("a", 0, 1, ""), deleted(20)), actions: "RemoveSandbox id=s0", phase: plan.Terminated},
		"volumes are still there":       {in: situation(deadSandbox, deleted(20), func(in *plan.Input) { in.Pod.Spec.Volumes = []v1.Volume{{Name: "v"}} }), waits: "volumes", phase: plan.Terminated},
		"volumes are gone":              {in: situation(deadSandbox, deleted(20), func(in *plan.Input) { in.Pod.Spec.Volumes, in.Volumes.Gone = []v1.Volume{{Name: "v"}}, true }), actions: "RemoveSandbox id=s0", phase: plan.Terminated},
		"never began":                   {in: situation(noSandbox, deleted(20)), actions: "Cleanup", phase: plan.Terminated},
		"cleaned":                       {in: situation(noSandbox, deleted(20), func(in *plan.Input) { in.Cleaned = true }), actions: "RemoveRecord", phase: plan.Terminated},
		"ended by itself stays":         {in: situation(deadSandbox, terminating(plan.CauseCompleted, 0)), phase: plan.Terminated},
		"ended by itself, then deleted": {in: situation(deadSandbox, terminating(plan.CauseCompleted, 0), deleted(20)), actions: "RemoveSandbox id=s0", phase: plan.Terminated},
		"sidecars go last":              {in: situation(initContainer("side", true), running("side"), running("a"), deleted(20)), actions: "KillContainer container=a id=a-id grace=20s reason=Killing", phase: plan.Terminating},
		"the last sidecar goes first":   {in: situation(initContainer("side", true), initContainer("b", true), running("side"), running("b"), deleted(20)), actions: "KillContainer container=b id=b-id grace=20s reason=Killing", phase: plan.Terminating},
		"eviction":                      {in: situation(running("a"), func(in *plan.Input) { in.Eviction = &plan.Eviction{Reason: "Evicted", Grace: 10 * time.Second} }), actions: "KillContainer container=a id=a-id grace=10s reason=Killing", phase: plan.Terminating},
		"eviction, the pod's own grace": {in: situation(running("a"), func(in *plan.Input) { in.Eviction = &plan.Eviction{Grace: time.Minute} }), actions: "KillContainer container=a id=a-id grace=30s reason=Killing", phase: plan.Terminating},
		"eviction of a deleted pod":     {in: situation(running("a"), deleted(60), func(in *plan.Input) { in.Eviction = &plan.Eviction{Grace: 5 * time.Second} }), actions: "KillContainer container=a id=a-id grace=5s reason=Killing", phase: plan.Terminating},
		"deletion of an evicted pod":    {in: situation(running("a"), deleted(4), func(in *plan.Input) { in.Eviction = &plan.Eviction{Grace: 20 * time.Second} }), actions: "KillContainer container=a id=a-id grace=4s reason=Killing", phase: plan.Terminating},
		"eviction at once":              {in: situation(running("a"), func(in *plan.Input) { in.Eviction = &plan.Eviction{} }), actions: "KillContainer container=a id=a-id grace=0s reason=Killing", phase: plan.Terminating},
		"deadline to come":              {in: situation(running("a"), activeDeadline(60, 20)), again: 40 * time.Second},
		"deadline is over":              {in: situation(running("a"), activeDeadline(60, 60)), actions: "KillContainer container=a id=a-id grace=30s reason=Killing", phase: plan.Terminating},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan.Next(test.in)
			var actions, waits []string
			for _, a := range p.Actions {
				actions = append(actions, a.String())
			}
			for _, w := range p.Waits {
				waits = append(waits, strings.TrimSpace(w.Step+" "+w.Reason))
			}
			if got := strings.Join(actions, "; "); got != test.actions {
				t.Errorf("actions:\n got %s\nwant %s", got, test.actions)
			}
			if got := strings.Join(waits, "; "); !strings.HasPrefix(got, test.waits) || (test.waits == "" && got != "" && test.phase == plan.Syncing) {
				t.Errorf("waits:\n got %s\nwant %s", got, test.waits)
			}
			if p.Phase != test.phase {
				t.Errorf("phase is %s, want %s", p.Phase, test.phase)
			}
			if test.again != 0 && !p.Again.Equal(now.Add(test.again)) {
				t.Errorf("again in %s, want %s", p.Again.Sub(now), test.again)
			}
			if test.again == 0 && !p.Again.IsZero() {
				t.Errorf("again in %s, want never", p.Again.Sub(now))
			}
		})
	}
}

func activeDeadline(seconds int64, startedAgo int) change {
	return func(in *plan.Input) {
		started := metav1.NewTime(at(startedAgo))
		in.Pod.Spec.ActiveDeadlineSeconds = &seconds
		in.Previous = &v1.PodStatus{StartTime: &started}
	}
}

func TestStopSharpens(t *testing.T) {
	in := situation(running("a"), terminating(plan.CauseEviction, 10*time.Second), deleted(30))
	in.Stop.Reason, in.Stop.Message = "Evicted", "memory"
	s := plan.Next(in).Stop
	if s.Cause != plan.CauseDeletion || s.Reason != "Evicted" || !s.Deadline.Equal(now.Add(10*time.Second)) {
		t.Errorf("stop is %+v", s)
	}
	if in.Stop.Cause != plan.CauseEviction {
		t.Error("the input was changed")
	}
}

func TestDelays(t *testing.T) {
	for failures, want := range map[int][2]time.Duration{0: {0, 0}, 1: {10 * time.Second, time.Second}, 2: {20 * time.Second, 2 * time.Second}, 6: {300 * time.Second, 32 * time.Second}, 100: {300 * time.Second, time.Minute}} {
		if got := [2]time.Duration{plan.ImageDelay(failures), plan.CreateDelay(failures)}; got != want {
			t.Errorf("after %d failures: %v, want %v", failures, got, want)
		}
	}
}

func TestSeriesOfRestartDelays(t *testing.T) {
	delay, want := "", []time.Duration{10, 20, 40, 80, 160, 300, 300}
	for i, w := range want {
		d, err := time.ParseDuration(delay)
		if delay != "" && err != nil {
			t.Fatal(err)
		}
		p := plan.Next(situation(exited("a", 1, int(d/time.Second), delay)))
		if len(p.Actions) != 1 || p.Actions[0].Delay != w*time.Second {
			t.Fatalf("restart %d: %+v, want the delay %s", i+1, p.Actions, w*time.Second)
		}
		delay = p.Actions[0].Delay.String()
	}
}
