package worker_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/cri/crifake"
	"github.com/podplane/podplane/internal/pod"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/plan"
	"github.com/podplane/podplane/services/syncd/internal/worker"
)

// waitingReason is the waiting reason of the pod's first container.
func (w *world) waitingReason(uid string) string {
	s := w.status(uid)
	if len(s.ContainerStatuses) == 0 || s.ContainerStatuses[0].State.Waiting == nil {
		return ""
	}
	return s.ContainerStatuses[0].State.Waiting.Reason
}

// waitsFor says whether the pod says that it waits for the step.
func (w *world) waitsFor(uid, step string) bool {
	for _, x := range w.record(uid).GetWaiting() {
		if x.GetStep() == step && x.GetSince() != nil {
			return true
		}
	}
	return false
}

func (w *world) isReady(uid string) bool {
	s := w.status(uid)
	return condition(&s, v1.PodReady).Status == v1.ConditionTrue
}

func TestImageThatComesLate(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		p := w.start()
		defer p.kill()
		c := container("main")
		c.Image = "late:1"
		w.wish(newPod("a", c))
		time.Sleep(time.Second)
		synctest.Wait()
		if got := w.waitingReason("uid-a"); got != "ErrImagePull" {
			t.Errorf("waiting reason is %q", got)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := w.waitingReason("uid-a"); got != "ImagePullBackOff" || !w.waitsFor("uid-a", plan.StepImage) {
			t.Errorf("waiting reason is %q, waits %v", got, w.record("uid-a").GetWaiting())
		}
		w.cri.AddRemoteImage("late:1", crifake.RemoteImage{})
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if !w.isReady("uid-a") {
			t.Errorf("not started after the back-off: %+v", w.status("uid-a"))
		}
		for _, want := range []string{"Pulling", "Failed Failed to pull", "BackOff", "Pulled Successfully"} {
			if !w.hasEvent("a/main " + want) {
				t.Errorf("no event %q in %q", want, w.events)
			}
		}
	})
}

func TestVolumesHoldUpContainersOnly(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		p := w.start()
		defer p.kill()
		c := container("main")
		c.VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
		x := newPod("a", c)
		x.Spec.Volumes = []v1.Volume{{Name: "data"}}
		w.wish(x)
		synctest.Wait()
		if len(w.cri.Calls("run_podsandbox")) != 1 || len(w.cri.Calls("image_status")) != 1 {
			t.Error("sandbox or image wait for the volumes")
		}
		if got := w.waitingReason("uid-a"); got != "ContainerCreating" || !w.waitsFor("uid-a", plan.StepVolumes) {
			t.Errorf("waiting reason is %q, waits %v", got, w.record("uid-a").GetWaiting())
		}
		state := &podplanev1.VolumeState{Name: "data", Phase: podplanev1.VolumePhase_VOLUME_PHASE_READY, HostPath: "/host/data"}
		p.m.VolumesChanged("uid-a", &podplanev1.VolumesRecord{Phase: podplanev1.VolumePhase_VOLUME_PHASE_READY, Volumes: []*podplanev1.VolumeState{state}})
		synctest.Wait()
		if !w.isReady("uid-a") {
			t.Fatalf("not started: %+v", w.status("uid-a"))
		}
		mounts := w.runtimePod("uid-a").Containers[0].Mounts
		if len(mounts) == 0 || mounts[0].HostPath != "/host/data" || mounts[0].ContainerPath != "/data" {
			t.Errorf("mounts are %+v", mounts)
		}
		w.remove("uid-a", 1)
		synctest.Wait()
		if !w.exists("uid-a") || !w.waitsFor("uid-a", plan.StepVolumes) || w.record("uid-a").GetPhase() != podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED {
			t.Fatalf("does not wait for the volumes' end: %v", w.record("uid-a"))
		}
		p.m.VolumesChanged("uid-a", &podplanev1.VolumesRecord{Phase: podplanev1.VolumePhase_VOLUME_PHASE_GONE})
		synctest.Wait()
		if w.exists("uid-a") {
			t.Errorf("still there: %v", w.record("uid-a"))
		}
	})
}

func TestProbesDecide(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		p := w.start()
		defer func() { p.kill() }()
		c := container("main")
		c.ReadinessProbe, c.LivenessProbe = &v1.Probe{}, &v1.Probe{}
		w.wish(newPod("a", c))
		synctest.Wait()
		if w.isReady("uid-a") {
			t.Error("ready before the first verdict")
		}
		id := w.runtimePod("uid-a").Containers[0].ID
		readiness, liveness := plan.ProbeKey{Container: "main", Kind: plan.Readiness}, plan.ProbeKey{Container: "main", Kind: plan.Liveness}
		p.m.ProbeChanged("uid-a", readiness, &plan.Verdict{ContainerID: id, Success: true})
		synctest.Wait()
		if !w.isReady("uid-a") {
			t.Error("not ready after the verdict")
		}
		// Another process, which does not know the verdict yet: nothing flips.
		p.kill()
		seen := len(w.history["uid-a"])
		p = w.start()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		for _, rec := range w.history["uid-a"][seen:] {
			if !strings.Contains(string(rec.GetStatus()), `"type":"Ready","observedGeneration":1,"status":"True"`) {
				t.Errorf("flipped: %s", rec.GetStatus())
			}
		}
		p.m.ProbeChanged("uid-a", liveness, &plan.Verdict{ContainerID: id, Failure: true})
		time.Sleep(time.Second)
		synctest.Wait()
		s := w.status("uid-a")
		if s.ContainerStatuses[0].RestartCount != 1 || s.ContainerStatuses[0].State.Running == nil || w.isReady("uid-a") {
			t.Errorf("not restarted: %+v", s.ContainerStatuses[0])
		}
		if !w.hasEvent("a/main Killing Container main failed liveness probe, will be restarted") {
			t.Errorf("events are %q", w.events)
		}
	})
}

func TestEviction(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		p := w.start()
		defer func() { p.kill() }()
		w.wish(newPod("a", container("main")))
		synctest.Wait()
		p.m.EvictionChanged("uid-a", &plan.Eviction{Reason: "Evicted", Message: "The node was low on resource: memory."})
		synctest.Wait()
		check := func() {
			t.Helper()
			s := w.status("uid-a")
			if s.Phase != v1.PodFailed || s.Reason != "Evicted" || condition(&s, v1.DisruptionTarget).Status != v1.ConditionTrue || len(w.runtimePod("uid-a").Running()) > 0 {
				t.Fatalf("status is %+v", s)
			}
		}
		check()
		// The order is withdrawn, the process replaced: it stays evicted.
		p.m.EvictionChanged("uid-a", nil)
		p.kill()
		p = w.start()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		check()
		w.remove("uid-a", 0)
		synctest.Wait()
		if w.exists("uid-a") {
			t.Error("an evicted pod can't be deleted")
		}
	})
}

// TestGraceGoesOnInTheNextProcess evicts a pod that does not stop by itself, and replaces the process half-way: the time that is left is not given anew.
func TestGraceGoesOnInTheNextProcess(t *testing.T) {
	stubborn := func(pod.Container, *cri.ContainerConfig) crifake.Behavior { return crifake.Behavior{IgnoreStop: true} }
	inBubble(t, crifake.Options{Behavior: stubborn}, func(w *world) {
		p := w.start()
		w.wish(newPod("a", container("main")))
		synctest.Wait()
		order := &plan.Eviction{Reason: "Evicted", Message: "The node was low on resource: memory.", Grace: 20 * time.Second}
		p.m.EvictionChanged("uid-a", order)
		time.Sleep(12 * time.Second)
		synctest.Wait()
		p.kill()
		p = w.start()
		defer p.kill()
		p.m.EvictionChanged("uid-a", order)
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if len(w.runtimePod("uid-a").Running()) != 1 {
			t.Fatal("ended before its time")
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := len(w.runtimePod("uid-a").Running()); n != 0 {
			t.Errorf("%d containers run 21 s after an eviction within 20 s", n)
		}
	})
}

func TestOrphansAreEnded(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		p := w.start()
		w.wish(newPod("a", container("main")))
		synctest.Wait()
		p.kill()
		w.mu.Lock()
		clear(w.pods) // the bus lost it
		clear(w.statuses)
		w.mu.Unlock()
		foreign := w.cri.For("other")
		if _, err := foreign.RunSandbox(t.Context(), &cri.SandboxConfig{Name: "f", Namespace: "default", UID: "uid-f"}); err != nil {
			t.Fatal(err)
		}
		p = w.start()
		defer p.kill()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if left := w.list(); len(left) > 0 {
			t.Errorf("left: %+v", left)
		}
		if rp, err := foreign.PodStatus(t.Context(), "uid-f"); err != nil || rp.ReadySandbox() == nil {
			t.Errorf("another node's pod was touched: %+v, %v", rp, err)
		}
	})
}

func TestSandboxDies(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		p := w.start()
		defer p.kill()
		w.wish(newPod("a", container("main")))
		synctest.Wait()
		w.cri.CrashSandbox(w.runtimePod("uid-a").Sandboxes[0].ID)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		rp := w.runtimePod("uid-a")
		if s := rp.ReadySandbox(); s == nil || s.Attempt != 1 || len(rp.Running()) != 1 || !w.isReady("uid-a") {
			t.Errorf("not recovered: %+v %+v", rp, w.status("uid-a"))
		}
		if !w.hasEvent("SandboxChanged") {
			t.Error("no event")
		}
	})
}

func TestRuntimeIsAway(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		p := w.start()
		defer p.kill()
		w.wish(newPod("a", container("main")))
		synctest.Wait()
		before := w.status("uid-a")
		w.cri.SetDown(true)
		p.m.Hint("uid-a", worker.Hint{})
		w.wish(newPod("b", container("main")))
		time.Sleep(20 * time.Second)
		synctest.Wait()
		for _, uid := range []string{"uid-a", "uid-b"} {
			if !w.waitsFor(uid, plan.StepRuntime) {
				t.Errorf("%s waits for %v", uid, w.record(uid).GetWaiting())
			}
		}
		if after := w.status("uid-a"); after.Phase != before.Phase || !w.isReady("uid-a") {
			t.Errorf("the status changed without an observation: %+v", after)
		}
		w.cri.SetDown(false)
		p.m.RuntimeBack()
		time.Sleep(time.Second)
		synctest.Wait()
		if !w.isReady("uid-b") || len(w.record("uid-a").GetWaiting()) > 0 {
			t.Errorf("not back: %v %v", w.status("uid-b"), w.record("uid-a").GetWaiting())
		}
		if got := w.runtimePod("uid-a").Containers; len(got) != 1 || got[0].Attempt != 0 {
			t.Errorf("restarted: %+v", got)
		}
	})
}

func TestHungCallHoldsUpNobodyElse(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		p := w.start()
		release := w.cri.Hang("run_podsandbox", "default/a")
		defer p.kill()
		defer release()
		w.wish(newPod("a", container("main")))
		w.wish(newPod("b", container("main")))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if !w.isReady("uid-b") {
			t.Errorf("held up: %+v", w.status("uid-b"))
		}
		if !w.waitsFor("uid-a", plan.StepSandbox) {
			t.Errorf("does not name what hangs: %v", w.record("uid-a").GetWaiting())
		}
	})
}

func TestConfigThatComesLate(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		p := w.start()
		defer p.kill()
		c := container("main")
		c.EnvFrom = []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "settings"}}}}
		w.wish(newPod("a", c))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := w.waitingReason("uid-a"); got != "CreateContainerConfigError" {
			t.Errorf("waiting reason is %q", got)
		}
		w.mu.Lock()
		w.objects["configmap/default/settings"] = &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"K": "v"}}
		w.mu.Unlock()
		p.m.ObjectsChanged("default")
		synctest.Wait()
		if !w.isReady("uid-a") {
			t.Errorf("not tried again at once: %+v", w.status("uid-a"))
		}
	})
}

func TestHooks(t *testing.T) {
	var commands []string
	exec := func(_ context.Context, command []string) crifake.Exec {
		commands = append(commands, strings.Join(command, " "))
		if command[0] == "bad" {
			return crifake.Exec{ExitCode: 1}
		}
		return crifake.Exec{Takes: 3 * time.Second}
	}
	options := crifake.Options{Behavior: func(pod.Container, *cri.ContainerConfig) crifake.Behavior { return crifake.Behavior{Exec: exec} }}
	inBubble(t, options, func(w *world) {
		p := w.start()
		defer p.kill()
		c := container("main")
		c.Lifecycle = &v1.Lifecycle{
			PostStart: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"begin"}}}, PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"end"}}},
		}
		w.wish(newPod("a", c))
		time.Sleep(time.Second)
		synctest.Wait()
		if s := w.status("uid-a"); w.isReady("uid-a") || s.ContainerStatuses[0].State.Running == nil {
			t.Errorf("while the postStart hook runs: %+v", s.ContainerStatuses[0])
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if !w.isReady("uid-a") {
			t.Error("not ready after the hook")
		}
		w.remove("uid-a", 10)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(w.runtimePod("uid-a").Running()) != 1 {
			t.Error("stopped before the preStop hook ended")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if w.exists("uid-a") || strings.Join(commands, ",") != "begin,end" {
			t.Errorf("still there, or wrong hooks: %q", commands)
		}

		bad := container("main")
		bad.Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"bad"}}}}
		w.wish(newPod("b", bad))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if s := w.status("uid-b").ContainerStatuses[0]; s.RestartCount == 0 || w.isReady("uid-b") {
			t.Errorf("a failed postStart hook: %+v", s)
		}
		if !w.hasEvent("b/main FailedPostStartHook") {
			t.Error("no event")
		}
	})
}

func TestSameUIDAgain(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		p := w.start()
		defer p.kill()
		for range 3 {
			w.wish(newPod("a", container("main")))
			synctest.Wait()
			if !w.isReady("uid-a") {
				t.Fatalf("not ready: %+v", w.status("uid-a"))
			}
			w.remove("uid-a", 0)
			synctest.Wait()
			if w.exists("uid-a") {
				t.Fatal("still there")
			}
		}
	})
}

func TestDeadline(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		p := w.start()
		defer p.kill()
		x := newPod("a", container("main"))
		seconds := int64(60)
		x.Spec.ActiveDeadlineSeconds = &seconds
		w.wish(x)
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if !w.isReady("uid-a") {
			t.Fatal("stopped too early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if s := w.status("uid-a"); s.Phase != v1.PodFailed || s.Reason != "DeadlineExceeded" {
			t.Errorf("status is %+v", s)
		}
	})
}

// TestARuntimeThatDoesNotKill: a pod that outlives its grace period because the runtime hangs says so, once, and goes when the runtime is back.
func TestARuntimeThatDoesNotKill(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		p := w.start()
		defer p.kill()
		w.wish(newPod("a", container("main")))
		synctest.Wait()
		release := w.cri.Hang("stop_container", "")
		w.remove("uid-a", 5)
		const told = "a/ ExceededGracePeriod Container runtime did not kill the pod within specified grace period"
		time.Sleep(14 * time.Second)
		synctest.Wait()
		if w.hasEvent(told) {
			t.Error("told too early")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		n := 0
		w.mu.Lock()
		for _, e := range w.events {
			if strings.Contains(e, told) && strings.HasSuffix(e, "still running: main") {
				n++
			}
		}
		w.mu.Unlock()
		if n != 1 {
			t.Errorf("told %d times: %q", n, w.events)
		}
		release()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if w.exists("uid-a") {
			t.Errorf("still there: %v", w.record("uid-a"))
		}
	})
}
