package runtime

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/services/syncd/internal/cgroup"
	"github.com/podplane/podplane/services/syncd/internal/plan"
	"github.com/podplane/podplane/services/syncd/internal/status"
)

func (e *Executor) podLimits(p *v1.Pod) cgroup.Limits {
	return podLimits(p, e.cfg.PidsLimit, e.cfg.Cgroups.HugePageSizes)
}

// podLimits are those of the pod's own cgroup: the sums of its containers', limited only where each of them is, or those that the pod has as a whole.
func podLimits(p *v1.Pod, pids int64, pageSizes []string) cgroup.Limits {
	l := cgroup.Limits{CPUPeriod: plan.CPUPeriod, Pids: pids}
	cpuLimited, memoryLimited := true, true
	requests := helpers.PodRequests(p, helpers.PodResourcesOptions{})
	limits := helpers.PodLimits(p, helpers.PodResourcesOptions{ContainerFn: func(r v1.ResourceList, _ helpers.ContainerType) {
		cpuLimited = cpuLimited && !r.Cpu().IsZero()
		memoryLimited = memoryLimited && !r.Memory().IsZero()
	}})
	if r := p.Spec.Resources; r != nil {
		cpuLimited = cpuLimited || !r.Limits.Cpu().IsZero()
		memoryLimited = memoryLimited || !r.Limits.Memory().IsZero()
	}
	for _, size := range pageSizes {
		if l.Hugepages == nil {
			l.Hugepages = make(map[string]uint64, len(pageSizes))
		}
		l.Hugepages[size] = hugepages(requests, size)
	}
	l.CPUShares = uint64(plan.CPUShares(requests.Cpu().MilliValue()))
	switch status.QOSClass(p) {
	case v1.PodQOSBestEffort:
		l.CPUShares = uint64(plan.CPUShares(0))
		return l
	case v1.PodQOSGuaranteed:
		cpuLimited, memoryLimited = true, true
	}
	if cpuLimited {
		l.CPUQuota = plan.CPUQuota(limits.Cpu().MilliValue())
	}
	if memoryLimited {
		l.Memory = limits.Memory().Value()
	}
	return l
}

// hugepages is the amount of huge pages of a size in a list of resources.
func hugepages(list v1.ResourceList, size string) uint64 {
	for name, q := range list {
		page, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix)
		if !ok {
			continue
		}
		want, err := resource.ParseQuantity(page)
		have, haveErr := resource.ParseQuantity(strings.TrimSuffix(size, "B") + "i")
		if err == nil && haveErr == nil && want.Cmp(have) == 0 {
			return uint64(max(q.Value(), 0))
		}
	}
	return 0
}

// limitPod makes the pod's cgroup where it is not there and sets its limits.
func (e *Executor) limitPod(ctx context.Context, p *v1.Pod, l cgroup.Limits) error {
	g, err := e.cgroups(ctx)
	if err != nil {
		return err
	}
	e.classes.Lock()
	defer e.classes.Unlock()
	systemd := g.Driver == cri.CgroupDriverSystemd
	if err := cgroup.Set(g.Parent(p), systemd, l); err != nil {
		return fmt.Errorf("limit pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return e.weighClass(g, status.QOSClass(p))
}

// weighClass gives the cgroup of a quality-of-service class the weight of its pods. classes is held.
func (e *Executor) weighClass(g Cgroups, class v1.PodQOSClass) error {
	name := classCgroup(class)
	if name == "" {
		return nil
	}
	l := cgroup.Limits{CPUShares: uint64(plan.CPUShares(0)), CPUPeriod: plan.CPUPeriod}
	if class == v1.PodQOSBurstable {
		sum, err := g.sumShares(name)
		if err != nil {
			return fmt.Errorf("add up the shares of class %s: %w", name, err)
		}
		l.CPUShares = uint64(max(plan.CPUShares(0), int64(min(sum, maxClassShares))))
	}
	if e.weights[name] == l.CPUShares {
		return nil
	}
	systemd := g.Driver == cri.CgroupDriverSystemd
	if err := cgroup.Set(g.join("", name), systemd, l); err != nil {
		return fmt.Errorf("weigh class %s: %w", name, err)
	}
	e.weights[name] = l.CPUShares
	return nil
}

// maxClassShares is the most that the kernel takes.
const maxClassShares = 262144

func classCgroup(class v1.PodQOSClass) string {
	switch class {
	case v1.PodQOSBurstable:
		return "burstable"
	case v1.PodQOSBestEffort:
		return "besteffort"
	}
	return ""
}

// sumShares adds up the shares of the pods of a class.
func (g Cgroups) sumShares(class string) (uint64, error) {
	dir, file := g.join("", class), "cpu.shares"
	if g.Driver == cri.CgroupDriverSystemd {
		dir = slicePath(dir)
	}
	if g.Unified {
		file = "cpu.weight"
		sum, err := cgroup.SumShares(filepath.Join(g.Mount, dir), file)
		return cgroup.Shares(sum), ignoreMissing(err)
	}
	sum, err := cgroup.SumShares(filepath.Join(g.Mount, "cpu", dir), file)
	return sum, ignoreMissing(err)
}

func ignoreMissing(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}
