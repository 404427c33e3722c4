package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"

	"github.com/podplane/podplane/internal/kubepods"
	"github.com/podplane/podplane/services/syncd/internal/cgroup"
	"github.com/podplane/podplane/services/syncd/internal/plan"
	"github.com/podplane/podplane/services/syncd/internal/status"
)

func (e *Executor) podLimits(p *v1.Pod) cgroup.Limits {
	l := podLimits(p, e.cfg.PidsLimit, e.cfg.Cgroups.HugePageSizes)
	if e.cfg.Memory.Reserve {
		requests := helpers.PodRequests(p, helpers.PodResourcesOptions{})
		hard, soft := e.cfg.Memory.reserved(status.QOSClass(p), requests.Memory().Value())
		l.MemoryMin, l.MemoryLow = &hard, &soft
	}
	return l
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
	if err := cgroup.Set(g.Parent(p), g.tree().Systemd, l); err != nil {
		return fmt.Errorf("limit pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return e.share(g, className(p))
}

// share gives the cgroup of a quality-of-service class, and the one of all pods, what follows from the pods in it. classes is held.
func (e *Executor) share(g Cgroups, class string) error {
	if class != "" {
		l := cgroup.Limits{CPUShares: uint64(plan.CPUShares(0)), CPUPeriod: plan.CPUPeriod}
		if class == kubepods.Burstable {
			sum, err := g.sumShares(class)
			if err != nil {
				return fmt.Errorf("add up the shares of class %s: %w", class, err)
			}
			l.CPUShares = uint64(max(plan.CPUShares(0), int64(min(sum, maxClassShares))))
		}
		if err := e.reserve(g, g.tree().Class(class), l); err != nil {
			return fmt.Errorf("weigh class %s: %w", class, err)
		}
	}
	if !e.cfg.Memory.Reserve || !g.Unified {
		return nil
	}
	all := e.all
	all.CPUPeriod = plan.CPUPeriod
	if err := e.reserve(g, g.tree().All(), all); err != nil {
		return fmt.Errorf("reserve the memory of all pods: %w", err)
	}
	return nil
}

// reserve sets the limits of a cgroup of many pods, and leaves it as much memory as they have, unless all that was so set last.
func (e *Executor) reserve(g Cgroups, name string, l cgroup.Limits) error {
	if e.cfg.Memory.Reserve && g.Unified {
		dir := filepath.Join(g.Mount, g.tree().Dir(name))
		for file, to := range map[string]**int64{cgroup.FileMemoryMin: &l.MemoryMin, cgroup.FileMemoryLow: &l.MemoryLow} {
			sum, err := cgroup.Sum(dir, file)
			if ignoreMissing(err) != nil {
				return err
			}
			bytes := int64(sum)
			*to = &bytes
		}
	}
	if last, ok := e.set[name]; ok && last.same(l) {
		return nil
	}
	if err := cgroup.Set(name, g.tree().Systemd, l); err != nil {
		return err
	}
	e.set[name] = settingsOf(l)
	return nil
}

// settings are limits that change with the pods, to be compared.
type settings struct {
	shares   uint64
	min, low int64
}

func settingsOf(l cgroup.Limits) settings {
	value := func(p *int64) int64 {
		if p == nil {
			return 0
		}
		return *p
	}
	return settings{l.CPUShares, value(l.MemoryMin), value(l.MemoryLow)}
}

func (s settings) same(l cgroup.Limits) bool { return s == settingsOf(l) }

// maxClassShares is the most that the kernel takes.
const maxClassShares = 262144

// className is the class by which the pod's cgroup is placed, "" for the Guaranteed one.
func className(p *v1.Pod) string {
	switch status.QOSClass(p) {
	case v1.PodQOSBurstable:
		return kubepods.Burstable
	case v1.PodQOSBestEffort:
		return kubepods.BestEffort
	}
	return ""
}

// sumShares adds up the shares of the pods of a class.
func (g Cgroups) sumShares(class string) (uint64, error) {
	dir := g.tree().Dir(g.tree().Class(class))
	if g.Unified {
		sum, err := cgroup.Sum(filepath.Join(g.Mount, dir), cgroup.FileWeight)
		return cgroup.Shares(sum), ignoreMissing(err)
	}
	sum, err := cgroup.Sum(filepath.Join(g.Mount, "cpu", dir), cgroup.FileShares)
	return sum, ignoreMissing(err)
}

// removePod removes the pod's cgroup, of whichever class it is, and takes from the class what the pod had in it.
func (e *Executor) removePod(g Cgroups, uid string) error {
	e.classes.Lock()
	defer e.classes.Unlock()
	var failed error
	for _, class := range classes {
		var err error
		there := false
		for _, dir := range g.dirs(class, uid) {
			_, missing := os.Stat(dir)
			there = there || missing == nil
			err = errors.Join(err, removeCgroup(dir))
		}
		if err == nil && g.tree().Systemd {
			// systemd keeps a slice without a cgroup, and would make that again.
			err = cgroup.Remove(g.tree().Pod(class, uid))
		}
		if err == nil && there {
			err = e.share(g, class)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

func ignoreMissing(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

// removeCgroup removes a cgroup and those below it. The files in it are the kernel's.
func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeCgroup(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return removeFile(dir)
}
