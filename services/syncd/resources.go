package syncd

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podplane/podplane/internal/events"
	"github.com/podplane/podplane/services/syncd/internal/kernel"
	nodeview "github.com/podplane/podplane/services/syncd/internal/node"
	"github.com/podplane/podplane/services/syncd/internal/runtime"
)

// Resources is what of the machine is for pods, and how they share its memory. The names are those of the kubelet's configuration.
type Resources struct {
	SystemReserved         string   `json:"systemReserved" usage:"what of the machine is not for pods but for its system, as cpu=500m,memory=256Mi,pid=1000"`
	KubeReserved           string   `json:"kubeReserved" usage:"what of the machine is for the container runtime and for Podplane, as systemReserved"`
	Enforce                []string `json:"enforceNodeAllocatable" usage:"what is held to its part by the kernel: pods, system-reserved, kube-reserved, the last two with -compressible for CPU alone; none"`
	SystemReservedCgroup   string   `json:"systemReservedCgroup" usage:"cgroup of the system's services, for system-reserved; it must be there"`
	KubeReservedCgroup     string   `json:"kubeReservedCgroup" usage:"cgroup of the runtime's and Podplane's services, for kube-reserved; it must be there"`
	MemoryThrottlingFactor float64  `json:"memoryThrottlingFactor" usage:"cgroup v2: the part, below 1, of the memory beyond its request from which on a container is slowed down (memory.high); 0: none is"`
	MemoryReservation      string   `json:"memoryReservationPolicy" usage:"cgroup v2: TieredReservation makes the kernel leave Guaranteed pods what they requested at all costs (memory.min), Burstable ones as far as it can (memory.low); None does not"`
	Swap                   string   `json:"memorySwapBehavior" usage:"cgroup v2: NoSwap, or LimitedSwap: Burstable containers may swap in proportion to their requests"`
	KernelSettings         string   `json:"kernelSettings" usage:"vm.overcommit_memory and others that a Kubernetes node counts on: leave them, check them at the start, or set them"`
	SingleProcessOOMKill   bool     `json:"singleProcessOOMKill" usage:"cgroup v2: the kernel kills single processes of a container that has no memory left, not the whole container"`
}

// What may be enforced.
const (
	enforcePods       = "pods"
	enforceNone       = "none"
	enforceSystem     = "system-reserved"
	enforceKube       = "kube-reserved"
	compressible      = "-compressible"
	tieredReservation = "TieredReservation"
	noReservation     = "None"
	noSwap            = "NoSwap"
	limitedSwap       = "LimitedSwap"
)

// DefaultResources gives the settings where nothing is set.
func DefaultResources() Resources {
	return Resources{Enforce: []string{enforcePods}, MemoryReservation: noReservation, Swap: noSwap, KernelSettings: string(kernel.Leave)}
}

// Validate checks the settings.
func (r *Resources) Validate(path *field.Path) field.ErrorList {
	var list field.ErrorList
	for name, value := range map[string]string{"systemReserved": r.SystemReserved, "kubeReserved": r.KubeReserved} {
		if _, err := parseReserved(value); err != nil {
			list = append(list, field.Invalid(path.Child(name), value, err.Error()))
		}
	}
	if r.MemoryThrottlingFactor < 0 || r.MemoryThrottlingFactor > 1 {
		list = append(list, field.Invalid(path.Child("memoryThrottlingFactor"), r.MemoryThrottlingFactor, "must be from 0 to 1"))
	}
	for _, choice := range []struct {
		name, value string
		of          []string
	}{
		{"memoryReservationPolicy", r.MemoryReservation, []string{noReservation, tieredReservation}},
		{"memorySwapBehavior", r.Swap, []string{noSwap, limitedSwap}},
		{"kernelSettings", r.KernelSettings, kernel.Modes},
	} {
		if !slices.Contains(choice.of, choice.value) {
			list = append(list, field.NotSupported(path.Child(choice.name), choice.value, choice.of))
		}
	}
	return append(list, r.validateEnforce(path)...)
}

func (r *Resources) validateEnforce(path *field.Path) field.ErrorList {
	var list field.ErrorList
	at := path.Child("enforceNodeAllocatable")
	known := []string{enforcePods, enforceNone, enforceSystem, enforceSystem + compressible, enforceKube, enforceKube + compressible}
	for _, e := range r.Enforce {
		if !slices.Contains(known, e) {
			list = append(list, field.NotSupported(at, e, known))
		}
	}
	if slices.Contains(r.Enforce, enforceNone) && len(r.Enforce) > 1 {
		list = append(list, field.Invalid(at, strings.Join(r.Enforce, ","), "none stands alone"))
	}
	for _, part := range []struct{ name, cgroup, key string }{
		{enforceSystem, r.SystemReservedCgroup, "systemReservedCgroup"}, {enforceKube, r.KubeReservedCgroup, "kubeReservedCgroup"},
	} {
		whole, cpu := slices.Contains(r.Enforce, part.name), slices.Contains(r.Enforce, part.name+compressible)
		if whole && cpu {
			list = append(list, field.Invalid(at, part.name, "and "+part.name+compressible+" exclude each other"))
		}
		if (whole || cpu) && part.cgroup == "" {
			list = append(list, field.Required(path.Child(part.key), part.name+" is enforced on it"))
		}
	}
	return list
}

// parseReserved reads amounts of resources, as cpu=500m,memory=256Mi.
func parseReserved(text string) (v1.ResourceList, error) {
	list := v1.ResourceList{}
	if text == "" {
		return list, nil
	}
	for _, part := range strings.Split(text, ",") {
		name, amount, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch v1.ResourceName(name) {
		case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, runtime.ResourcePIDs:
		default:
			return nil, fmt.Errorf("%q: must be cpu, memory, ephemeral-storage or pid, then = and an amount", part)
		}
		q, err := resource.ParseQuantity(amount)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", part, err)
		}
		if q.Sign() < 0 {
			return nil, fmt.Errorf("%q: must not be negative", part)
		}
		if _, twice := list[v1.ResourceName(name)]; twice {
			return nil, fmt.Errorf("%s is there twice", name)
		}
		list[v1.ResourceName(name)] = q
	}
	return list, nil
}

// reserved is what is not for pods. The configuration was validated.
func (r *Resources) reserved() v1.ResourceList {
	all := v1.ResourceList{}
	for _, text := range []string{r.SystemReserved, r.KubeReserved} {
		list, err := parseReserved(text)
		if err != nil {
			continue
		}
		for name, q := range list {
			sum := all[name]
			sum.Add(q)
			all[name] = sum
		}
	}
	return all
}

// prepare looks whether the machine has what is reserved, and at the kernel's settings.
func (r *Resources) prepare(log *slog.Logger) error {
	if err := checkReserved(r.reserved(), runtime.MachineResources()); err != nil {
		return err
	}
	err := kernel.Apply("/proc/sys", kernel.Mode(r.KernelSettings))
	if err != nil && r.KernelSettings == string(kernel.Set) {
		log.Warn("settings of the kernel could not be set", "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("check the kernel's settings: %w", err)
	}
	return nil
}

// checkReserved says what is reserved that the machine does not have.
func checkReserved(reserved, machine v1.ResourceList) error {
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, runtime.ResourcePIDs} {
		want, have := reserved[name], machine[name]
		if !have.IsZero() && want.Cmp(have) >= 0 {
			return fmt.Errorf("reserve %s of %s: the machine has %s, which leaves nothing for pods", want.String(), name, have.String())
		}
	}
	return nil
}

// allocatable is what of the machine is for pods.
func (r *Resources) allocatable() v1.ResourceList {
	return nodeview.Less(runtime.MachineResources(), r.reserved())
}

func (r *Resources) memory() runtime.Memory {
	return runtime.Memory{
		Throttle: r.MemoryThrottlingFactor, Reserve: r.MemoryReservation == tieredReservation,
		Swap: r.Swap == limitedSwap, SwapBytes: runtime.MachineSwap(), OneByOne: r.SingleProcessOOMKill,
	}
}

// bounds are the cgroups beside the pods' that are limited. A driver names them its own way.
func (r *Resources) bounds() []runtime.Bound {
	var list []runtime.Bound
	for _, part := range []struct{ name, cgroup, amounts string }{
		{enforceSystem, r.SystemReservedCgroup, r.SystemReserved}, {enforceKube, r.KubeReservedCgroup, r.KubeReserved},
	} {
		limits, err := parseReserved(part.amounts)
		if err != nil {
			continue
		}
		switch {
		case slices.Contains(r.Enforce, part.name):
			list = append(list, runtime.Bound{Cgroup: part.cgroup, Limits: limits})
		case slices.Contains(r.Enforce, part.name+compressible):
			list = append(list, runtime.Bound{Cgroup: part.cgroup, Limits: v1.ResourceList{v1.ResourceCPU: limits[v1.ResourceCPU]}})
		}
	}
	return list
}

// Reasons of the node's Events, and how long after a failure it is tried again.
const (
	reasonEnforced  = "NodeAllocatableEnforced"
	reasonNotSoYet  = "FailedNodeAllocatableEnforcement"
	enforceInterval = time.Minute
	enforceFirst    = time.Second
)

// enforce limits all pods to what is allocatable. It tries until it could: the runtime, which says how cgroups are made, may be away.
func (r *Resources) enforce(ctx context.Context, limit func(ctx context.Context, pods bool, others []runtime.Bound) error, node string, sink events.Sink) error {
	pods, others := slices.Contains(r.Enforce, enforcePods), r.bounds()
	if !pods && len(others) == 0 {
		return nil
	}
	about := events.Node(node)
	for wait := enforceFirst; ; wait = min(2*wait, enforceInterval) {
		err := limit(ctx, pods, others)
		if err == nil {
			sink.Event(about, v1.EventTypeNormal, reasonEnforced, "Updated the limits of %s to what is allocatable", strings.Join(r.Enforce, ", "))
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		sink.Event(about, v1.EventTypeWarning, reasonNotSoYet, "Failed to set the limits of %s: %v", strings.Join(r.Enforce, ", "), err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}
