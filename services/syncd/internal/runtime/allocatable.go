package runtime

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/services/syncd/internal/cgroup"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// ResourcePIDs are the processes that a node has, in lists of resources.
const ResourcePIDs v1.ResourceName = "pid"

// Bound is a cgroup that gets limits of its own: one of the system's, or of Kubernetes' services.
type Bound struct {
	// Cgroup is named as the driver does, and must be there.
	Cgroup string
	Limits v1.ResourceList
}

// LimitAll limits the cgroup of all pods to what is allocatable, unless pods is false, and others as wanted. It may be called again.
func (e *Executor) LimitAll(ctx context.Context, pods bool, others []Bound) error {
	g, err := e.cgroups(ctx)
	if err != nil {
		return err
	}
	e.classes.Lock()
	defer e.classes.Unlock()
	tree := g.tree()
	if pods {
		e.all = limitsOf(e.cfg.Allocatable, g.HugePageSizes)
		if err := cgroup.Set(tree.All(), tree.Systemd, e.all); err != nil {
			return fmt.Errorf("limit all pods to what is allocatable: %w", err)
		}
		delete(e.set, tree.All())
		if err := e.share(g, ""); err != nil {
			return err
		}
	}
	for _, o := range others {
		if err := g.exists(o.Cgroup); err != nil {
			return fmt.Errorf("limit cgroup %s to what is reserved: %w", o.Cgroup, err)
		}
		if err := cgroup.Set(o.Cgroup, tree.Systemd, limitsOf(o.Limits, nil)); err != nil {
			return fmt.Errorf("limit cgroup %s to what is reserved: %w", o.Cgroup, err)
		}
	}
	return nil
}

// limitsOf are the limits of a cgroup that may use what a list of resources says: a share of the CPUs, and no more than so much of the others.
func limitsOf(list v1.ResourceList, pageSizes []string) cgroup.Limits {
	l := cgroup.Limits{CPUPeriod: plan.CPUPeriod, Memory: bytesOf(list, v1.ResourceMemory), Pids: bytesOf(list, ResourcePIDs)}
	if cpu, ok := list[v1.ResourceCPU]; ok {
		l.CPUShares = uint64(plan.CPUShares(cpu.MilliValue()))
	}
	for _, size := range pageSizes {
		if l.Hugepages == nil {
			l.Hugepages = make(map[string]uint64, len(pageSizes))
		}
		l.Hugepages[size] = hugepages(list, size)
	}
	return l
}
