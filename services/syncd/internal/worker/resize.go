package worker

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/internal/telemetry"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// resizeRetry is how often it is looked again whether there is room for a deferred resize.
const resizeRetry = 30 * time.Second

// desire takes a new form of the pod. What it asks for is given to it when the node has room; until then the worker works with what it had.
func (w *worker) desire(p *v1.Pod) {
	w.desired = p
	if w.allocated == nil {
		w.allocated = plan.Restore(p, w.previous)
		// What was allocated before may not have been given to the containers.
		w.resize.Due = w.previous != nil && p.Generation > 1
	}
	w.allocate()
}

// allocate decides about a change of the resources and returns when to do so again.
func (w *worker) allocate() time.Time {
	wanted := plan.Allocate(w.desired)
	switch {
	case w.allocated.Equal(wanted):
		if w.resize.Pending != "" { // it asks no more, and keeps no room for what it asked for
			w.m.resizes.gave(w.desired)
		}
		w.resize.Pending, w.resize.Message = "", ""
	case w.phase != plan.Syncing:
	case w.allocated.Increases(wanted):
		reason, why := w.m.resizes.ask(w.desired, w.m.deps.Now(), w.nudge)
		if reason == "" {
			w.resizeTo(wanted)
			break
		}
		if w.resize.Pending != reason {
			w.pod = w.allocated.With(w.desired)
			w.event("", v1.EventTypeWarning, resizeEvent(reason), why)
		}
		w.resize.Pending, w.resize.Message = reason, why
	default:
		w.resizeTo(wanted)
		w.m.resizes.gave(w.desired)
	}
	w.pod = w.allocated.With(w.desired)
	if w.resize.Pending == "" {
		return time.Time{}
	}
	return w.m.deps.Now().Add(resizeRetry)
}

// nudge makes the worker look again.
func (w *worker) nudge() { w.post(func(*news) {}) }

func (w *worker) resizeTo(wanted plan.Allocation) {
	w.allocated = wanted
	w.resize = plan.ResizeState{Due: true}
	w.pod = w.desired
	w.event("", v1.EventTypeNormal, "ResizeStarted", "Pod resize started")
}

func (w *worker) resizePod() func(context.Context) func(*worker) {
	w.busy.Resize = true
	p, given := w.pod, w.allocated
	var running []pod.Container
	for _, c := range w.view.runtime.Running() {
		running = append(running, *c)
	}
	return func(ctx context.Context) func(*worker) {
		err := w.m.deps.Resizer.Resize(ctx, p, running)
		telemetry.Fail(ctx, err)
		var seen []pod.Container
		for i := range running {
			if c, seenErr := w.m.deps.Observer.ContainerStatus(ctx, running[i].ID); seenErr == nil {
				c.SandboxID = running[i].SandboxID // a status does not say it
				seen = append(seen, c)
			}
		}
		now := w.m.deps.Now()
		return func(w *worker) {
			w.busy.Resize = false
			for _, c := range seen {
				w.view.sawContainer(c, now)
			}
			w.resized(given, err)
		}
	}
}

func (w *worker) resized(given plan.Allocation, err error) {
	switch {
	case errors.Is(err, context.Canceled):
	case err != nil:
		w.resize.Failure = w.failed(w.resize.Failure, "", err)
		w.event("", v1.EventTypeWarning, "ResizeError", "Error resizing pod: "+err.Error())
	case given.Equal(w.allocated) && !w.awaitsRestart():
		if w.resize.Due && w.desired.Generation > 1 {
			w.event("", v1.EventTypeNormal, "ResizeCompleted", "Pod resize completed")
		}
		w.resize = plan.ResizeState{Pending: w.resize.Pending, Message: w.resize.Message}
	default:
		// Containers have yet to be restarted with their new resources; that is looked at again soon, or when they have ended.
		w.resize.Failure = plan.Failure{NotBefore: w.m.deps.Now().Add(time.Second)}
	}
}

// awaitsRestart says whether a container still has to be restarted to get its resources.
func (w *worker) awaitsRestart() bool {
	for _, c := range w.view.runtime.Running() {
		if spec := pod.FindContainer(w.pod, c.Name); spec != nil && plan.ResizeRestarts(w.pod, spec, c) {
			return true
		}
	}
	return false
}

// target is the running container whose processes an ephemeral container is to see.
func (w *worker) target(name string) string {
	for i := range w.pod.Spec.EphemeralContainers {
		e := &w.pod.Spec.EphemeralContainers[i]
		if e.Name != name || e.TargetContainerName == "" {
			continue
		}
		if c := w.view.runtime.Newest(e.TargetContainerName); c != nil && c.State == pod.ContainerRunning {
			return c.ID
		}
	}
	return ""
}
