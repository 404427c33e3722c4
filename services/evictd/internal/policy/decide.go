package policy

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// HardGracePeriod is what a pod gets to end when a hard threshold is crossed.
const HardGracePeriod = 1 * time.Second

// Order says that a pod is to be killed.
type Order struct {
	Pod       Pod
	Signal    Signal
	Threshold Threshold
	Message   string
	Grace     time.Duration
	// Usage and Request are of the starved resource.
	Usage, Request int64
	// Annotations are those of Kubernetes' Evicted event.
	Annotations map[string]string
}

// Annotations of the Evicted event.
const (
	annotationStarved         = "starved_resource"
	annotationContainers      = "offending_containers"
	annotationContainersUsage = "offending_containers_usage"
)

// Outstanding says what became of the orders so far.
type Outstanding struct {
	// Open are the UIDs of pods whose order is not obeyed yet.
	Open map[string]bool
	// Blocked says that another order must wait for an open one.
	Blocked bool
}

// Choose picks the pod to evict for the first crossed threshold that a new measurement backs: the first of the ranking
// that is neither critical nor ordered already. It returns nil when there is nothing to do, and an order otherwise;
// with crossed thresholds and no order, unmet is the first of them for which no pod can go.
func Choose(state State, crossed []Crossed, pods []Pod, outstanding Outstanding, oneFS bool) (order *Order, unmet *Crossed) {
	if outstanding.Blocked {
		return nil, nil
	}
	for i := range crossed {
		c := &crossed[i]
		if !c.Observation.At.After(state.LastOrderEnd) {
			continue
		}
		for _, r := range Rank(c.Threshold.Signal, pods, oneFS) {
			if r.Pod.Critical() || outstanding.Open[r.Pod.UID] {
				continue
			}
			return newOrder(c, &r), nil
		}
		if unmet == nil {
			unmet = c
		}
	}
	return nil, unmet
}

func newOrder(c *Crossed, r *Ranked) *Order {
	s := c.Threshold.Signal
	o := &Order{Pod: r.Pod, Signal: s, Threshold: c.Threshold, Grace: HardGracePeriod, Usage: r.Usage, Request: r.Request}
	var text strings.Builder
	fmt.Fprintf(&text, "The node was low on resource: %s. Threshold quantity: %s, available: %s. ",
		s.StarvedResource(), s.Format(c.Value), s.Format(c.Observation.Available))
	var names, usages []string
	for _, u := range r.Pod.Containers {
		used, request, known := containerUsage(s, &u)
		if !known || used <= request {
			continue
		}
		fmt.Fprintf(&text, "Container %s was using %s, request is %s, has larger consumption of %s. ",
			u.Name, s.Format(used), s.Format(request), s.StarvedResource())
		names, usages = append(names, u.Name), append(usages, s.Format(used))
	}
	if s == PIDAvailable && r.Pod.Measured {
		text.WriteString("The pod has " + strconv.FormatInt(r.Usage, 10) + " processes. ")
	}
	o.Message = strings.TrimSpace(text.String())
	o.Annotations = map[string]string{annotationStarved: s.StarvedResource()}
	if len(names) > 0 {
		o.Annotations[annotationContainers] = strings.Join(names, ",")
		o.Annotations[annotationContainersUsage] = strings.Join(usages, ",")
	}
	return o
}

func containerUsage(s Signal, u *ContainerUsage) (used, request int64, known bool) {
	switch s {
	case MemoryAvailable:
		return u.Memory, u.MemoryRequest, true
	case NodefsAvailable, ImagefsAvailable:
		return u.Disk, u.StorageRequest, true
	}
	return 0, 0, false
}
