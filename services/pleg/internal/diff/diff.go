package diff

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/podplane/podplane/internal/pod"
)

// ReasonStatusUnknown is the reason of a ContainerDied whose exit status was removed before anybody saw it.
const ReasonStatusUnknown = "ContainerStatusUnknown"

// Diff returns the events between what was said about the pod and what the observation shows, and the record with them
// said. Events that occurred before the horizon are taken as said before. again means that the observation left
// something open (an object that was seen while the observation was under way is not in it): look again.
func Diff(old Pod, obs Observation, horizon time.Time) (next Pod, events []Event, again bool) {
	d := &differ{obs: obs, horizon: horizon, next: Pod{Ref: old.Ref, Objects: maps.Clone(old.Objects)}}
	if d.next.Objects == nil {
		d.next.Objects = make(map[string]Object)
	}
	if obs.Pod.UID != "" {
		d.next.Ref = Ref{UID: obs.Pod.UID, Namespace: cmp.Or(obs.Pod.Namespace, old.Namespace), Name: cmp.Or(obs.Pod.Name, old.Name)}
	}
	// The runtime's order is newest first; events go oldest first.
	for i := len(obs.Pod.Sandboxes) - 1; i >= 0; i-- {
		d.sandbox(&obs.Pod.Sandboxes[i])
	}
	for i := len(obs.Pod.Containers) - 1; i >= 0; i-- {
		d.container(&obs.Pod.Containers[i])
	}
	if obs.RemovedID != "" {
		d.remove(obs.RemovedID, cmpTime(obs.RemovedAt, obs.At))
	}
	if obs.Complete {
		d.absent()
	}
	return d.next, d.finish(), d.again
}

// Behind says whether the record lacks something that a list of the pod shows: then its status is worth asking for.
func (p *Pod) Behind(listed *pod.RuntimePod) bool {
	seen := 0
	for i := range listed.Sandboxes {
		s := &listed.Sandboxes[i]
		switch o := p.Objects[s.ID]; {
		case o.Phase == PhaseNone || s.Ready && o.Phase < PhaseRunning || !s.Ready && o.Phase == PhaseRunning:
			return true
		case o.Phase != PhaseRemoved:
			seen++
		}
	}
	for i := range listed.Containers {
		c := &listed.Containers[i]
		o := p.Objects[c.ID]
		if o.Phase < containerPhase(c.State) || c.State == pod.ContainerUnknown && !o.Lost && o.Phase < PhaseExited {
			return true
		}
		if o.Phase == PhaseNone {
			return true
		}
		if o.Phase != PhaseRemoved {
			seen++
		}
	}
	live := 0
	for _, o := range p.Objects {
		if o.Phase != PhaseRemoved {
			live++
		}
	}
	return live > seen
}

// Live says whether the runtime has anything of the pod, as far as the record goes.
func (p *Pod) Live() bool {
	for _, o := range p.Objects {
		if o.Phase != PhaseRemoved {
			return true
		}
	}
	return false
}

// Forget drops what was removed and not seen since the time. It says whether anything is left.
func (p *Pod) Forget(before time.Time) bool {
	maps.DeleteFunc(p.Objects, func(_ string, o Object) bool { return o.Phase == PhaseRemoved && o.SeenAt.Before(before) })
	return len(p.Objects) > 0
}

type differ struct {
	obs     Observation
	horizon time.Time
	next    Pod
	events  []Event
	again   bool
}

func sandboxPhase(s *pod.Sandbox) Phase {
	if s.Ready {
		return PhaseRunning
	}
	return PhaseExited
}

func containerPhase(s pod.ContainerState) Phase {
	switch s {
	case pod.ContainerCreated:
		return PhaseCreated
	case pod.ContainerRunning:
		return PhaseRunning
	case pod.ContainerExited:
		return PhaseExited
	}
	return PhaseNone
}

func (d *differ) sandbox(s *pod.Sandbox) {
	o, known := d.next.Objects[s.ID]
	if o.Phase == PhaseRemoved {
		return
	}
	if !known {
		o = Object{ID: s.ID, SandboxID: s.ID, Attempt: s.Attempt, CreatedAt: s.CreatedAt, Traceparent: s.Annotations[pod.AnnotationTraceparent]}
	}
	d.seen(&o)
	to := sandboxPhase(s)
	// A sandbox that is first seen not ready was ready once if it got as far as an address or a container. Otherwise it
	// is being set up, or what a failed start left behind: nothing to say yet.
	if o.Phase < PhaseRunning && (to == PhaseRunning || len(s.IPs) > 0 || d.hasContainer(s.ID)) {
		o.Phase = PhaseRunning
		d.emit(SandboxStarted, o, s.CreatedAt)
	}
	if o.Phase < PhaseCreated {
		o.Phase = PhaseCreated
	}
	if o.Phase == PhaseRunning && to == PhaseExited {
		o.Phase = PhaseExited
		d.emit(SandboxStopped, o, time.Time{})
	}
	d.next.Objects[s.ID] = o
}

func (d *differ) hasContainer(sandboxID string) bool {
	for i := range d.obs.Pod.Containers {
		if d.obs.Pod.Containers[i].SandboxID == sandboxID {
			return true
		}
	}
	for _, o := range d.next.Objects {
		if o.SandboxID == sandboxID && o.ID != sandboxID {
			return true
		}
	}
	return false
}

func (d *differ) container(c *pod.Container) {
	o, known := d.next.Objects[c.ID]
	if o.Phase == PhaseRemoved {
		return
	}
	if !known {
		o = Object{
			ID: c.ID, Name: c.Name, SandboxID: c.SandboxID, Attempt: c.Attempt, CreatedAt: c.CreatedAt,
			Traceparent: c.Annotations[pod.AnnotationTraceparent],
		}
		if o.Traceparent == "" {
			o.Traceparent = d.sandboxTraceparent(c.SandboxID)
		}
	}
	d.seen(&o)
	if o.Phase < PhaseCreated {
		o.Phase = PhaseCreated
		d.emit(ContainerCreated, o, c.CreatedAt)
	}
	if o.Phase < PhaseRunning && (c.State == pod.ContainerRunning || !c.StartedAt.IsZero()) {
		o.Phase = PhaseRunning
		d.emit(ContainerStarted, o, c.StartedAt)
	}
	if o.Phase < PhaseExited && c.State == pod.ContainerExited {
		o.Phase, o.ExitCode = PhaseExited, c.ExitCode
		e := d.emit(ContainerDied, o, c.FinishedAt)
		e.ExitKnown, e.Reason, e.Message = true, c.Reason, c.Message
	}
	if o.Phase < PhaseExited && c.State == pod.ContainerUnknown && !o.Lost {
		o.Lost = true
		e := d.emit(ContainerChanged, o, time.Time{})
		e.Reason, e.Message = c.Reason, c.Message
	}
	d.next.Objects[c.ID] = o
}

func (d *differ) sandboxTraceparent(id string) string {
	if s := d.obs.Pod.Sandbox(id); s != nil {
		return s.Annotations[pod.AnnotationTraceparent]
	}
	return d.next.Objects[id].Traceparent
}

func (d *differ) seen(o *Object) {
	if o.SeenAt.Before(d.obs.At) {
		o.SeenAt = d.obs.At
	}
}

// remove moves an object to its end, saying what it must have gone through.
func (d *differ) remove(id string, at time.Time) {
	o, ok := d.next.Objects[id]
	if !ok || o.Phase == PhaseRemoved {
		return
	}
	d.seen(&o)
	if o.Phase == PhaseRunning {
		o.Phase = PhaseExited
		if o.IsSandbox() {
			d.emit(SandboxStopped, o, at)
		} else {
			o.ExitCode = -1
			e := d.emit(ContainerDied, o, at)
			e.Reason, e.Message = ReasonStatusUnknown, "the container was removed before its exit status was seen"
		}
	}
	o.Phase = PhaseRemoved
	if o.IsSandbox() {
		d.emit(SandboxRemoved, o, at)
	} else {
		d.emit(ContainerRemoved, o, at)
	}
	d.next.Objects[id] = o
}

// absent removes what a complete observation does not show: containers first, then sandboxes, oldest first.
func (d *differ) absent() {
	present := make(map[string]bool, len(d.obs.Pod.Sandboxes)+len(d.obs.Pod.Containers))
	for i := range d.obs.Pod.Sandboxes {
		present[d.obs.Pod.Sandboxes[i].ID] = true
	}
	for i := range d.obs.Pod.Containers {
		present[d.obs.Pod.Containers[i].ID] = true
	}
	var gone []Object
	for id, o := range d.next.Objects {
		if present[id] || o.Phase == PhaseRemoved {
			continue
		}
		if !o.SeenAt.Before(d.obs.Pod.ObservedAt) {
			d.again = true
			continue
		}
		gone = append(gone, o)
	}
	slices.SortFunc(gone, func(a, b Object) int {
		if a.IsSandbox() != b.IsSandbox() {
			if a.IsSandbox() {
				return 1
			}
			return -1
		}
		return oldestFirst(a, b)
	})
	for i := range gone {
		d.remove(gone[i].ID, d.obs.At)
	}
}

func oldestFirst(a, b Object) int {
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Attempt, b.Attempt), strings.Compare(a.ID, b.ID))
}

func (d *differ) emit(t Type, o Object, at time.Time) *Event {
	d.events = append(d.events, Event{
		ID: EventID(o.ID, t), Type: t, Pod: d.next.Ref, Object: o, OccurredAt: cmpTime(at, d.obs.At), ObservedAt: d.obs.At, Via: d.obs.Via,
	})
	return &d.events[len(d.events)-1]
}

func cmpTime(t, otherwise time.Time) time.Time {
	if t.IsZero() {
		return otherwise
	}
	return t
}

// finish puts the events into the order in which they happened, keeping each object's own order, drops those from
// before the horizon, and attaches the pod's containers.
func (d *differ) finish() []Event {
	if len(d.events) == 0 {
		return nil
	}
	last := make(map[string]time.Time)
	keys := make([]time.Time, len(d.events))
	order := make([]int, len(d.events))
	for i := range d.events {
		e := &d.events[i]
		key := e.OccurredAt
		if l := last[e.Object.ID]; key.Before(l) {
			key = l
		}
		last[e.Object.ID], keys[i], order[i] = key, key, i
	}
	slices.SortStableFunc(order, func(a, b int) int { return keys[a].Compare(keys[b]) })
	containers := d.next.Containers()
	sorted := make([]Event, 0, len(d.events))
	for _, i := range order {
		e := d.events[i]
		if e.OccurredAt.Before(d.horizon) {
			continue
		}
		e.Containers = containers
		sorted = append(sorted, e)
	}
	return sorted
}

// Containers returns the containers that are not removed, the oldest first.
func (p *Pod) Containers() []Object {
	var list []Object
	for _, o := range p.Objects {
		if !o.IsSandbox() && o.Phase != PhaseRemoved {
			list = append(list, o)
		}
	}
	slices.SortFunc(list, oldestFirst)
	return list
}
