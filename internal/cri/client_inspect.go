package cri

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
)

// maxInspect is how many statuses PodStatus asks for at a time.
const maxInspect = 8

// ListPods implements [Lister].
func (c *Client) ListPods(ctx context.Context, filter Filter) ([]pod.RuntimePod, error) {
	observedAt := time.Now()
	sandboxes, err := c.ListSandboxes(ctx, filter)
	if err != nil {
		return nil, err
	}
	containers, err := c.ListContainers(ctx, filter)
	if err != nil {
		return nil, err
	}
	return GroupPods(sandboxes, containers, observedAt), nil
}

// GroupPods sorts sandboxes and containers into pods by UID; pods are in the order of their UIDs. What has no UID is
// nobody's pod and left out.
func GroupPods(sandboxes []pod.Sandbox, containers []pod.Container, observedAt time.Time) []pod.RuntimePod {
	index := make(map[string]int, len(sandboxes))
	pods := make([]pod.RuntimePod, 0, len(sandboxes))
	of := func(uid, namespace, name string) *pod.RuntimePod {
		i, ok := index[uid]
		if !ok {
			i = len(pods)
			index[uid] = i
			pods = append(pods, pod.RuntimePod{UID: uid, Namespace: namespace, Name: name, ObservedAt: observedAt})
		}
		return &pods[i]
	}
	for i := range sandboxes {
		s := &sandboxes[i]
		if s.UID != "" {
			p := of(s.UID, s.Namespace, s.Name)
			p.Sandboxes = append(p.Sandboxes, *s)
		}
	}
	for i := range containers {
		ctr := &containers[i]
		if ctr.PodUID != "" {
			p := of(ctr.PodUID, ctr.PodNamespace, ctr.PodName)
			p.Containers = append(p.Containers, *ctr)
		}
	}
	for i := range pods {
		pods[i].Sort()
	}
	slices.SortFunc(pods, func(a, b pod.RuntimePod) int { return strings.Compare(a.UID, b.UID) })
	return pods
}

// PodStatus implements [Lister].
func (c *Client) PodStatus(ctx context.Context, uid string) (pod.RuntimePod, error) {
	p := pod.RuntimePod{UID: uid, ObservedAt: time.Now()}
	filter := Filter{PodUID: uid}
	sandboxes, err := c.listSandboxes(ctx, c.runtimeOp(opListSandboxes, uid).within(c.timeouts.Inspect), filter)
	if err != nil {
		return p, err
	}
	containers, err := c.listContainers(ctx, c.runtimeOp(opListContainers, uid).within(c.timeouts.Inspect), filter)
	if err != nil {
		return p, err
	}
	failed := make([]error, len(sandboxes)+len(containers))
	inSequenceOrParallel(len(failed), func(i int) {
		if i < len(sandboxes) {
			op := c.sandboxOp(opSandboxStatus, sandboxes[i].ID).of(uid).within(c.timeouts.Inspect)
			sandboxes[i], failed[i] = c.sandboxStatus(ctx, op)
			return
		}
		ctr := &containers[i-len(sandboxes)]
		op := c.containerOp(opContainerStatus, ctr.ID).of(uid).within(c.timeouts.Inspect)
		sandboxID := ctr.SandboxID
		*ctr, failed[i] = c.containerStatus(ctx, op)
		ctr.SandboxID = sandboxID
	})
	inspectErr := &InspectError{PodUID: uid}
	for i, err := range failed {
		switch {
		case err != nil && !fault.Is(err, fault.NotFound): // removed since the list: left out
			inspectErr.Failed = append(inspectErr.Failed, err)
		case err != nil:
		case i < len(sandboxes):
			p.Sandboxes = append(p.Sandboxes, sandboxes[i])
			p.Namespace, p.Name = sandboxes[i].Namespace, sandboxes[i].Name
		default:
			ctr := containers[i-len(sandboxes)]
			p.Containers = append(p.Containers, ctr)
			p.Namespace, p.Name = ctr.PodNamespace, ctr.PodName
		}
	}
	p.Sort()
	if len(inspectErr.Failed) > 0 {
		return p, inspectErr
	}
	return p, nil
}

// inSequenceOrParallel calls do for 0 to n-1: a single one at once, more with at most maxInspect at a time.
func inSequenceOrParallel(n int, do func(int)) {
	if n == 1 {
		do(0)
		return
	}
	var next atomic.Int64
	work := func() {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			do(i)
		}
	}
	var wg sync.WaitGroup
	for range min(n, maxInspect) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
}
