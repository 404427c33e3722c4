package plan

import (
	"maps"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
)

// How requests and limits become settings of the kernel.
const (
	CPUPeriod    = 100_000
	minCPUQuota  = 1000
	minCPUShares = 2
	maxCPUShares = 262144
)

// CPUShares are the shares for so many thousandths of a CPU.
func CPUShares(milli int64) int64 { return max(minCPUShares, min(maxCPUShares, milli*1024/1000)) }

// CPUQuota are the microseconds in each CPUPeriod for a limit of so many thousandths of a CPU; 0 is no limit.
func CPUQuota(milli int64) int64 {
	if milli <= 0 {
		return 0
	}
	return max(minCPUQuota, milli*CPUPeriod/1000)
}

// Resources turns a container's requests and limits into settings; only those of CPU and memory.
func Resources(r *v1.ResourceRequirements) pod.LinuxResources {
	request, limit := r.Requests.Cpu(), r.Limits.Cpu()
	shares := request.MilliValue()
	if request.IsZero() && !limit.IsZero() {
		shares = limit.MilliValue()
	}
	return pod.LinuxResources{
		CPUPeriod: CPUPeriod, CPUShares: CPUShares(shares), CPUQuota: CPUQuota(limit.MilliValue()), MemoryLimitBytes: r.Limits.Memory().Value(),
	}
}

// Effective are the resources with which a container is run: where it has no limit of its own, that of the pod as a whole holds.
func Effective(p *v1.Pod, spec *v1.Container) v1.ResourceRequirements {
	if p.Spec.Resources == nil {
		return spec.Resources
	}
	r := spec.Resources
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		own := r.Limits[name]
		if q, limited := p.Spec.Resources.Limits[name]; limited && own.IsZero() {
			r.Limits = maps.Clone(r.Limits)
			if r.Limits == nil {
				r.Limits = make(v1.ResourceList, 1)
			}
			r.Limits[name] = q
		}
	}
	return r
}

// Resized says whether the container runs with other settings than its resources, or its pod's, ask for. Settings that the runtime does not report
// are taken for right.
func Resized(p *v1.Pod, spec *v1.Container, c *pod.Container) (cpu, memory bool) {
	have := c.Resources
	if have == nil {
		return false, false
	}
	effective := Effective(p, spec)
	want := Resources(&effective)
	cpu = want.CPUShares != have.CPUShares || want.CPUQuota != max(have.CPUQuota, 0)
	return cpu, want.MemoryLimitBytes != max(have.MemoryLimitBytes, 0)
}

// ResizeRestarts says whether the container must be restarted to run with its resources.
func ResizeRestarts(p *v1.Pod, spec *v1.Container, c *pod.Container) bool {
	cpu, memory := Resized(p, spec, c)
	for _, r := range spec.ResizePolicy {
		if r.RestartPolicy == v1.RestartContainer && ((cpu && r.ResourceName == v1.ResourceCPU) || (memory && r.ResourceName == v1.ResourceMemory)) {
			return true
		}
	}
	return false
}
