package plan

import (
	"fmt"
	"time"

	"github.com/podplane/podplane/internal/pod"
)

// finished says whether nothing is left to run, and why.
func (in *Input) finished() (bool, *Stop) {
	if len(in.Busy.Containers) > 0 {
		return false, nil
	}
	stop := &Stop{Cause: CauseCompleted, Deadline: in.Now.Add(specGrace(in.Pod))}
	if in.lostForGood() {
		return true, stop
	}
	current := in.Runtime.NewestSandbox()
	for i := range in.Pod.Spec.InitContainers {
		c := &in.Pod.Spec.InitContainers[i]
		newest := in.Newest(c.Name)
		if newest == nil || IsSidecar(c) || newest.State != pod.ContainerExited {
			continue
		}
		if v, _ := in.judge(c, newest, current); v == failed {
			stop.Cause = CauseInitFailed
			return true, stop
		}
	}
	for i := range in.Pod.Spec.Containers {
		c := &in.Pod.Spec.Containers[i]
		newest := in.Newest(c.Name)
		if newest == nil || newest.State != pod.ContainerExited {
			return false, nil
		}
		if v, _ := in.judge(c, newest, current); v == startNow || v == startSoon {
			return false, nil
		}
	}
	return true, stop
}

// lostForGood says whether the pod's sandbox is gone and its policy forbids to begin again.
func (in *Input) lostForGood() bool {
	s := in.Runtime.NewestSandbox()
	if !in.neverRestarts() || s == nil || usable(in, s) || len(in.Runtime.Containers) == 0 {
		return false
	}
	for i := range in.Runtime.Containers {
		if c := &in.Runtime.Containers[i]; c.State == pod.ContainerRunning || c.State == pod.ContainerUnknown {
			return false
		}
	}
	return true
}

// terminate works towards a pod without running containers. It returns true when there are none and none can appear.
func (p *Plan) terminate(in *Input) bool {
	alive := p.killAll(in)
	if alive || len(in.Busy.Containers) > 0 || in.Busy.Sandbox || len(in.Busy.Kills) > 0 {
		p.waitForEnd(in)
		return false
	}
	clear := true
	for i := range in.Runtime.Sandboxes {
		s := &in.Runtime.Sandboxes[i]
		if !s.Ready {
			continue
		}
		clear = false
		if !in.Busy.Removals[s.ID] && !p.heldBack(in, s.ID, "sandbox "+s.ID) {
			p.do(Action{Kind: StopSandbox, ID: s.ID})
		}
	}
	return clear
}

// killAll plans the end of all running containers: regular and init containers at once, then the sidecars in reverse order. It returns
// whether any is alive.
func (p *Plan) killAll(in *Input) bool {
	alive := false
	for i := range in.Runtime.Containers {
		c := &in.Runtime.Containers[i]
		if !isAlive(c) || in.sidecar(c.Name) >= 0 {
			continue
		}
		alive = true
		p.stopContainer(in, c)
	}
	if alive && !p.Stop.NoGrace {
		return true
	}
	last := -1
	for i := range in.Runtime.Containers {
		if c := &in.Runtime.Containers[i]; isAlive(c) {
			last = max(last, in.sidecar(c.Name))
		}
	}
	for i := range in.Runtime.Containers {
		c := &in.Runtime.Containers[i]
		if order := in.sidecar(c.Name); isAlive(c) && order >= 0 && (order == last || p.Stop.NoGrace) {
			alive = true
			p.stopContainer(in, c)
		}
	}
	return alive
}

func isAlive(c *pod.Container) bool {
	return c.State == pod.ContainerRunning || c.State == pod.ContainerUnknown
}

// sidecar returns the place of a sidecar among the init containers, -1 for other containers.
func (in *Input) sidecar(name string) int {
	for i := range in.Pod.Spec.InitContainers {
		if c := &in.Pod.Spec.InitContainers[i]; c.Name == name && IsSidecar(c) {
			return i
		}
	}
	return -1
}

func (p *Plan) stopContainer(in *Input, c *pod.Container) {
	p.kill(in, c, p.Stop.Deadline, p.Stop.NoGrace, "Killing", fmt.Sprintf("Stopping container %s", c.Name))
}

// waitForEnd says that containers are being stopped, until when at the latest.
func (p *Plan) waitForEnd(in *Input) {
	for id, end := range in.Busy.Kills {
		name := id
		if c := in.Runtime.Container(id); c != nil {
			name = c.Name
		}
		p.Waits = append(p.Waits, Wait{
			Step: StepDeletion, Resource: name, Message: fmt.Sprintf("container %s has until %s to stop", name, end.UTC().Format(time.RFC3339)),
		})
	}
}

// cleanup removes what is left of a terminated pod; of one that is to go, everything.
func (p *Plan) cleanup(in *Input) {
	if p.Stop == nil || p.Stop.Cause != CauseDeletion {
		return
	}
	if in.hasVolumes() && !in.Volumes.Gone {
		p.wait(Wait{Step: StepVolumes, Resource: in.Volumes.Resource, Message: in.Volumes.Message, Since: in.Volumes.Since})
		return
	}
	if in.Busy.Cleanup {
		return
	}
	for i := range in.Runtime.Sandboxes {
		if s := &in.Runtime.Sandboxes[i]; !in.Busy.Removals[s.ID] && !p.heldBack(in, s.ID, "sandbox "+s.ID) {
			p.do(Action{Kind: RemoveSandbox, ID: s.ID})
		}
	}
	if len(in.Runtime.Sandboxes) > 0 || len(in.Busy.Removals) > 0 {
		return
	}
	switch {
	case !in.Cleaned && !p.heldBack(in, EndCleanup, "directories"):
		p.do(Action{Kind: Cleanup})
	case in.Cleaned && !p.heldBack(in, EndRecord, "record"):
		p.do(Action{Kind: RemoveRecord})
	}
}
