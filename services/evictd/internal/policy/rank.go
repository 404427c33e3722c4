package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// SystemCriticalPriority is the priority from which on a pod is never evicted.
const SystemCriticalPriority = 2_000_000_000

// Pod is what the ranking knows of a pod.
type Pod struct {
	UID, Namespace, Name string
	Priority             int32
	// Static pods come from the node's own manifests.
	Static bool
	// Ended says that nothing of the pod runs any more: evicting it frees nothing.
	Ended bool
	// MemoryRequest and StorageRequest are the sums of the containers' requests (memory, ephemeral-storage), in bytes.
	MemoryRequest, StorageRequest int64
	// Measured says that the usage below is known; else it is 0.
	Measured bool
	// Memory is the working set in bytes, Processes the number of processes.
	Memory, Processes int64
	Disk              DiskUsage
	Containers        []ContainerUsage
}

// DiskUsage is what a pod has on the node's file systems, in bytes and inodes.
type DiskUsage struct {
	// Volumes and logs are on nodefs, writable layers on imagefs.
	Volumes, Logs, Writable                 int64
	VolumeInodes, LogInodes, WritableInodes int64
}

// ContainerUsage is a container's part.
type ContainerUsage struct {
	Name                          string
	Memory, Disk                  int64
	MemoryRequest, StorageRequest int64
}

// Critical says that the pod is never evicted.
func (p *Pod) Critical() bool { return p.Static || p.Priority >= SystemCriticalPriority }

// Ranked is a pod's place in the order of eviction.
type Ranked struct {
	Pod Pod
	// Usage and Request are of the signal's resource.
	Usage, Request int64
	// Reason says why it stands there.
	Reason string
}

// Rank puts the pods into the order in which they would be evicted for the signal. Critical pods come last; pods that
// have ended are left out. oneFS says that imagefs and nodefs are one file system.
func Rank(s Signal, pods []Pod, oneFS bool) []Ranked {
	ranked := make([]Ranked, 0, len(pods))
	for _, p := range pods {
		if p.Ended {
			continue
		}
		r := Ranked{Pod: p}
		r.Usage, r.Request = usage(s, &p, oneFS)
		r.Reason = r.explain(s)
		ranked = append(ranked, r)
	}
	slices.SortFunc(ranked, func(a, b Ranked) int { return compare(s, &a, &b) })
	return ranked
}

func compare(s Signal, a, b *Ranked) int {
	first := func(aFirst, bFirst bool) int {
		switch {
		case aFirst == bFirst:
			return 0
		case aFirst:
			return -1
		}
		return 1
	}
	order := first(!a.Pod.Critical(), !b.Pod.Critical())
	if s != PIDAvailable {
		order = cmp.Or(order, first(a.Usage > a.Request, b.Usage > b.Request))
	}
	return cmp.Or(order, cmp.Compare(a.Pod.Priority, b.Pod.Priority),
		cmp.Compare(b.Usage-b.Request, a.Usage-a.Request), strings.Compare(a.Pod.UID, b.Pod.UID))
}

// usage is what the pod uses of what the signal is about, and what it asked for.
func usage(s Signal, p *Pod, oneFS bool) (used, request int64) {
	d := &p.Disk
	switch s {
	case MemoryAvailable:
		return p.Memory, p.MemoryRequest
	case PIDAvailable:
		return p.Processes, 0
	case NodefsAvailable:
		used = d.Volumes + d.Logs
		if oneFS {
			used += d.Writable
		}
		return used, p.StorageRequest
	case ImagefsAvailable:
		used = d.Writable
		if oneFS {
			used += d.Volumes + d.Logs
		}
		return used, p.StorageRequest
	case NodefsInodesFree:
		used = d.VolumeInodes + d.LogInodes
		if oneFS {
			used += d.WritableInodes
		}
	case ImagefsInodesFree:
		used = d.WritableInodes
		if oneFS {
			used += d.VolumeInodes + d.LogInodes
		}
	}
	return used, 0
}

func (r *Ranked) explain(s Signal) string {
	switch {
	case r.Pod.Static:
		return "static pod: never evicted"
	case r.Pod.Priority >= SystemCriticalPriority:
		return "system-critical priority: never evicted"
	}
	text := fmt.Sprintf("uses %s", s.Format(r.Usage))
	switch {
	case !r.Pod.Measured:
		text = "usage is not known"
	case s == PIDAvailable || s.StarvedResource() == "inodes":
	case r.Usage > r.Request:
		text += ", more than its request of " + s.Format(r.Request)
	default:
		text += ", within its request of " + s.Format(r.Request)
	}
	return text + ", priority " + strconv.Itoa(int(r.Pod.Priority))
}
