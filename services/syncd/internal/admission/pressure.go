package admission

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/syncd/internal/status"
)

// systemCriticalPriority is the priority from which on a pod is taken whatever the node is short of.
const systemCriticalPriority = 2_000_000_000

// FitPressure says whether a node with these conditions takes one more valid pod, as a kubelet does: critical pods always; while memory
// alone is short, pods that ask for memory or CPU or tolerate that; no others. The refusal is of kind ResourceExhausted.
func FitPressure(pod *v1.Pod, conditions []v1.NodeCondition) error {
	var short []string
	for i := range conditions {
		switch c := &conditions[i]; c.Type {
		case v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure:
			if c.Status == v1.ConditionTrue {
				short = append(short, string(c.Type))
			}
		}
	}
	if len(short) == 0 || pod.Spec.Priority != nil && *pod.Spec.Priority >= systemCriticalPriority {
		return nil
	}
	rule := "no pods but critical ones are taken until it ends"
	if slices.Equal(short, []string{string(v1.NodeMemoryPressure)}) {
		if status.QOSClass(pod) != v1.PodQOSBestEffort || toleratesMemoryPressure(pod) {
			return nil
		}
		rule = "until it ends a pod has to ask for memory or CPU, or to tolerate " + v1.TaintNodeMemoryPressure
	}
	err := fmt.Errorf("pod %q does not fit: the node has the condition %s; %s (Evicted)", pod.Name, strings.Join(short, ", "), rule)
	return fault.WithReason(fault.Wrap(fault.ResourceExhausted, err), "Evicted")
}

func toleratesMemoryPressure(pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t v1.Toleration) bool {
		key := t.Key == v1.TaintNodeMemoryPressure || t.Key == "" && t.Operator == v1.TolerationOpExists
		value := t.Operator == v1.TolerationOpExists || t.Value == ""
		return key && value && (t.Effect == "" || t.Effect == v1.TaintEffectNoSchedule)
	})
}
