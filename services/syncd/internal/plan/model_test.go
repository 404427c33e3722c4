package plan_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/plan"
	"github.com/podplane/podplane/services/syncd/internal/status"
)

// model is a worker and its world, driven step by step: actions take effect after a while, in parts, in any order, or fail; things happen that nobody ordered; the
// process is replaced. in is all that the worker knows, world what is true. After each step it checks what must always hold.
type model struct {
	rand  *rand.Rand
	in    plan.Input
	world *world

	pending []*operation
	ghosts  []*operation // of processes that are gone: the runtime goes on with them
	down    bool         // the runtime does not answer
	gone    bool         // the record is removed

	// stored and storedPhase are what was published last and survives the process.
	stored      *v1.PodStatus
	storedPhase plan.Phase
	storedStop  *plan.Stop
	first       time.Time

	asked map[string]asked // by container ID: the last kill
	// terminal: a status that said Succeeded or Failed was stored.
	terminal bool
	// renewed is when a container last got another image.
	renewed map[string]time.Time
	evictAt time.Time
	// endedAt is when it was decided that the pod is to end, zero while it goes on; endedOn are the containers whose end was known then.
	endedAt time.Time
	endedOn map[string]bool

	steps   int
	verbose bool
	log     []string
}

// asked is what a container was last asked to end with.
type asked struct {
	grace time.Duration
	end   time.Time
}

// operation is an action under way.
type operation struct {
	plan.Action
	end   time.Time // of a kill
	ref   string    // of an image
	id    string    // of the container or sandbox that it made
	spec  *v1.Container
	owed  time.Duration // the back-off that is due when the container ends that is started
	begun time.Time
	given plan.Allocation
	// ghost: its process is gone, since left.
	ghost bool
	left  time.Time
}

// violation is what a history ends with that broke a law.
type violation string

var modelStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newModel(r *rand.Rand, p *v1.Pod) *model {
	m := &model{rand: r, world: newWorld(), first: modelStart, asked: make(map[string]asked), renewed: make(map[string]time.Time)}
	m.in = plan.Input{Pod: p, Now: modelStart, Volumes: plan.Volumes{Ready: r.IntN(2) == 0}, MaxRestartDelay: pick(r, 0, 0, 0, time.Second, 15*time.Second, time.Minute)}
	m.forget()
	m.in.Stale = false // the pod is new: nothing of it can be there
	return m
}

// forget is what the end of a process does to what it only had in memory.
func (m *model) forget() {
	in := &m.in
	in.Runtime, in.Stale, in.RuntimeError = &pod.RuntimePod{}, true, ""
	in.Busy = plan.Busy{Containers: map[string]bool{}, Images: map[string]bool{}, Kills: map[string]time.Time{}, Removals: map[string]bool{}}
	in.Images, in.Failures, in.EndFailures = map[string]plan.Image{}, map[string]plan.Failure{}, map[string]plan.Failure{}
	in.SandboxFailure, in.Probes = plan.Failure{}, map[plan.ProbeKey]plan.Verdict{}
	in.Killed, in.StartFailed, in.HookFailed = map[string]bool{}, map[string]bool{}, map[string]bool{}
	in.Resize, in.Cleaned = plan.ResizeState{}, false
}

func (m *model) logf(format string, args ...any) {
	if m.verbose {
		m.log = append(m.log, m.in.Now.Sub(modelStart).String()+" "+fmt.Sprintf(format, args...))
	}
}

func (m *model) fail(format string, args ...any) { panic(violation(fmt.Sprintf(format, args...))) }

// step decides once, begins the actions and publishes, as the worker does.
func (m *model) step() plan.Plan {
	m.steps++
	p := plan.Next(m.in)
	m.checkPlan(&p)
	if m.rand.IntN(24) == 0 {
		m.checkPure(&p)
	}
	if p.Phase != plan.Syncing && m.in.Phase == plan.Syncing {
		m.endedAt, m.endedOn = m.in.Now, make(map[string]bool)
		for _, c := range m.in.Runtime.Containers {
			m.endedOn[c.ID] = c.State == pod.ContainerExited
		}
	}
	in := m.in
	m.in.Phase, m.in.Stop = p.Phase, p.Stop
	for i := range p.Actions {
		m.begin(&p, p.Actions[i])
	}
	if len(p.Actions) > 0 {
		in = m.in
		again := plan.Next(in)
		m.checkNoRepeat(&again)
		p.Waits, p.Again = again.Waits, again.Again
		m.publish(in, again)
	} else {
		m.publish(in, p)
	}
	m.checkWorld()
	return p
}

// begin marks what the action is about as busy.
func (m *model) begin(p *plan.Plan, a plan.Action) {
	m.logf("begin %s", a)
	m.checkAction(p, &a)
	op := &operation{Action: a, begun: m.in.Now}
	busy := &m.in.Busy
	switch a.Kind {
	case plan.CreateSandbox:
		busy.Sandbox = true
	case plan.EnsureImage:
		op.ref, _, _ = plan.ImageOf(m.in.Pod, a.ImageKey())
		busy.Images[a.ImageKey()] = true
	case plan.StartContainer:
		busy.Containers[a.Container] = true
		op.id, op.spec = a.ID, pod.FindContainer(m.in.Pod, a.Container)
		_, op.owed, _ = m.series(op.spec)
	case plan.KillContainer:
		op.end = m.in.Now.Add(a.Grace)
		busy.Kills[a.ID] = op.end
		if a.Restart {
			m.in.Killed[a.ID] = true
			m.world.lives[a.ID].killed = true
		}
	case plan.StopSandbox, plan.RemoveSandbox, plan.RemoveContainer:
		busy.Removals[a.ID] = true
	case plan.Resize:
		busy.Resize = true
		op.given = plan.Allocate(m.in.Pod)
	case plan.Cleanup, plan.RemoveRecord:
		busy.Cleanup = true
	}
	m.pending = append(m.pending, op)
}

// publish makes the status, unless the pod was not observed completely, and perhaps stores it at once.
func (m *model) publish(in plan.Input, p plan.Plan) {
	if in.Stale && in.Previous != nil {
		m.in.Previous = status.Unobserved(in.Previous, p.Stop)
		return
	}
	s := status.Make(status.Input{Input: in, Plan: p, RuntimeName: "test", FirstSeen: m.first, HostIPs: []string{"192.0.2.1"}})
	m.checkStatus(&in, &p, &s)
	m.in.Previous = &s
	if m.rand.IntN(4) > 0 {
		m.store()
	}
}

// store is when the status reaches the bus.
func (m *model) store() {
	m.stored, m.storedPhase, m.storedStop = m.in.Previous, m.in.Phase, m.in.Stop
	if m.stored == nil {
		return
	}
	if m.stored.Phase == v1.PodSucceeded || m.stored.Phase == v1.PodFailed {
		m.terminal = true
	}
	for _, list := range [][]v1.ContainerStatus{m.stored.InitContainerStatuses, m.stored.ContainerStatuses} {
		for i := range list {
			for _, t := range []*v1.ContainerStateTerminated{list[i].State.Terminated, list[i].LastTerminationState.Terminated} {
				if t == nil || len(t.ContainerID) < len("test://") {
					continue
				}
				if l := m.world.lives[t.ContainerID[len("test://"):]]; l != nil {
					l.shown = true
				}
			}
		}
	}
}

// replace ends the process and begins another one, which has what was stored.
func (m *model) replace() {
	m.logf("the process is replaced")
	for _, op := range m.pending {
		op.ghost, op.left = true, m.in.Now
		switch m.rand.IntN(4) {
		case 0:
			m.effect(op, true)
		case 1:
			m.effect(op, false)
		case 2:
			m.ghosts = append(m.ghosts, op)
		}
	}
	m.pending = nil
	m.forget()
	if m.in.Stop != nil && (m.storedStop == nil || *m.in.Stop != *m.storedStop) {
		m.evictAt, m.asked = time.Time{}, make(map[string]asked) // nobody knows of it any more
	}
	m.in.Previous, m.in.Phase, m.in.Stop = nil, plan.Syncing, nil
	m.first = m.in.Now
	m.in.Resize.Due = m.stored != nil
	if m.stored != nil {
		m.in.Previous, m.in.Phase = m.stored, m.storedPhase
		if m.rand.IntN(4) == 0 {
			m.in.Previous = reencode(m.stored) // always so in earnest, but it takes long
		}
	}
	if m.in.Phase == plan.Syncing {
		m.endedAt = time.Time{}
		return
	}
	s := &plan.Stop{Cause: plan.CauseCompleted, Reason: m.stored.Reason, Message: m.stored.Message, Deadline: m.storedStop.Deadline}
	switch m.stored.Reason {
	case plan.ReasonEvicted:
		s.Cause = plan.CauseEviction
	case plan.ReasonDeadlineExceeded:
		s.Cause = plan.CauseDeadline
	}
	m.in.Stop = s
}

// reencode is a status as it comes back from where it is stored.
func reencode(s *v1.PodStatus) *v1.PodStatus {
	raw, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	back := new(v1.PodStatus)
	if err := json.Unmarshal(raw, back); err != nil {
		panic(err)
	}
	return back
}

func graceOf(p *v1.Pod) time.Duration {
	return time.Duration(*p.Spec.TerminationGracePeriodSeconds) * time.Second
}

// inspect asks the runtime for everything about the pod.
func (m *model) inspect() {
	if m.down {
		if m.in.RuntimeError == "" {
			m.in.RuntimeErrorSince = m.in.Now
		}
		m.in.RuntimeError = "it does not answer"
		return
	}
	if m.in.Stale && (m.in.Busy.Sandbox || len(m.in.Busy.Containers) > 0) {
		return // what is being made could be missing
	}
	m.in.RuntimeError, m.in.Stale = "", false
	m.in.Runtime = m.world.copyOf(m.in.Now)
	gone := func(id string, _ bool) bool { return m.in.Runtime.Container(id) == nil }
	maps.DeleteFunc(m.in.Killed, gone)
	maps.DeleteFunc(m.in.HookFailed, gone)
	maps.DeleteFunc(m.in.StartFailed, gone)
}

// saw takes over how a container, or a sandbox, is now.
func (m *model) saw(id string) {
	rp := m.in.Runtime
	if c := m.world.Container(id); c != nil {
		if have := rp.Container(id); have != nil {
			*have = *c
		} else {
			rp.Containers = append(rp.Containers, *c)
		}
	} else if s := m.world.Sandbox(id); s != nil {
		if have := rp.Sandbox(id); have != nil {
			*have = *s
		} else {
			rp.Sandboxes = append(rp.Sandboxes, *s)
		}
	} else {
		m.unsee(id)
	}
	rp.Sort()
}

// unsee forgets what is gone.
func (m *model) unsee(id string) {
	rp := m.in.Runtime
	rp.Sandboxes = slices.DeleteFunc(rp.Sandboxes, func(s pod.Sandbox) bool { return s.ID == id })
	rp.Containers = slices.DeleteFunc(rp.Containers, func(c pod.Container) bool { return c.ID == id || c.SandboxID == id })
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }
