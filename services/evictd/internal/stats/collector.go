// Package stats measures what pods use, at the moment when a decision needs it and not before: working sets and process
// counts from the runtime, bytes and inodes of volumes and logs by walking their directories.
//
// It keeps nothing. A collection is bounded: the runtime's answer by Timeout, the walks by MaxEntries and Timeout
// together. What can't be measured in time is missing from the result (Measured is false) and named in the error; the rest
// counts.
package stats

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/services/evictd/internal/feed"
	"github.com/podplane/podplane/services/evictd/internal/policy"
)

// Bounds of one collection.
const (
	Timeout    = 5 * time.Second
	MaxEntries = 500_000
)

// Source is what the runtime is asked.
type Source interface {
	ListPodStats(ctx context.Context, filter cri.Filter) ([]cri.PodStats, error)
}

// Collector measures pods.
type Collector struct {
	source  Source
	root    string
	logDir  string
	observe func(age time.Duration)
}

// NewCollector makes a collector. Pods' directories are below root, their logs below logDir; observe is told the age of
// each statistic at the time of its use.
func NewCollector(source Source, root, logDir string, observe func(age time.Duration)) *Collector {
	return &Collector{source: source, root: root, logDir: logDir, observe: observe}
}

// Collect measures the pods: memory and processes, and with disk also what they have on file systems. It always returns
// all pods; the error says what could not be measured.
func (c *Collector) Collect(ctx context.Context, pods []feed.Pod, disk bool) ([]policy.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	measured, err := c.source.ListPodStats(ctx, cri.Filter{})
	if err != nil {
		err = fmt.Errorf("ask the runtime for statistics: %w", err)
	}
	byUID := make(map[string]cri.PodStats, len(measured))
	for i := range measured {
		s := &measured[i]
		if old, ok := byUID[s.UID]; ok && old.Attempt > s.Attempt {
			continue
		}
		byUID[s.UID] = *s
	}
	w := &walker{ctx: ctx, left: MaxEntries}
	list := make([]policy.Pod, 0, len(pods))
	for i := range pods {
		p := pods[i].Pod
		p.Containers = append([]policy.ContainerUsage(nil), p.Containers...)
		if s, ok := byUID[p.UID]; ok {
			c.add(&p, &s)
		}
		if disk && !p.Ended {
			c.walk(w, &p)
		}
		list = append(list, p)
	}
	return list, errors.Join(err, w.err)
}

// add takes over what the runtime measured.
func (c *Collector) add(p *policy.Pod, s *cri.PodStats) {
	p.Measured = true
	sum := int64(0)
	for i := range s.Containers {
		cs := &s.Containers[i]
		memory := workingSet(cs.Memory)
		sum += memory
		p.Processes++ // one at least; the pod's own count is better
		u := containerOf(p, cs.Name)
		u.Memory += memory
		if l := cs.WritableLayer; l != nil {
			u.Disk += int64(l.UsedBytes)
			p.Disk.Writable += int64(l.UsedBytes)
			p.Disk.WritableInodes += int64(l.InodesUsed)
		}
		if cs.Memory != nil && !cs.Memory.At.IsZero() {
			c.observe(time.Since(cs.Memory.At))
		}
	}
	p.Memory = max(sum, workingSet(s.Memory))
	if s.Processes != nil {
		p.Processes = int64(s.Processes.Count)
	}
}

func workingSet(m *cri.MemoryUsage) int64 {
	if m == nil || m.WorkingSet == nil {
		return 0
	}
	return int64(*m.WorkingSet)
}

// containerOf finds the container's entry; one that is not in the manifest gets one without requests.
func containerOf(p *policy.Pod, name string) *policy.ContainerUsage {
	for i := range p.Containers {
		if p.Containers[i].Name == name {
			return &p.Containers[i]
		}
	}
	p.Containers = append(p.Containers, policy.ContainerUsage{Name: name})
	return &p.Containers[len(p.Containers)-1]
}

// walk measures the pod's directories: emptyDir volumes on disk, and logs.
func (c *Collector) walk(w *walker, p *policy.Pod) {
	p.Disk.Volumes, p.Disk.VolumeInodes = w.usage(filepath.Join(c.root, "pods", p.UID, "volumes", "kubernetes.io~empty-dir"))
	p.Disk.Logs, p.Disk.LogInodes = w.usage(filepath.Join(c.logDir, p.Namespace+"_"+p.Name+"_"+p.UID))
	if p.Disk.Volumes+p.Disk.Logs > 0 {
		p.Measured = true
	}
}
