package admission_test

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/syncd/internal/admission"
)

func TestFitPressure(t *testing.T) {
	const memory, disk, pid = v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure
	critical := int32(2_000_000_000)
	requests := v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Mi")}}
	bestEffort := v1.PodSpec{Containers: []v1.Container{{Name: "a"}}}
	burstable := v1.PodSpec{Containers: []v1.Container{{Name: "a", Resources: requests}}}
	tolerant := func(t v1.Toleration) v1.PodSpec {
		return v1.PodSpec{Containers: bestEffort.Containers, Tolerations: []v1.Toleration{t}}
	}
	for name, tc := range map[string]struct {
		spec  v1.PodSpec
		short []v1.NodeConditionType
		want  string // in the refusal; "" is none
	}{
		"no pressure":               {bestEffort, nil, ""},
		"not ready is no pressure":  {bestEffort, []v1.NodeConditionType{v1.NodeReady}, ""},
		"best effort, memory":       {bestEffort, []v1.NodeConditionType{memory}, "MemoryPressure; until it ends a pod has to ask for memory or CPU"},
		"burstable, memory":         {burstable, []v1.NodeConditionType{memory}, ""},
		"burstable, disk":           {burstable, []v1.NodeConditionType{disk}, "DiskPressure; no pods but critical ones"},
		"burstable, processes":      {burstable, []v1.NodeConditionType{pid}, "PIDPressure; no pods but critical ones"},
		"burstable, memory, disk":   {burstable, []v1.NodeConditionType{memory, disk}, "MemoryPressure, DiskPressure; no pods but critical ones"},
		"critical, all":             {v1.PodSpec{Priority: &critical}, []v1.NodeConditionType{memory, disk, pid}, ""},
		"tolerates memory pressure": {tolerant(v1.Toleration{Key: v1.TaintNodeMemoryPressure, Operator: v1.TolerationOpExists}), []v1.NodeConditionType{memory}, ""},
		"tolerates everything":      {tolerant(v1.Toleration{Operator: v1.TolerationOpExists}), []v1.NodeConditionType{memory}, ""},
		"tolerates another effect":  {tolerant(v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}), []v1.NodeConditionType{memory}, "MemoryPressure"},
		"tolerates another taint":   {tolerant(v1.Toleration{Key: "other", Operator: v1.TolerationOpExists}), []v1.NodeConditionType{memory}, "MemoryPressure"},
		"tolerates memory, disk":    {tolerant(v1.Toleration{Operator: v1.TolerationOpExists}), []v1.NodeConditionType{memory, disk}, "no pods but critical ones"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &v1.Pod{Spec: tc.spec}
			conditions := []v1.NodeCondition{{Type: memory, Status: v1.ConditionFalse}, {Type: disk, Status: v1.ConditionUnknown}}
			for _, c := range tc.short {
				conditions = append(conditions, v1.NodeCondition{Type: c, Status: v1.ConditionTrue})
			}
			err := admission.FitPressure(pod, conditions)
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !fault.Is(err, fault.ResourceExhausted) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want a refusal with %q", err, tc.want)
			}
		})
	}
}
