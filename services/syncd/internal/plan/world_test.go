package plan_test

import (
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// world is the runtime as it really is, whatever the worker knows of it. It refuses what a runtime refuses, and remembers all that ever ran.
type world struct {
	pod.RuntimePod
	ids   int
	lives map[string]*life   // by container ID
	named map[string][]*life // by container name, in the order of their creation
	// done holds "<sandbox>/<name>" of init containers that ended well there.
	done map[string]bool
	// late are the sandboxes that came after the process had gone that had them made.
	late map[string]bool
}

// life is one instance of a container.
type life struct {
	id, name, sandbox, image string
	attempt                  uint32
	// owed is the back-off that is due when it ends, by the documented series.
	owed              time.Duration
	created, finished time.Time
	decided           time.Time // when its start was begun
	ran, exited       bool
	startedUp         bool // its startup probe passed
	code              int32
	oom               bool
	// killed: the worker ended it in order to restart it. lost: the runtime has no record of it any more, though nobody removed it.
	killed, lost bool
	// ghost: it was made for a process that was gone.
	ghost bool
	// shown: a status that said so was stored after it had ended.
	shown bool
}

func (l *life) well() bool { return l.exited && l.code == 0 && !l.oom }

func newWorld() *world {
	return &world{lives: make(map[string]*life), named: make(map[string][]*life), done: make(map[string]bool), late: make(map[string]bool)}
}

func (w *world) id(prefix string) string {
	w.ids++
	return prefix + strconv.Itoa(w.ids)
}

// newSandbox makes a sandbox. ok is false when its attempt is taken.
func (w *world) newSandbox(a plan.Action, p *v1.Pod, now time.Time, ready bool) (id string, ok bool) {
	for i := range w.Sandboxes {
		if w.Sandboxes[i].Attempt == a.Attempt {
			return "", false
		}
	}
	s := pod.Sandbox{ID: w.id("s"), Attempt: a.Attempt, Ready: ready, CreatedAt: now, HostNetwork: p.Spec.HostNetwork}
	if !s.HostNetwork {
		s.IPs = []string{"10.0.0.1"}
	}
	w.Sandboxes = append(w.Sandboxes, s)
	w.Sort()
	return s.ID, true
}

// create makes a container that does not run yet. ok is false when its sandbox is not there or its attempt is taken.
func (w *world) create(a plan.Action, spec *v1.Container, now time.Time) (id string, ok bool) {
	if s := w.Sandbox(a.SandboxID); s == nil || !s.Ready {
		return "", false
	}
	for i := range w.Containers {
		if c := &w.Containers[i]; c.Name == a.Container && c.Attempt == a.Attempt {
			return "", false
		}
	}
	given := plan.Resources(&spec.Resources)
	c := pod.Container{
		ID: w.id("c"), Name: a.Container, SandboxID: a.SandboxID, Attempt: a.Attempt, State: pod.ContainerCreated, CreatedAt: now, Image: spec.Image,
		Annotations: map[string]string{plan.AnnotationRestartDelay: a.Delay.String(), pod.AnnotationContainerHash: plan.Hash(spec)}, Resources: &given,
	}
	if !a.Decided.IsZero() {
		c.Annotations[plan.AnnotationStartDecided] = a.Decided.Format(time.RFC3339Nano)
	}
	w.Containers = append(w.Containers, c)
	w.Sort()
	l := &life{id: c.ID, name: c.Name, sandbox: c.SandboxID, image: spec.Image, attempt: c.Attempt, created: now}
	w.lives[c.ID] = l
	w.named[c.Name] = append(w.named[c.Name], l)
	return c.ID, true
}

// run lets a created container run. ok is false when it is not there or its sandbox is not.
func (w *world) run(id string, now time.Time) bool {
	c := w.Container(id)
	if c == nil || c.State != pod.ContainerCreated {
		return false
	}
	if s := w.Sandbox(c.SandboxID); s == nil || !s.Ready {
		return false
	}
	c.State, c.StartedAt = pod.ContainerRunning, now
	w.lives[id].ran = true
	return true
}

// end ends a container that runs.
func (w *world) end(id string, code int32, oom bool, now time.Time) {
	c := w.Container(id)
	if c == nil || (c.State != pod.ContainerRunning && c.State != pod.ContainerUnknown) {
		return
	}
	c.State, c.ExitCode, c.FinishedAt = pod.ContainerExited, code, now
	if oom {
		c.Reason = "OOMKilled"
	}
	l := w.lives[id]
	l.exited, l.code, l.oom, l.finished = true, code, oom, now
	if l.well() {
		w.done[l.sandbox+"/"+l.name] = true
	}
}

// failStart leaves a container that never ran.
func (w *world) failStart(id string, now time.Time) {
	c := w.Container(id)
	if c == nil || c.State != pod.ContainerCreated {
		return
	}
	c.State, c.ExitCode, c.Reason, c.FinishedAt = pod.ContainerExited, 128, "StartError", now
	l := w.lives[id]
	l.exited, l.code, l.finished = true, 128, now
}

// stopSandbox ends a sandbox and what runs in it.
func (w *world) stopSandbox(id string, now time.Time) {
	s := w.Sandbox(id)
	if s == nil {
		return
	}
	s.Ready = false
	for _, c := range w.Running() {
		if c.SandboxID == id {
			w.end(c.ID, 137, false, now)
		}
	}
}

// remove removes a container, or a sandbox with its containers.
func (w *world) remove(id string) {
	w.Sandboxes = slices.DeleteFunc(slices.Clone(w.Sandboxes), func(s pod.Sandbox) bool { return s.ID == id })
	w.Containers = slices.DeleteFunc(slices.Clone(w.Containers), func(c pod.Container) bool { return c.ID == id || c.SandboxID == id })
}

// lose makes the runtime forget a container, or a sandbox with its containers; what ran has ended with that.
func (w *world) lose(id string, now time.Time) {
	for _, c := range w.Containers {
		if c.ID == id || c.SandboxID == id {
			w.lives[c.ID].lost = true
			if !w.lives[c.ID].exited {
				w.lives[c.ID].exited, w.lives[c.ID].code, w.lives[c.ID].finished = true, 137, now
			}
		}
	}
	w.remove(id)
}

// copyOf is what somebody sees who asks the runtime now.
func (w *world) copyOf(now time.Time) *pod.RuntimePod {
	return &pod.RuntimePod{Sandboxes: slices.Clone(w.Sandboxes), Containers: slices.Clone(w.Containers), ObservedAt: now}
}
