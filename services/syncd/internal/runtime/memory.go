package runtime

import (
	"os"
	"path/filepath"
	"strconv"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/services/syncd/internal/status"
)

// Memory is how memory is shared with cgroup v2. The zero value is Kubernetes' default.
type Memory struct {
	// Throttle is the part of what a container may use beyond its request from which on the kernel slows it down (memory.high); 0: it does not.
	Throttle float64
	// Reserve: the kernel leaves what was requested to its pods when memory is short: at all costs to Guaranteed ones, to Burstable ones as far as it can.
	Reserve bool
	// Swap lets Burstable containers use swap in proportion to their requests. SwapBytes is what the machine has.
	Swap      bool
	SwapBytes int64
	// OneByOne: the kernel kills processes of a container that has no memory left one by one, not all at once.
	OneByOne bool
}

// Files of cgroup v2 in which containers differ.
const (
	fileOOMGroup   = "memory.oom.group"
	fileMemoryHigh = "memory.high"
	fileMemoryMin  = "memory.min"
	fileMemoryLow  = "memory.low"
	fileSwapMax    = "memory.swap.max"
)

// criticalPriority is the least priority of pods that the node can't do without.
const criticalPriority = 2_000_000_000

// unified are the settings, of a container with such resources, that only cgroup v2 has, by file.
func (e *Executor) unified(p *v1.Pod, r *v1.ResourceRequirements, g Cgroups) map[string]string {
	m := &e.cfg.Memory
	request, limit := r.Requests.Memory().Value(), r.Limits.Memory().Value()
	files := map[string]string{fileOOMGroup: "1"}
	if m.OneByOne {
		files[fileOOMGroup] = "0"
	}
	// A kernel without swap accounting has no such file; the pod's cgroup tells.
	if _, err := os.Stat(filepath.Join(g.Mount, g.tree().Dir(g.Parent(p)), fileSwapMax)); err == nil {
		files[fileSwapMax] = strconv.FormatInt(m.swap(p, request, limit, bytesOf(e.capacity(), v1.ResourceMemory)), 10)
	}
	class := status.QOSClass(p)
	if high := m.high(class, request, limit, bytesOf(e.cfg.Allocatable, v1.ResourceMemory)); high > 0 {
		files[fileMemoryHigh] = strconv.FormatInt(high, 10)
	} else if m.Throttle > 0 {
		files[fileMemoryHigh] = "max"
	}
	if m.Reserve {
		hard, soft := m.reserved(class, request)
		files[fileMemoryMin], files[fileMemoryLow] = strconv.FormatInt(hard, 10), strconv.FormatInt(soft, 10)
	}
	return files
}

// high is the use of memory from which on the kernel slows a container down, 0 for none. What has a limit at its request is only killed.
func (m *Memory) high(class v1.PodQOSClass, request, limit, allocatable int64) int64 {
	if m.Throttle <= 0 || class == v1.PodQOSGuaranteed {
		return 0
	}
	most := limit
	if most == 0 {
		most = allocatable
	}
	if most <= request {
		return 0
	}
	page := int64(os.Getpagesize())
	return (request + int64(m.Throttle*float64(most-request))) / page * page
}

// reserved is what the kernel leaves to a pod or container of a class that has requested so much: at all costs, and as far as it can.
func (m *Memory) reserved(class v1.PodQOSClass, request int64) (hard, soft int64) {
	switch {
	case !m.Reserve:
	case class == v1.PodQOSGuaranteed:
		hard = request
	case class == v1.PodQOSBurstable:
		soft = request
	}
	return hard, soft
}

// swap is how much swap a container may use.
func (m *Memory) swap(p *v1.Pod, request, limit, capacity int64) int64 {
	if !m.Swap || capacity <= 0 || request == 0 || request == limit || status.QOSClass(p) != v1.PodQOSBurstable {
		return 0
	}
	if p.Spec.Priority != nil && *p.Spec.Priority >= criticalPriority {
		return 0
	}
	return int64(float64(request) / float64(capacity) * float64(m.SwapBytes))
}
