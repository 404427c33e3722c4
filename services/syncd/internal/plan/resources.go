package plan

import (
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

// Resized says whether the container runs with other settings than its resources ask for. Settings that the runtime does not report are
// taken for right.
func Resized(spec *v1.Container, c *pod.Container) (cpu, memory bool) {
	have := c.Resources
	if have == nil {
		return false, false
	}
	want := Resources(&spec.Resources)
	cpu = want.CPUShares != have.CPUShares || want.CPUQuota != max(have.CPUQuota, 0)
	return cpu, want.MemoryLimitBytes != max(have.MemoryLimitBytes, 0)
}

// ResizeRestarts says whether the container must be restarted to run with its resources.
func ResizeRestarts(spec *v1.Container, c *pod.Container) bool {
	cpu, memory := Resized(spec, c)
	for _, p := range spec.ResizePolicy {
		if p.RestartPolicy == v1.RestartContainer && ((cpu && p.ResourceName == v1.ResourceCPU) || (memory && p.ResourceName == v1.ResourceMemory)) {
			return true
		}
	}
	return false
}
