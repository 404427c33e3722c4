package worker_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/cri/crifake"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/plan"
	"github.com/podplane/podplane/services/syncd/internal/worker"
)

// TestMakingRoom: a pod that is told to make room fails with the reason, within its grace period and over a restart; the one that it makes room for
// starts when it has ended, not before.
func TestMakingRoom(t *testing.T) {
	slow := func(pod.Container, *cri.ContainerConfig) crifake.Behavior {
		return crifake.Behavior{StopTakes: 10 * time.Second}
	}
	inBubble(t, crifake.Options{Behavior: slow}, func(w *world) {
		p := w.start()
		defer func() { p.kill() }()
		victim := w.wish(newPod("a", container("main")))
		synctest.Wait()
		order := &plan.Eviction{Reason: plan.ReasonPreempting, Message: "Preempted in order to admit critical pod default/b", Grace: 30 * time.Second, OrderedAt: time.Now()}
		p.m.PodChanged(worker.PodChange{UID: "uid-a", Pod: victim, Preempted: order})
		critical := newPod("b", container("main"))
		w.mu.Lock()
		w.pods["uid-b"] = critical
		w.mu.Unlock()
		p.m.PodChanged(worker.PodChange{UID: "uid-b", Pod: critical, Fresh: true, After: []string{"uid-a", "uid-gone"}})
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := len(w.runtimePod("uid-b").Sandboxes); n != 0 || len(w.runtimePod("uid-a").Running()) != 1 {
			t.Fatalf("b has %d sandboxes while a runs on", n)
		}
		rec := w.record("uid-b")
		if s := w.status("uid-b"); s.Phase != v1.PodPending || len(rec.GetWaiting()) != 1 || rec.GetWaiting()[0].GetStep() != plan.StepRoom || !strings.Contains(rec.GetWaiting()[0].GetMessage(), "uid-a") {
			t.Errorf("b does not say what it waits for: %+v", rec)
		}
		time.Sleep(7 * time.Second)
		synctest.Wait()
		check := func() {
			t.Helper()
			s := w.status("uid-a")
			if s.Phase != v1.PodFailed || s.Reason != plan.ReasonPreempting || s.Message != order.Message || condition(&s, v1.DisruptionTarget).Reason != "TerminationByKubelet" {
				t.Fatalf("got %+v", s)
			}
			if s := w.status("uid-b"); s.Phase != v1.PodRunning {
				t.Fatalf("got %+v", s)
			}
		}
		check()
		if !w.hasEvent("a/ Preempting Preempted in order to admit critical pod default/b") {
			t.Errorf("events are %q", w.events)
		}
		if why := w.why("uid-a"); !slices.ContainsFunc(why, func(l string) bool { return strings.Contains(l, "preempted: Preempted in order to admit") }) {
			t.Errorf("why says %q", why)
		}
		p.kill()
		p = w.start() // the records' orders are not even needed
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		check()
	})
}
