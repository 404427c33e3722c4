package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/kubepods"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/cgroup"
	"github.com/podplane/podplane/services/syncd/internal/plan"
	"github.com/podplane/podplane/services/syncd/internal/status"
)

const (
	oomGuaranteed = -997
	oomBestEffort = 1000
	oomBurstable  = 999
	oomFloor      = 3
)

// resources turns requests and limits into cgroup settings.
func (e *Executor) resources(p *v1.Pod, c *v1.Container, g Cgroups) *pod.LinuxResources {
	effective := plan.Effective(p, c)
	settings := plan.Resources(&effective)
	r := &settings
	r.OOMScoreAdj = oomScoreAdj(p, c, bytesOf(e.capacity(), v1.ResourceMemory))
	if r.MemoryLimitBytes > 0 && g.Unified {
		r.MemorySwapLimit = r.MemoryLimitBytes // no swap
	}
	for _, size := range g.HugePageSizes {
		r.HugepageLimits = append(r.HugepageLimits, pod.HugepageLimit{PageSize: size, Limit: hugepages(c.Resources.Limits, size)})
	}
	if g.Unified {
		r.Unified = e.unified(p, &effective, g)
	}
	return r
}

// capacity is what the machine has.
func (e *Executor) capacity() v1.ResourceList {
	if e.cfg.Capacity == nil {
		return e.cfg.Allocatable
	}
	return e.cfg.Capacity
}

func bytesOf(list v1.ResourceList, name v1.ResourceName) int64 {
	q := list[name]
	return q.Value()
}

// oomScoreAdj says how gladly the kernel kills the container when memory is short.
func oomScoreAdj(p *v1.Pod, c *v1.Container, capacity int64) int64 {
	switch status.QOSClass(p) {
	case v1.PodQOSGuaranteed:
		return oomGuaranteed
	case v1.PodQOSBestEffort:
		return oomBestEffort
	}
	unclaimed := unclaimedMemory(p)
	adj := burstableScore(c, unclaimed, capacity)
	if plan.IsSidecar(c) && slices.ContainsFunc(p.Spec.InitContainers, func(i v1.Container) bool { return i.Name == c.Name }) {
		for i := range p.Spec.Containers {
			adj = min(adj, burstableScore(&p.Spec.Containers[i], unclaimed, capacity))
		}
	}
	return adj
}

// unclaimedMemory is each container's share of the memory that the pod as a whole requests beyond what its containers do.
func unclaimedMemory(p *v1.Pod) int64 {
	if p.Spec.Resources == nil {
		return 0
	}
	whole, claimed := p.Spec.Resources.Requests.Memory().Value(), helpers.AggregateContainerRequests(p, helpers.PodResourcesOptions{})
	running := len(p.Spec.Containers)
	for i := range p.Spec.InitContainers {
		if plan.IsSidecar(&p.Spec.InitContainers[i]) {
			running++
		}
	}
	return max(0, whole-claimed.Memory().Value()) / int64(max(1, running))
}

func burstableScore(c *v1.Container, unclaimed, capacity int64) int64 {
	if capacity <= 0 {
		return oomBurstable
	}
	return max(oomFloor, min(oomBurstable, 1000-1000*(c.Resources.Requests.Memory().Value()+unclaimed)/capacity))
}

// Cgroups says where pods are in the cgroup tree.
type Cgroups struct {
	// Driver is the runtime's; Root is where kubepods is (see kubepods.Tree).
	Driver cri.CgroupDriver
	Root   string
	// Unified: cgroup v2 without v1 controllers.
	Unified bool
	// Mount is where the cgroup file systems are mounted.
	Mount string
	// HugePageSizes are those whose use can be limited, as the kernel names them.
	HugePageSizes []string
}

// cgroups describes the cgroup tree as the runtime sees it.
func (e *Executor) cgroups(ctx context.Context) (Cgroups, error) {
	g := e.cfg.Cgroups
	if e.cfg.Driver == nil {
		return g, nil
	}
	driver, err := e.cfg.Driver(ctx)
	if err != nil {
		return g, fmt.Errorf("ask the runtime for its cgroup driver: %w", err)
	}
	g.Driver = driver
	return g, nil
}

// tree names the cgroups as the driver does.
func (g Cgroups) tree() kubepods.Tree {
	return kubepods.Tree{Systemd: g.Driver == cri.CgroupDriverSystemd, Root: g.Root}
}

// classes are the places of pods' cgroups, by quality-of-service class.
var classes = []string{"", kubepods.Burstable, kubepods.BestEffort}

// Parent returns the cgroup of the pod, by quality-of-service class, as the runtime's driver names it.
func (g Cgroups) Parent(p *v1.Pod) string { return g.tree().Pod(className(p), string(p.UID)) }

// exists says whether a cgroup that the driver names so is there.
func (g Cgroups) exists(name string) error {
	top := g.Mount
	if !g.Unified {
		top = filepath.Join(g.Mount, "cpu")
	}
	_, err := os.Stat(filepath.Join(top, g.tree().Dir(name)))
	return err
}

// paths returns the pod's possible cgroup directories below each mounted hierarchy. The class is not known for a pod that is only known by its UID.
func (g Cgroups) paths(uid string) []string {
	var all []string
	for _, class := range classes {
		all = append(all, g.dirs(class, uid)...)
	}
	return all
}

// dirs returns the directories of a pod of a class below each mounted hierarchy.
func (g Cgroups) dirs(class, uid string) []string {
	name := g.tree().Dir(g.tree().Pod(class, uid))
	all := []string{filepath.Join(g.Mount, name)}
	if entries, err := os.ReadDir(g.Mount); err == nil && !g.Unified {
		for _, entry := range entries {
			all = append(all, filepath.Join(g.Mount, entry.Name(), name))
		}
	}
	return all
}

// cgroupMount is where Linux systems have the cgroup file systems.
const cgroupMount = "/sys/fs/cgroup"

// NewCgroups describes the node's cgroup tree.
func NewCgroups(root string) Cgroups {
	_, err := os.Stat(filepath.Join(cgroupMount, "cgroup.controllers"))
	return Cgroups{Root: root, Unified: err == nil, Mount: cgroupMount, HugePageSizes: cgroup.HugePageSizes()}
}

// MachineResources returns the machine's CPUs, memory, huge pages and processes.
func MachineResources() v1.ResourceList {
	list := v1.ResourceList{v1.ResourceCPU: *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI)}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		list[v1.ResourceMemory] = *resource.NewQuantity(int64(info.Totalram)*int64(info.Unit), resource.BinarySI)
	}
	sizes, err := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*kB")
	for _, dir := range sizes {
		kilobytes, serr := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(dir), "hugepages-"), "kB"), 10, 64)
		pages, perr := readInt(filepath.Join(dir, "nr_hugepages"))
		if errors.Join(err, serr, perr) != nil {
			continue
		}
		name := v1.ResourceHugePagesPrefix + resource.NewQuantity(kilobytes<<10, resource.BinarySI).String()
		list[v1.ResourceName(name)] = *resource.NewQuantity(pages*kilobytes<<10, resource.BinarySI)
	}
	if pids, err := readInt("/proc/sys/kernel/pid_max"); err == nil {
		if threads, err := readInt("/proc/sys/kernel/threads-max"); err == nil {
			pids = min(pids, threads)
		}
		list[ResourcePIDs] = *resource.NewQuantity(pids, resource.DecimalSI)
	}
	return list
}

// MachineSwap is how many bytes of swap the machine has.
func MachineSwap() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return int64(info.Totalswap) * int64(info.Unit)
}

func readInt(file string) (int64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}
