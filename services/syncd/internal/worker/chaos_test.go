package worker_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri/crifake"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
)

// TestKilledAtAnyMoment replaces the process at random moments while pods come and go: no container is ever started twice, what is wished for runs, and what was
// deleted is gone without a trace.
func TestKilledAtAnyMoment(t *testing.T) {
	for seed := range uint64(25) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			inBubble(t, crifake.Options{}, func(w *world) {
				r := rand.New(rand.NewPCG(seed, 0))
				for operation, d := range map[string]time.Duration{
					"run_podsandbox": 300, "create_container": 50, "start_container": 100, "stop_container": 40, "stop_podsandbox": 80, "remove_podsandbox": 60, "image_status": 20,
				} {
					w.cri.Delay(operation, "", d*time.Millisecond)
				}
				p := w.start()
				wished := map[string]bool{}
				for i := range 40 {
					switch r.IntN(4) {
					case 0, 1:
						name := fmt.Sprint("p", i)
						x := newPod(name, container("main"), container("side"))
						if r.IntN(2) == 0 {
							x.Spec.InitContainers = []v1.Container{container("init")}
						}
						w.wish(x)
						wished["uid-"+name] = true
					case 2:
						if all := slices.Sorted(maps.Keys(wished)); len(all) > 0 {
							uid := all[r.IntN(len(all))]
							w.remove(uid, int64(r.IntN(10)))
							delete(wished, uid)
						}
					case 3:
						p.kill()
						p = w.start()
					}
					time.Sleep(time.Duration(r.IntN(400)) * time.Millisecond)
					endInits(w)
				}
				for range 40 {
					time.Sleep(5 * time.Second)
					endInits(w)
				}
				synctest.Wait()
				p.kill()
				w.checkRest(wished)
			})
		})
	}
}

// endInits lets every init container that runs succeed.
func endInits(w *world) {
	synctest.Wait()
	for _, rp := range w.list() {
		for _, c := range rp.Running() {
			if c.Name == "init" {
				w.cri.Exit(c.ID, 0, "")
			}
		}
	}
}

// checkRest says what must be when everything has calmed down.
func (w *world) checkRest(wished map[string]bool) {
	w.t.Helper()
	for uid := range wished {
		rp := w.runtimePod(uid)
		if len(rp.Sandboxes) != 1 || rp.Sandboxes[0].Attempt != 0 {
			w.t.Errorf("%s has the sandboxes %+v", uid, rp.Sandboxes)
		}
		for _, c := range rp.Containers {
			if c.Attempt != 0 || (c.Name != "init" && c.State != pod.ContainerRunning) {
				w.t.Errorf("%s: %s is %s, attempt %d", uid, c.Name, c.State, c.Attempt)
			}
		}
		if s := w.status(uid); condition(&s, v1.PodReady).Status != v1.ConditionTrue {
			w.t.Errorf("%s is not ready: %+v %v", uid, s, w.record(uid).GetWaiting())
		}
	}
	for _, rp := range w.list() {
		if !wished[rp.UID] {
			w.t.Errorf("the runtime still has %s: %+v", rp.UID, rp)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid := range w.pods {
		if !wished[uid] {
			w.t.Errorf("the record of %s is still there: %v", uid, w.statuses[uid])
		}
	}
	for uid := range w.statuses {
		if !wished[uid] {
			w.t.Errorf("the status of %s is still there", uid)
		}
	}
}

// TestFailingRuntime lets every operation fail now and then.
func TestFailingRuntime(t *testing.T) {
	for seed := range uint64(15) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			inBubble(t, crifake.Options{}, func(w *world) {
				r := rand.New(rand.NewPCG(seed, 5))
				operations := []string{
					"run_podsandbox", "create_container", "start_container", "stop_container", "stop_podsandbox", "remove_podsandbox", "image_status",
					"container_status", "podsandbox_status", "list_podsandbox", "list_containers",
				}
				p := w.start()
				defer func() { p.kill() }()
				wished := map[string]bool{}
				kinds := []fault.Kind{fault.Internal, fault.Unavailable, fault.DeadlineExceeded}
				for i := range 30 {
					w.cri.Fail(operations[r.IntN(len(operations))], "", 1+r.IntN(3), fault.New(kinds[r.IntN(len(kinds))], "injected"))
					name := fmt.Sprint("p", i)
					w.wish(newPod(name, container("main")))
					wished["uid-"+name] = true
					if all := slices.Sorted(maps.Keys(wished)); r.IntN(2) == 0 {
						uid := all[r.IntN(len(all))]
						w.remove(uid, 3)
						delete(wished, uid)
					}
					time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
				}
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				w.checkGone(wished)
			})
		})
	}
}

// checkGone is checkRest for a runtime that failed: attempts may have been used up.
func (w *world) checkGone(wished map[string]bool) {
	w.t.Helper()
	for uid := range wished {
		s := w.status(uid)
		if condition(&s, v1.PodReady).Status != v1.ConditionTrue {
			w.t.Errorf("%s is not ready: %+v %v", uid, s, w.record(uid).GetWaiting())
		}
		if rp := w.runtimePod(uid); len(rp.Running()) != 1 {
			w.t.Errorf("%s: %d containers run", uid, len(rp.Running()))
		}
	}
	for _, rp := range w.list() {
		if !wished[rp.UID] {
			w.t.Errorf("the runtime still has %s: %+v", rp.UID, rp)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pods) != len(wished) {
		w.t.Errorf("%d records, want %d", len(w.pods), len(wished))
	}
}
