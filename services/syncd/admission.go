package syncd

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podplane/podplane/internal/cri"
	nodeview "github.com/podplane/podplane/services/syncd/internal/node"
	"github.com/podplane/podplane/services/syncd/internal/plan"
	"github.com/podplane/podplane/services/syncd/internal/runtime"
	"github.com/podplane/podplane/services/syncd/internal/store"
)

// allocatable is what the node has for the requests of pods.
func allocatable(cfg Config) v1.ResourceList {
	list := cfg.Resources.allocatable()
	delete(list, runtime.ResourcePIDs) // nobody can ask for them
	if disk := nodeview.DiskTotal(cfg.Root); disk > 0 {
		whole := v1.ResourceList{v1.ResourceEphemeralStorage: *resource.NewQuantity(disk, resource.BinarySI)}
		maps.Copy(list, nodeview.Less(whole, cfg.Resources.reserved()))
	}
	return list
}

// preempted is the order to make room for another pod.
func preempted(c store.PodChange) *plan.Eviction {
	p := c.Record.GetPreemption()
	if p == nil {
		return nil
	}
	e := &plan.Eviction{
		Reason: plan.ReasonPreempting, OrderedAt: p.GetAt().AsTime(), Grace: v1.DefaultTerminationGracePeriodSeconds * time.Second,
		Message: fmt.Sprintf("Preempted in order to admit critical pod %s/%s", p.GetNamespace(), p.GetName()),
	}
	if seconds := c.Pod.Spec.TerminationGracePeriodSeconds; seconds != nil {
		e.Grace = time.Duration(*seconds) * time.Second
	}
	return e
}

// statusTimeout bounds the question to the runtime.
const statusTimeout = time.Second

// strictGroups asks the runtime whether it knows the policy of supplemental groups. One that does not answer may know it.
func strictGroups(client cri.Health) func() bool {
	return func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
		defer cancel()
		s, err := client.Status(ctx)
		return err != nil || s.SupplementalGroupsPolicy
	}
}

// rejections are the reasons that are counted by name.
var rejections = []string{"OutOfcpu", "OutOfmemory", "OutOfephemeral-storage", "OutOfpods", "NodePorts", "NodeAffinity", "Evicted"}

// countRejections registers the counter of pods that were refused.
func countRejections(r prometheus.Registerer) (func(reason string), error) {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubelet_admission_rejections_total", Help: "Pods that the node did not take, by reason.",
	}, []string{"reason"})
	counters := make(map[string]prometheus.Counter, len(rejections))
	for _, reason := range rejections {
		counters[reason] = c.WithLabelValues(reason)
	}
	other := c.WithLabelValues("Other")
	if err := r.Register(c); err != nil {
		return nil, fmt.Errorf("register the counter of refused pods: %w", err)
	}
	return func(reason string) {
		if counter := counters[reason]; counter != nil {
			counter.Inc()
		} else {
			other.Inc()
		}
	}, nil
}
