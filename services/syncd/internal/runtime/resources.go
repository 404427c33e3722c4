package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"

	"github.com/podplane/podplane/internal/cri"
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
func (e *Executor) resources(p *v1.Pod, c *v1.Container) *pod.LinuxResources {
	effective := plan.Effective(p, c)
	settings := plan.Resources(&effective)
	r := &settings
	r.OOMScoreAdj = oomScoreAdj(p, c, e.memory())
	if r.MemoryLimitBytes > 0 && e.cfg.Cgroups.Unified {
		r.MemorySwapLimit = r.MemoryLimitBytes // no swap
	}
	for _, size := range e.cfg.Cgroups.HugePageSizes {
		r.HugepageLimits = append(r.HugepageLimits, pod.HugepageLimit{PageSize: size, Limit: hugepages(c.Resources.Limits, size)})
	}
	if e.cfg.Cgroups.Unified {
		r.Unified = map[string]string{"memory.oom.group": "1"}
	}
	return r
}

func (e *Executor) memory() int64 {
	q := e.cfg.Allocatable[v1.ResourceMemory]
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
	// Driver is the runtime's; Root is where kubepods is: a path with cgroupfs, a slice name with systemd. Empty: the top.
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

const kubepods = "kubepods"

// Parent returns the cgroup of the pod, by quality-of-service class, as the runtime's driver names it.
func (g Cgroups) Parent(p *v1.Pod) string {
	class := ""
	switch status.QOSClass(p) {
	case v1.PodQOSBurstable:
		class = "burstable"
	case v1.PodQOSBestEffort:
		class = "besteffort"
	}
	return g.join(class, "pod"+string(p.UID))
}

func (g Cgroups) join(class, name string) string {
	if g.Driver != cri.CgroupDriverSystemd {
		return filepath.Join("/", g.Root, kubepods, class, name)
	}
	parts := []string{kubepods}
	if root := strings.TrimSuffix(g.Root, ".slice"); root != "" {
		parts = []string{root, kubepods}
	}
	if class != "" {
		parts = append(parts, class)
	}
	return strings.Join(append(parts, strings.ReplaceAll(name, "-", "_")), "-") + ".slice"
}

// paths returns the pod's possible cgroup directories below each mounted hierarchy. The class is not known for a pod that is only known by its UID.
func (g Cgroups) paths(uid string) []string {
	var relative []string
	for _, class := range []string{"", "burstable", "besteffort"} {
		r := g.join(class, "pod"+uid)
		if g.Driver == cri.CgroupDriverSystemd {
			r = slicePath(r)
		}
		relative = append(relative, r)
	}
	hierarchies := []string{g.Mount}
	if entries, err := os.ReadDir(g.Mount); err == nil && !g.Unified {
		for _, entry := range entries {
			hierarchies = append(hierarchies, filepath.Join(g.Mount, entry.Name()))
		}
	}
	var all []string
	for _, h := range hierarchies {
		for _, r := range relative {
			all = append(all, filepath.Join(h, r))
		}
	}
	return all
}

// remove removes a pod's cgroups. One in which something runs is an error that is EBUSY.
func (g Cgroups) remove(uid string) (err error) {
	for _, dir := range g.paths(uid) {
		err = errors.Join(err, removeCgroup(dir))
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

// slicePath is the directory of a slice: a-b-c.slice is in a.slice/a-b.slice.
func slicePath(slice string) string {
	parts := strings.Split(strings.TrimSuffix(slice, ".slice"), "-")
	var path string
	for i := range parts {
		path = filepath.Join(path, strings.Join(parts[:i+1], "-")+".slice")
	}
	return path
}

// cgroupMount is where Linux systems have the cgroup file systems.
const cgroupMount = "/sys/fs/cgroup"

// NewCgroups describes the node's cgroup tree.
func NewCgroups(root string) Cgroups {
	_, err := os.Stat(filepath.Join(cgroupMount, "cgroup.controllers"))
	return Cgroups{Root: root, Unified: err == nil, Mount: cgroupMount, HugePageSizes: cgroup.HugePageSizes()}
}

// MachineResources returns the machine's CPUs and memory.
func MachineResources() v1.ResourceList {
	list := v1.ResourceList{v1.ResourceCPU: *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI)}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		list[v1.ResourceMemory] = *resource.NewQuantity(int64(info.Totalram)*int64(info.Unit), resource.BinarySI)
	}
	return list
}
