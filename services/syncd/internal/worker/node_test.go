package worker_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/cri/crifake"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// The preStop hook of a pod that nobody remembers is in its container's annotations.
func TestOrphansRunTheirHooks(t *testing.T) {
	var commands []string
	exec := func(_ context.Context, command []string) crifake.Exec {
		commands = append(commands, strings.Join(command, " "))
		return crifake.Exec{Takes: time.Second}
	}
	options := crifake.Options{Behavior: func(pod.Container, *cri.ContainerConfig) crifake.Behavior { return crifake.Behavior{Exec: exec} }}
	inBubble(t, options, func(w *world) {
		p := w.start()
		c := container("main")
		c.Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"say", "goodbye"}}}}
		w.wish(newPod("a", c))
		synctest.Wait()
		p.kill()
		w.mu.Lock()
		clear(w.pods)
		clear(w.statuses)
		w.mu.Unlock()
		p = w.start()
		defer p.kill()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if left := w.list(); len(left) > 0 || strings.Join(commands, ",") != "say goodbye" {
			t.Errorf("left: %+v, commands %q", left, commands)
		}
	})
}

// Beyond the node's number of dead containers the oldest go, but for those that a decision needs; what became of them stays in the status.
func TestDeadContainersOfTheNode(t *testing.T) {
	behavior := func(_ pod.Container, c *cri.ContainerConfig) crifake.Behavior {
		if c.Name == "stays" {
			return crifake.Behavior{}
		}
		return crifake.Behavior{Exits: true, After: time.Second, ExitCode: 3}
	}
	inBubble(t, crifake.Options{Behavior: behavior}, func(w *world) {
		none := 0
		w.maxDead = &none
		p := w.start()
		defer p.kill()
		ended := newPod("ended", container("once"))
		ended.Spec.RestartPolicy = v1.RestartPolicyNever
		half := newPod("half", container("stays"), container("once"))
		half.Spec.RestartPolicy = v1.RestartPolicyNever
		w.wish(ended)
		w.wish(half)
		w.wish(newPod("loop", container("again")))
		time.Sleep(7 * time.Minute)
		synctest.Wait()
		if left := w.runtimePod("uid-ended").Containers; len(left) != 0 {
			t.Errorf("of a pod that has ended %+v is left", left)
		}
		if s := w.status("uid-ended"); s.Phase != v1.PodFailed || s.ContainerStatuses[0].State.Terminated == nil || s.ContainerStatuses[0].State.Terminated.ExitCode != 3 {
			t.Errorf("the status of a pod that has ended: %+v", s)
		}
		if left := w.runtimePod("uid-half").Containers; len(left) != 2 || len(w.runtimePod("uid-half").Running()) != 1 {
			t.Errorf("of a pod that goes on: %+v", left)
		}
		if c := w.status("uid-half").ContainerStatuses[1]; c.RestartCount != 0 || c.State.Terminated == nil {
			t.Errorf("a container that must not run again: %+v", c)
		}
		if c := w.status("uid-loop").ContainerStatuses[0]; c.RestartCount < 3 || (c.LastTerminationState.Terminated == nil && c.State.Terminated == nil) {
			t.Errorf("a container that is restarted: %+v", c)
		}
	})
}

// Where neither the runtime nor a status tells of earlier instances, the logs do: restarts are counted on, and no log is written over.
func TestRestartCountFromLogs(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		a := newPod("a", container("main"), container("side"))
		dir := filepath.Join(w.logs, a.Namespace+"_"+a.Name+"_"+string(a.UID), "main")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"2.log", "6.log.20260101-000000.gz", "notes"} {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		w.mu.Lock()
		w.pods["uid-a"] = a
		w.mu.Unlock()
		p := w.start()
		defer p.kill()
		synctest.Wait()
		if s := w.status("uid-a").ContainerStatuses; len(s) != 2 || s[0].RestartCount != 7 || s[1].RestartCount != 0 || !w.isReady("uid-a") {
			t.Errorf("restarts: %+v", s)
		}
	})
}

// What can't be removed is told, and tried again.
func TestDeadContainerThatCannotBeRemoved(t *testing.T) {
	inBubble(t, crifake.Options{Behavior: crashes(1)}, func(w *world) {
		stop := w.cri.Fail("remove_container", "", 40, errors.New("device is busy"))
		defer stop()
		p := w.start()
		defer p.kill()
		w.wish(newPod("a", container("main")))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if !w.hasEvent("a/main ContainerGCFailed") {
			t.Error("no event")
		}
		dead := 0
		for _, c := range w.runtimePod("uid-a").Containers {
			if c.State == pod.ContainerExited {
				dead++
			}
		}
		if dead > 1 {
			t.Errorf("%d dead containers are left", dead)
		}
	})
}

// sized is a pod whose container asks for so many CPUs.
func sized(name, cpus string, generation int64) *v1.Pod {
	c := container("main")
	c.Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpus)}
	p := newPod(name, c)
	p.Generation = generation
	return p
}

// A pod that asks for more than is free waits until others give back, and says so; what the node can never have is told apart.
func TestResizeWaitsForRoom(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		cpus := func(p *v1.Pod) int64 { return p.Spec.Containers[0].Resources.Requests.Cpu().Value() }
		w.room = func(p *v1.Pod, held map[string]*v1.Pod) (reason, message string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			sum := cpus(p)
			if sum > 4 {
				return plan.ResizeInfeasible, "the node has 4"
			}
			for uid, other := range w.pods {
				if newer := held[uid]; newer != nil {
					other = newer
				}
				if uid != string(p.UID) {
					sum += cpus(other)
				}
			}
			if sum > 4 {
				return plan.ResizeDeferred, "the node is full"
			}
			return "", ""
		}
		p := w.start()
		defer p.kill()
		w.wish(sized("a", "3", 1))
		w.wish(sized("b", "1", 1))
		synctest.Wait()
		pending := func() string {
			s := w.status("uid-b")
			return condition(&s, v1.PodResizePending).Reason
		}
		shares := func() int64 { return w.runtimePod("uid-b").Running()[0].Resources.CPUShares }
		w.wish(sized("b", "6", 2))
		synctest.Wait()
		if pending() != plan.ResizeInfeasible || !w.hasEvent("b/ ResizeInfeasible") || shares() != 1024 {
			t.Errorf("too much for the node: %q, %d shares", pending(), shares())
		}
		w.wish(sized("b", "2", 3))
		synctest.Wait()
		if pending() != plan.ResizeDeferred || !w.hasEvent("b/ ResizeDeferred") || shares() != 1024 {
			t.Errorf("without room: %q, %d shares", pending(), shares())
		}
		w.remove("uid-a", 1)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if pending() != "" || shares() != 2048 || !w.hasEvent("b/ ResizeStarted") || !w.hasEvent("b/ ResizeCompleted") {
			t.Errorf("with room: %q, %d shares", pending(), shares())
		}
		if s := w.status("uid-b").ContainerStatuses[0]; s.AllocatedResources.Cpu().Value() != 2 || s.RestartCount != 0 || !w.isReady("uid-b") {
			t.Errorf("status: %+v", s)
		}
	})
}

// Each thing that fails in the runtime is told in an Event of the reason that users know.
func TestFailuresAreTold(t *testing.T) {
	inBubble(t, crifake.Options{}, func(w *world) {
		refused := fault.New(fault.Invalid, "refused")
		w.cri.Fail("run_podsandbox", "", 1, refused)
		w.cri.Fail("create_container", "", 1, refused)
		w.cri.Fail("start_container", "", 1, refused)
		p := w.start()
		defer p.kill()
		w.wish(newPod("a", container("main")))
		time.Sleep(time.Minute)
		synctest.Wait()
		if !w.isReady("uid-a") {
			t.Errorf("not tried again: %+v", w.status("uid-a"))
		}
		w.cri.Fail("stop_container", "", 1, refused)
		w.cri.CrashSandbox(w.runtimePod("uid-a").Sandboxes[0].ID)
		time.Sleep(time.Minute)
		synctest.Wait()
		w.remove("uid-a", 1)
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, event := range []string{
			"a/ FailedCreatePodSandBox", "a/main Failed", "a/main Created", "a/main Started", "a/main Killing", "a/ SandboxChanged", "a/ FailedKillPod",
		} {
			if !w.hasEvent(event) {
				t.Errorf("no Event %q", event)
			}
		}
		if w.exists("uid-a") {
			t.Error("the pod is still there")
		}
	})
}
