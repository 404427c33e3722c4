package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
)

// ListPodStats implements [StatsSource].
func (c *Client) ListPodStats(ctx context.Context, filter Filter) ([]PodStats, error) {
	op := c.runtimeOp(opListSandboxStats, filter.PodUID)
	resp, err := invoke(ctx, c, op, c.runtime.ListPodSandboxStats, &runtimeapi.ListPodSandboxStatsRequest{
		Filter: &runtimeapi.PodSandboxStatsFilter{Id: filter.ID, LabelSelector: c.selector(filter)},
	})
	if err != nil {
		return nil, err
	}
	stats := make([]PodStats, 0, len(resp.GetStats()))
	for _, s := range resp.GetStats() {
		stats = append(stats, fromPodStats(s))
	}
	return stats, nil
}

// ListContainerStats implements [StatsSource].
func (c *Client) ListContainerStats(ctx context.Context, filter Filter) ([]ContainerStats, error) {
	op := c.runtimeOp(opListContainerStats, filter.PodUID)
	resp, err := invoke(ctx, c, op, c.runtime.ListContainerStats, &runtimeapi.ListContainerStatsRequest{
		Filter: &runtimeapi.ContainerStatsFilter{Id: filter.ID, PodSandboxId: filter.SandboxID, LabelSelector: c.selector(filter)},
	})
	if err != nil {
		return nil, err
	}
	stats := make([]ContainerStats, 0, len(resp.GetStats()))
	for _, s := range resp.GetStats() {
		stats = append(stats, fromContainerStats(s))
	}
	return stats, nil
}

// ContainerStats implements [StatsSource].
func (c *Client) ContainerStats(ctx context.Context, id string) (ContainerStats, error) {
	op := c.containerOp(opContainerStats, id)
	resp, err := invoke(ctx, c, op, c.runtime.ContainerStats, &runtimeapi.ContainerStatsRequest{ContainerId: id})
	if err != nil {
		return ContainerStats{}, err
	}
	if resp.GetStats() == nil {
		return ContainerStats{}, &CallError{Op: op.name, Target: id, Err: fault.New(fault.NotFound, "the container runtime has no statistics")}
	}
	return fromContainerStats(resp.GetStats()), nil
}

func fromPodStats(s *runtimeapi.PodSandboxStats) PodStats {
	a := s.GetAttributes()
	p := PodStats{
		SandboxID: a.GetId(), UID: a.GetMetadata().GetUid(), Namespace: a.GetMetadata().GetNamespace(), Name: a.GetMetadata().GetName(),
		Attempt: a.GetMetadata().GetAttempt(), Labels: a.GetLabels(), Annotations: a.GetAnnotations(),
		CPU: fromCPU(s.GetLinux().GetCpu()), Memory: fromMemory(s.GetLinux().GetMemory()),
		Network: fromNetwork(s.GetLinux().GetNetwork()), IO: fromIO(s.GetLinux().GetIo()),
	}
	if ps := s.GetLinux().GetProcess(); ps.GetProcessCount() != nil {
		p.Processes = &ProcessUsage{At: fromNanos(ps.GetTimestamp()), Count: ps.GetProcessCount().GetValue()}
	}
	for _, ctr := range s.GetLinux().GetContainers() {
		p.Containers = append(p.Containers, fromContainerStats(ctr))
	}
	return p
}

func fromContainerStats(s *runtimeapi.ContainerStats) ContainerStats {
	a := s.GetAttributes()
	c := ContainerStats{
		ID: a.GetId(), Name: a.GetMetadata().GetName(), Attempt: a.GetMetadata().GetAttempt(), PodUID: a.GetLabels()[pod.LabelPodUID],
		Labels: a.GetLabels(), Annotations: a.GetAnnotations(),
		CPU: fromCPU(s.GetCpu()), Memory: fromMemory(s.GetMemory()), IO: fromIO(s.GetIo()),
	}
	if sw := s.GetSwap(); sw != nil {
		c.Swap = &SwapUsage{At: fromNanos(sw.GetTimestamp()), Available: fromUint(sw.GetSwapAvailableBytes()), Usage: fromUint(sw.GetSwapUsageBytes())}
	}
	if w := s.GetWritableLayer(); w != nil {
		usage := fromFilesystem(w)
		c.WritableLayer = &usage
	}
	return c
}

func fromCPU(u *runtimeapi.CpuUsage) *CPUUsage {
	if u.GetUsageCoreNanoSeconds() == nil && u.GetUsageNanoCores() == nil {
		return nil
	}
	return &CPUUsage{
		At: fromNanos(u.GetTimestamp()), UsedNanos: u.GetUsageCoreNanoSeconds().GetValue(), UsedNanoCores: fromUint(u.GetUsageNanoCores()),
		PSI: fromPSI(u.GetPsi()),
	}
}

func fromMemory(u *runtimeapi.MemoryUsage) *MemoryUsage {
	if u == nil {
		return nil
	}
	return &MemoryUsage{
		At: fromNanos(u.GetTimestamp()), WorkingSet: fromUint(u.GetWorkingSetBytes()), Available: fromUint(u.GetAvailableBytes()),
		Usage: fromUint(u.GetUsageBytes()), RSS: fromUint(u.GetRssBytes()), PageFaults: fromUint(u.GetPageFaults()),
		MajorPageFaults: fromUint(u.GetMajorPageFaults()), PSI: fromPSI(u.GetPsi()),
	}
}

func fromIO(u *runtimeapi.IoUsage) *IOUsage {
	if u == nil {
		return nil
	}
	return &IOUsage{At: fromNanos(u.GetTimestamp()), PSI: fromPSI(u.GetPsi())}
}

func fromNetwork(u *runtimeapi.NetworkUsage) *NetworkUsage {
	if u == nil {
		return nil
	}
	n := &NetworkUsage{At: fromNanos(u.GetTimestamp())}
	if d := u.GetDefaultInterface(); d != nil {
		n.Interfaces = append(n.Interfaces, fromInterface(d))
	}
	for _, i := range u.GetInterfaces() {
		if i.GetName() != u.GetDefaultInterface().GetName() {
			n.Interfaces = append(n.Interfaces, fromInterface(i))
		}
	}
	return n
}

func fromInterface(i *runtimeapi.NetworkInterfaceUsage) InterfaceUsage {
	return InterfaceUsage{
		Name: i.GetName(), RxBytes: i.GetRxBytes().GetValue(), RxErrors: i.GetRxErrors().GetValue(),
		TxBytes: i.GetTxBytes().GetValue(), TxErrors: i.GetTxErrors().GetValue(),
	}
}

func fromPSI(p *runtimeapi.PsiStats) *PSI {
	if p == nil {
		return nil
	}
	return &PSI{Some: fromPSIData(p.GetSome()), Full: fromPSIData(p.GetFull())}
}

func fromPSIData(d *runtimeapi.PsiData) PSIData {
	return PSIData{TotalNanos: d.GetTotal(), Avg10: d.GetAvg10(), Avg60: d.GetAvg60(), Avg300: d.GetAvg300()}
}

func fromUint(v *runtimeapi.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	return &v.Value
}

func fromFilesystems(list []*runtimeapi.FilesystemUsage) []FilesystemUsage {
	usages := make([]FilesystemUsage, 0, len(list))
	for _, u := range list {
		usages = append(usages, fromFilesystem(u))
	}
	return usages
}

func fromFilesystem(u *runtimeapi.FilesystemUsage) FilesystemUsage {
	return FilesystemUsage{
		Mountpoint: u.GetFsId().GetMountpoint(), UsedBytes: u.GetUsedBytes().GetValue(), InodesUsed: u.GetInodesUsed().GetValue(),
		At: fromNanos(u.GetTimestamp()),
	}
}
