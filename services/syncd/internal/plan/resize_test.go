package plan_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

func resources(requestCPU, limitMemory string) v1.ResourceRequirements {
	return v1.ResourceRequirements{
		Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(requestCPU)}, Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse(limitMemory)},
	}
}

// TestAllocation restores what was allocated from a status, and works with it until the pod gets what it asks for.
func TestAllocation(t *testing.T) {
	p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "a", Resources: resources("2", "64Mi")}, {Name: "b", Resources: resources("1", "32Mi")}}}}
	had := resources("1", "64Mi")
	s := &v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "a", AllocatedResources: had.Requests, Resources: &had}}}
	given, wanted := plan.Restore(p, s), plan.Allocate(p)
	if given.Equal(wanted) || !given.Increases(wanted) || wanted.Increases(given) {
		t.Fatalf("allocated %v, wanted %v", given, wanted)
	}
	w := given.With(p)
	if w == p || w.Spec.Containers[0].Resources.Requests.Cpu().Value() != 1 || w.Spec.Containers[1].Resources.Requests.Cpu().Value() != 1 {
		t.Errorf("works with %v", w.Spec.Containers)
	}
	if p.Spec.Containers[0].Resources.Requests.Cpu().Value() != 2 || wanted.With(p) != p || !plan.Restore(p, nil).Equal(wanted) {
		t.Error("the pod as it is wished for was changed")
	}
}

// TestResizeIsDone plans one resize at a time, a restart only where the policy asks for it, and a pause after a failure.
func TestResizeIsDone(t *testing.T) {
	in := restartInput(v1.RestartPolicyAlways, v1.Container{Name: "app", Image: "i", Resources: resources("1", "64Mi")})
	given := plan.Resources(&in.Pod.Spec.Containers[0].Resources)
	given.MemoryLimitBytes = 32 << 20
	in.Runtime.Containers = []pod.Container{{Name: "app", ID: "1", SandboxID: "s", State: pod.ContainerRunning, Resources: &given}}
	if p := plan.Next(in); plans(p, plan.Resize, "") {
		t.Errorf("none is due: %v", p.Actions)
	}
	in.Resize.Due = true
	if p := plan.Next(in); !plans(p, plan.Resize, "") || plans(p, plan.KillContainer, "app") {
		t.Errorf("due: %v", p.Actions)
	}
	in.Pod.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer}}
	if p := plan.Next(in); !plans(p, plan.KillContainer, "app") {
		t.Errorf("with a restart: %v", p.Actions)
	}
	in.Busy.Resize = true
	if p := plan.Next(in); plans(p, plan.Resize, "") {
		t.Errorf("twice: %v", p.Actions)
	}
	in.Busy.Resize, in.Resize.Failure = false, plan.Failure{Message: "busy", Count: 1, NotBefore: in.Now.Add(time.Second)}
	if p := plan.Next(in); plans(p, plan.Resize, "") || !p.Again.Equal(in.Resize.Failure.NotBefore) {
		t.Errorf("after a failure: %v again %s", p.Actions, p.Again)
	}
}

// TestEphemeralContainers starts each once, before the init containers are over, and never again.
func TestEphemeralContainers(t *testing.T) {
	in := restartInput(v1.RestartPolicyAlways, v1.Container{Name: "app", Image: "i"})
	in.Pod.Spec.InitContainers = []v1.Container{{Name: "init", Image: "j"}}
	in.Pod.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "look", Image: "i"}}}
	if p := plan.Next(in); !plans(p, plan.EnsureImage, "look") || !plans(p, plan.EnsureImage, "init") {
		t.Errorf("at first: %v", p.Actions)
	}
	in.Images = map[string]plan.Image{"look": {Ref: "i", Ready: true}}
	if p := plan.Next(in); !plans(p, plan.StartContainer, "look") {
		t.Errorf("with its image: %v", p.Actions)
	}
	in.Runtime.Containers = []pod.Container{ended("look", "1", 1, in.Now.Add(-time.Hour))}
	if p := plan.Next(in); plans(p, plan.StartContainer, "look") || p.Phase != plan.Syncing {
		t.Errorf("after its end: %v", p.Actions)
	}
	in.Runtime.Containers = nil
	in.Previous = &v1.PodStatus{EphemeralContainerStatuses: []v1.ContainerStatus{{Name: "look", ContainerID: "containerd://1"}}}
	if p := plan.Next(in); plans(p, plan.StartContainer, "look") {
		t.Errorf("with its record lost: %v", p.Actions)
	}
}
