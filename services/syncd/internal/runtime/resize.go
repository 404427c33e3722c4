package runtime

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/cgroup"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// Resize gives the pod's cgroup and its running containers the resources that the pod has. The pod's cgroup grows before its
// containers and shrinks after them, and those that give something back come before those that take.
func (e *Executor) Resize(ctx context.Context, p *v1.Pod, running []pod.Container) error {
	type change struct {
		id   string
		to   *pod.LinuxResources
		more bool
	}
	g, err := e.cgroups(ctx)
	if err != nil {
		return err
	}
	var changes []change
	roomy := e.podLimits(p)
	for i := range running {
		c := &running[i]
		spec := pod.FindContainer(p, c.Name)
		if spec == nil || c.Resources == nil {
			continue
		}
		was, to := c.Resources, e.resources(p, spec, g)
		if roomy.Memory > 0 {
			roomy.Memory = grown(roomy.Memory, was.MemoryLimitBytes, to.MemoryLimitBytes)
		}
		if roomy.CPUQuota > 0 {
			roomy.CPUQuota = grown(roomy.CPUQuota, was.CPUQuota, to.CPUQuota)
		}
		if cpu, memory := plan.Resized(p, spec, c); (!cpu && !memory) || plan.ResizeRestarts(p, spec, c) {
			continue
		}
		changes = append(changes, change{id: c.ID, to: to, more: to.MemoryLimitBytes > was.MemoryLimitBytes || to.CPUShares > was.CPUShares})
	}
	if err := e.limitPod(ctx, p, roomy); err != nil {
		return err
	}
	slices.SortStableFunc(changes, func(a, b change) int {
		switch {
		case a.more == b.more:
			return 0
		case b.more:
			return -1
		}
		return 1
	})
	for _, c := range changes {
		if c.to.MemoryLimitBytes == 0 {
			c.to.MemoryLimitBytes = -1
		}
		if c.to.CPUQuota == 0 {
			c.to.CPUQuota = -1
		}
		err := e.cri.UpdateContainerResources(ctx, c.id, c.to)
		if err != nil && !fault.Is(err, fault.NotFound) {
			return fmt.Errorf("resize container %s: %w", c.id, err)
		}
	}
	if limits := e.podLimits(p); !sameLimits(limits, roomy) {
		return e.limitPod(ctx, p, limits)
	}
	return nil
}

// grown is the pod's limit with what one container has now above what it will have.
func grown(pod, was, will int64) int64 { return pod + max(0, was-will) }

func sameLimits(a, b cgroup.Limits) bool { return a.Memory == b.Memory && a.CPUQuota == b.CPUQuota }
