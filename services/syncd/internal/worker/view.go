package worker

import (
	"slices"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
)

// view is what a worker knows of its pod in the runtime: the last inspection, and what its own actions did since. States of containers only
// move forward, so of two observations the one that is further along is right.
type view struct {
	runtime pod.RuntimePod
	// touched holds, by ID, when an action of ours last saw or removed a thing: an inspection that began earlier does not take it back.
	touched map[string]time.Time
	removed map[string]time.Time
}

func newView() *view {
	return &view{touched: make(map[string]time.Time), removed: make(map[string]time.Time)}
}

var progress = map[pod.ContainerState]int{pod.ContainerCreated: 1, pod.ContainerRunning: 2, pod.ContainerUnknown: 2, pod.ContainerExited: 3}

// merge takes a complete inspection, or one in which the things of unknown could not be read: those are kept as they were.
func (v *view) merge(seen pod.RuntimePod, unknown map[string]bool) {
	old := v.runtime
	v.runtime = seen
	v.runtime.Sandboxes = slices.DeleteFunc(slices.Clone(seen.Sandboxes), func(s pod.Sandbox) bool { return v.removedSince(s.ID, seen.ObservedAt) })
	v.runtime.Containers = slices.DeleteFunc(slices.Clone(seen.Containers), func(c pod.Container) bool { return v.removedSince(c.ID, seen.ObservedAt) })
	for _, s := range old.Sandboxes {
		newer := v.touched[s.ID].After(seen.ObservedAt)
		if newer || unknown[s.ID] {
			v.putSandbox(s)
		}
	}
	for _, c := range old.Containers {
		now := v.runtime.Container(c.ID)
		switch {
		case now == nil && (v.touched[c.ID].After(seen.ObservedAt) || unknown[c.ID]):
			v.putContainer(c)
		case now != nil && (progress[c.State] > progress[now.State] || unknown[c.ID]):
			v.putContainer(c)
		}
	}
	v.prune(seen.ObservedAt)
	v.runtime.Sort()
}

func (v *view) removedSince(id string, at time.Time) bool {
	t, ok := v.removed[id]
	return ok && !t.Before(at)
}

// prune forgets what only mattered for inspections that began before this one.
func (v *view) prune(at time.Time) {
	for id, t := range v.removed {
		if t.Before(at) {
			delete(v.removed, id)
		}
	}
	for id := range v.touched {
		if v.runtime.Sandbox(id) == nil && v.runtime.Container(id) == nil {
			delete(v.touched, id)
		}
	}
}

func (v *view) putSandbox(s pod.Sandbox) {
	if have := v.runtime.Sandbox(s.ID); have != nil {
		*have = s
		return
	}
	v.runtime.Sandboxes = append(v.runtime.Sandboxes, s)
}

func (v *view) putContainer(c pod.Container) {
	if have := v.runtime.Container(c.ID); have != nil {
		*have = c
		return
	}
	v.runtime.Containers = append(v.runtime.Containers, c)
}

// sawSandbox takes what an action of ours saw.
func (v *view) sawSandbox(s pod.Sandbox, now time.Time) {
	v.touched[s.ID] = now
	v.putSandbox(s)
	v.runtime.Sort()
}

// sawContainer takes what an action of ours saw, unless more is known.
func (v *view) sawContainer(c pod.Container, now time.Time) {
	v.touched[c.ID] = now
	have := v.runtime.Container(c.ID)
	if have != nil && c.SandboxID == "" {
		c.SandboxID = have.SandboxID // a status does not say it
	}
	if have == nil || progress[have.State] <= progress[c.State] {
		v.putContainer(c)
	}
	v.runtime.Sort()
}

func (v *view) sandboxStopped(id string, now time.Time) {
	if s := v.runtime.Sandbox(id); s != nil {
		s.Ready = false
		v.touched[id] = now
	}
}

func (v *view) sandboxRemoved(id string, now time.Time) {
	v.removed[id] = now
	v.runtime.Sandboxes = slices.DeleteFunc(v.runtime.Sandboxes, func(s pod.Sandbox) bool { return s.ID == id })
	for _, c := range v.runtime.Containers {
		if c.SandboxID == id {
			v.removed[c.ID] = now
		}
	}
	v.runtime.Containers = slices.DeleteFunc(v.runtime.Containers, func(c pod.Container) bool { return c.SandboxID == id })
}

func (v *view) containerRemoved(id string, now time.Time) {
	v.removed[id] = now
	v.runtime.Containers = slices.DeleteFunc(v.runtime.Containers, func(c pod.Container) bool { return c.ID == id })
}

// agrees says whether a list of the runtime, which has no details, shows the same things in the same states.
func (v *view) agrees(listed *pod.RuntimePod) bool {
	if len(listed.Sandboxes) != len(v.runtime.Sandboxes) || len(listed.Containers) != len(v.runtime.Containers) {
		return false
	}
	for i := range listed.Sandboxes {
		have := v.runtime.Sandbox(listed.Sandboxes[i].ID)
		if have == nil || have.Ready != listed.Sandboxes[i].Ready {
			return false
		}
	}
	for i := range listed.Containers {
		have := v.runtime.Container(listed.Containers[i].ID)
		if have == nil || have.State != listed.Containers[i].State {
			return false
		}
	}
	return true
}

// knows says whether the view already shows what the hint is about.
func (v *view) knows(h Hint) bool {
	switch h.Type {
	case HintContainerCreated:
		return v.runtime.Container(h.ID) != nil || v.wasRemoved(h.ID)
	case HintContainerStarted:
		c := v.runtime.Container(h.ID)
		return (c != nil && progress[c.State] >= progress[pod.ContainerRunning]) || v.wasRemoved(h.ID)
	case HintContainerDied:
		c := v.runtime.Container(h.ID)
		return (c != nil && c.State == pod.ContainerExited) || v.wasRemoved(h.ID)
	case HintContainerRemoved:
		return v.runtime.Container(h.ID) == nil
	case HintSandboxStarted:
		return v.runtime.Sandbox(h.ID) != nil || v.wasRemoved(h.ID)
	case HintSandboxStopped:
		s := v.runtime.Sandbox(h.ID)
		return (s != nil && !s.Ready) || v.wasRemoved(h.ID)
	case HintSandboxRemoved:
		return v.runtime.Sandbox(h.ID) == nil
	}
	return false
}

func (v *view) wasRemoved(id string) bool {
	_, ok := v.removed[id]
	return ok
}

// failedTargets returns the IDs that an inspection could not read.
func failedTargets(e *cri.InspectError) map[string]bool {
	ids := make(map[string]bool, len(e.Failed))
	for _, err := range e.Failed {
		if call, ok := asCallError(err); ok {
			ids[call.Target] = true
		}
	}
	return ids
}
