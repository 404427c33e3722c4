package worker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/cri/crifake"
	"github.com/podplane/podplane/internal/pod"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/worker"
)

func TestPodRuns(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		p := w.start()
		defer p.kill()
		w.wish(newPod("a", container("main"), container("side")))
		synctest.Wait()
		s := w.status("uid-a")
		if s.Phase != v1.PodRunning || len(s.ContainerStatuses) != 2 || !s.ContainerStatuses[0].Ready || s.ContainerStatuses[0].State.Running == nil {
			t.Fatalf("not running: %+v", s)
		}
		if ready := condition(&s, v1.PodReady); ready.Status != v1.ConditionTrue {
			t.Errorf("Ready is %+v", ready)
		}
		if s.PodIP == "" || s.HostIP != "192.0.2.1" || s.StartTime == nil || s.QOSClass != v1.PodQOSBestEffort || s.ObservedGeneration != 1 {
			t.Errorf("status lacks something: %+v", s)
		}
		if calls := len(w.cri.Calls("run_podsandbox")); calls != 1 {
			t.Errorf("%d sandboxes were run", calls)
		}
		for _, want := range []string{"Pulled", "Created", "Started"} {
			if !w.hasEvent("a/main " + want) {
				t.Errorf("no event %s in %q", want, w.events)
			}
		}
		// Nothing happens any more: no call, no write.
		w.cri.ForgetCalls()
		before := len(w.history["uid-a"])
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if calls := w.cri.Calls(); len(calls) > 0 {
			t.Errorf("an idle pod costs calls: %v", calls)
		}
		if after := len(w.history["uid-a"]); after != before {
			t.Errorf("an idle pod's status was written %d times", after-before)
		}
	})
}

// crashes is a behavior under which every container ends at once.
func crashes(code int32) func(pod.Container, *cri.ContainerConfig) crifake.Behavior {
	return func(pod.Container, *cri.ContainerConfig) crifake.Behavior {
		return crifake.Behavior{Exits: true, After: time.Second, ExitCode: code}
	}
}

func TestCrashLoopBacksOff(t *testing.T) {
	inBubble(t, crifake.Options{Behavior: crashes(1)}, func(w *world) {
		p := w.start()
		defer p.kill()
		w.wish(newPod("a", container("main")))
		began := time.Now()
		// Each run takes 1 s; the pauses are 0, 10, 20, 40, 80, 160, 300, 300 s.
		want := []time.Duration{0, 1, 12, 33, 74, 155, 316, 617, 918}
		for i, at := range want {
			time.Sleep(time.Until(began.Add(at*time.Second + 500*time.Millisecond)))
			synctest.Wait()
			s := w.status("uid-a").ContainerStatuses[0]
			if s.RestartCount != int32(i) || s.State.Running == nil {
				t.Fatalf("after %ds: restart count %d (want %d), state %+v", at, s.RestartCount, i, s.State)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			s = w.status("uid-a").ContainerStatuses[0]
			if i > 0 && (s.State.Waiting == nil || s.State.Waiting.Reason != "CrashLoopBackOff" || s.LastTerminationState.Terminated == nil) {
				t.Fatalf("%ds: not in back-off: %+v", at, s)
			}
		}
		if !w.hasEvent("a/main BackOff") {
			t.Errorf("no event of the back-off")
		}
		if got := w.status("uid-a").Phase; got != v1.PodRunning {
			t.Errorf("phase is %s", got)
		}
	})
}

// TestStartCountsOnce wants the time to readiness told once for each pod, however often it gets ready, whichever process sees it.
func TestStartCountsOnce(t *testing.T) {
	inBubble(t, crifake.Options{Behavior: crashes(1)}, func(w *world) {
		registry := prometheus.NewRegistry()
		var err error
		if w.metrics, err = worker.NewMetrics(registry); err != nil {
			t.Fatal(err)
		}

		p := w.start()
		w.wish(newPod("a", container("main")))
		time.Sleep(40 * time.Second)
		synctest.Wait()
		p.kill()
		p = w.start()
		defer p.kill()
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := w.status("uid-a").ContainerStatuses[0]; s.RestartCount < 4 {
			t.Fatalf("restarted %d times only", s.RestartCount)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "kubelet_pod_start_duration_seconds" {
				if n := f.GetMetric()[0].GetHistogram().GetSampleCount(); n != 1 {
					t.Errorf("the start counts %d times", n)
				}
				return
			}
		}
		t.Error("no such metric")
	})
}

func TestCrashLoopSurvivesRestart(t *testing.T) {
	inBubble(t, crifake.Options{Behavior: crashes(1)}, func(w *world) {
		p := w.start()
		w.wish(newPod("a", container("main")))
		time.Sleep(40 * time.Second) // in the pause of 40 s that began at 34 s
		synctest.Wait()
		p.kill()
		p = w.start()
		defer p.kill()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if s := w.status("uid-a").ContainerStatuses[0]; s.RestartCount != 3 || s.State.Waiting == nil {
			t.Fatalf("the back-off was forgotten: %+v", s)
		}
		time.Sleep(4500 * time.Millisecond)
		synctest.Wait()
		if s := w.status("uid-a").ContainerStatuses[0]; s.RestartCount != 4 || s.State.Running == nil {
			t.Fatalf("not started again: %+v", s)
		}
	})
}

func TestPoliciesAtTheEnd(t *testing.T) {
	for name, test := range map[string]struct {
		policy   v1.RestartPolicy
		code     int32
		phase    v1.PodPhase
		terminal bool
	}{
		"never succeeds":    {v1.RestartPolicyNever, 0, v1.PodSucceeded, true},
		"never fails":       {v1.RestartPolicyNever, 3, v1.PodFailed, true},
		"on failure, done":  {v1.RestartPolicyOnFailure, 0, v1.PodSucceeded, true},
		"on failure, again": {v1.RestartPolicyOnFailure, 1, v1.PodRunning, false},
		"always, again":     {v1.RestartPolicyAlways, 0, v1.PodRunning, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, crifake.Options{Behavior: crashes(test.code)}, func(w *world) {
				p := w.start()
				defer p.kill()
				x := newPod("a", container("main"))
				x.Spec.RestartPolicy = test.policy
				w.wish(x)
				time.Sleep(5 * time.Second)
				synctest.Wait()
				s := w.status("uid-a")
				if s.Phase != test.phase {
					t.Errorf("phase is %s: %+v", s.Phase, s.ContainerStatuses)
				}
				terminal := w.record("uid-a").GetPhase() == podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED
				if terminal != test.terminal {
					t.Errorf("worker phase is %s", w.record("uid-a").GetPhase())
				}
				if test.terminal {
					if rp := w.runtimePod("uid-a"); rp.ReadySandbox() != nil {
						t.Error("the sandbox of a pod that ended is still ready")
					}
					if !w.exists("uid-a") {
						t.Error("the record of a pod that ended by itself is gone")
					}
				}
			})
		})
	}
}

func TestDeletion(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		p := w.start()
		defer p.kill()
		w.wish(newPod("a", container("main")))
		synctest.Wait()
		w.remove("uid-a", 30)
		synctest.Wait()
		if w.exists("uid-a") || w.record("uid-a") != nil {
			t.Fatalf("still there: %v", w.record("uid-a"))
		}
		if rp := w.runtimePod("uid-a"); !rp.Empty() {
			t.Errorf("the runtime still has %+v", rp)
		}
		if p.m.Pods() != 0 {
			t.Error("the worker is still there")
		}
	})
}

func TestDeletionKillsAtTheEndOfTheGracePeriod(t *testing.T) {
	stubborn := func(pod.Container, *cri.ContainerConfig) crifake.Behavior { return crifake.Behavior{IgnoreStop: true} }
	inBubble(t, crifake.Options{Behavior: stubborn}, func(w *world) {
		p := w.start()
		defer p.kill()
		w.wish(newPod("a", container("main")))
		synctest.Wait()
		w.remove("uid-a", 30)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if got := w.record("uid-a").GetPhase(); got != podplanev1.WorkerPhase_WORKER_PHASE_TERMINATING {
			t.Fatalf("worker phase is %s", got)
		}
		if len(w.record("uid-a").GetWaiting()) == 0 {
			t.Error("does not say what it waits for")
		}
		w.remove("uid-a", 5) // a shorter grace counts from now
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if w.exists("uid-a") {
			t.Fatalf("still there: %v", w.record("uid-a"))
		}
	})
}

func TestKilledProcessAdopts(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		p := w.start()
		w.wish(newPod("a", container("main")))
		synctest.Wait()
		before := w.runtimePod("uid-a")
		p.kill()
		p = w.start()
		defer p.kill()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		after := w.runtimePod("uid-a")
		if len(after.Containers) != 1 || after.Containers[0].ID != before.Containers[0].ID || after.Sandboxes[0].ID != before.Sandboxes[0].ID {
			t.Fatalf("not adopted: %+v", after)
		}
		for _, rec := range w.history["uid-a"][len(w.history["uid-a"])-1:] {
			if rec.GetPhase() != podplanev1.WorkerPhase_WORKER_PHASE_SYNCING {
				t.Errorf("phase went to %s", rec.GetPhase())
			}
		}
		if s := w.status("uid-a"); s.ContainerStatuses[0].RestartCount != 0 || !s.ContainerStatuses[0].Ready {
			t.Errorf("status changed: %+v", s.ContainerStatuses[0])
		}
	})
}
