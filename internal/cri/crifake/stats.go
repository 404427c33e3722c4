package crifake

import (
	"context"
	"slices"
	"strings"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
)

// SetUsage decides what a running container uses; IDs, names and labels are filled in. Nil: 1 MiB and no CPU time.
func (r *Runtime) SetUsage(usage func(pod.Container) cri.ContainerStats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usage = usage
}

// statsOf measures a container. The caller holds the mutex.
func (s *store) statsOf(c *container) cri.ContainerStats {
	now := s.clock.Now()
	workingSet := uint64(1 << 20)
	stats := cri.ContainerStats{CPU: &cri.CPUUsage{At: now}, Memory: &cri.MemoryUsage{At: now, WorkingSet: &workingSet}}
	if s.usage != nil {
		stats = s.usage(c.Container)
	}
	stats.ID, stats.Name, stats.Attempt, stats.PodUID = c.ID, c.Name, c.Attempt, c.PodUID
	stats.Labels, stats.Annotations = c.Labels, c.Annotations
	return stats
}

// ListContainerStats implements [cri.StatsSource].
func (r *Runtime) ListContainerStats(ctx context.Context, filter cri.Filter) ([]cri.ContainerStats, error) {
	if err := r.enter(ctx, "list_container_stats", ""); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	list := []cri.ContainerStats{}
	for _, c := range r.containers {
		if c.State == pod.ContainerRunning && r.selects(filter, c.ID, c.Labels) && (filter.SandboxID == "" || filter.SandboxID == c.SandboxID) {
			list = append(list, r.statsOf(c))
		}
	}
	slices.SortFunc(list, func(a, b cri.ContainerStats) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

// ContainerStats implements [cri.StatsSource].
func (r *Runtime) ContainerStats(ctx context.Context, id string) (cri.ContainerStats, error) {
	if err := r.enter(ctx, "container_stats", id); err != nil {
		return cri.ContainerStats{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return cri.ContainerStats{}, callError("container_stats", id, fault.NotFound, "no such container")
	}
	return r.statsOf(c), nil
}

// ListPodStats implements [cri.StatsSource].
func (r *Runtime) ListPodStats(ctx context.Context, filter cri.Filter) ([]cri.PodStats, error) {
	if err := r.enter(ctx, "list_podsandbox_stats", ""); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	list := []cri.PodStats{}
	for _, s := range r.sandboxes {
		if s.Ready && r.selects(filter, s.ID, s.Labels) {
			list = append(list, r.podStats(s))
		}
	}
	slices.SortFunc(list, func(a, b cri.PodStats) int { return strings.Compare(a.SandboxID, b.SandboxID) })
	return list, nil
}

// podStats sums up. The caller holds the mutex.
func (s *store) podStats(sb *sandbox) cri.PodStats {
	p := cri.PodStats{
		SandboxID: sb.ID, UID: sb.UID, Namespace: sb.Namespace, Name: sb.Name, Attempt: sb.Attempt, Labels: sb.Labels, Annotations: sb.Annotations,
	}
	var nanos, workingSet uint64
	for _, c := range s.inSandbox(sb) {
		if c.State != pod.ContainerRunning {
			continue
		}
		stats := s.statsOf(c)
		if stats.CPU != nil {
			nanos += stats.CPU.UsedNanos
		}
		if stats.Memory != nil && stats.Memory.WorkingSet != nil {
			workingSet += *stats.Memory.WorkingSet
		}
		p.Containers = append(p.Containers, stats)
	}
	now := s.clock.Now()
	p.CPU = &cri.CPUUsage{At: now, UsedNanos: nanos}
	p.Memory = &cri.MemoryUsage{At: now, WorkingSet: &workingSet}
	p.Processes = &cri.ProcessUsage{At: now, Count: uint64(len(p.Containers)) + 1}
	return p
}
