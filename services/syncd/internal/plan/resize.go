package plan

import (
	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// Allocation are the resources that the node gave to each container, by name.
type Allocation map[string]v1.ResourceRequirements

// Allocate is the allocation of all that the pod asks for.
func Allocate(p *v1.Pod) Allocation {
	a := make(Allocation)
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			a[list[i].Name] = list[i].Resources
		}
	}
	return a
}

// Restore is the allocation that a published status tells of; what it does not tell of is as the pod asks.
func Restore(p *v1.Pod, s *v1.PodStatus) Allocation {
	a := Allocate(p)
	if s == nil {
		return a
	}
	for _, list := range [][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for i := range list {
			asked, known := a[list[i].Name]
			if r := list[i].Resources; known && r != nil {
				a[list[i].Name] = v1.ResourceRequirements{Requests: list[i].AllocatedResources, Limits: r.Limits, Claims: asked.Claims}
			}
		}
	}
	return a
}

// With is the pod with the resources that are allocated; the same pod when it asks for no others.
func (a Allocation) With(p *v1.Pod) *v1.Pod {
	if a.Equal(Allocate(p)) {
		return p
	}
	c := p.DeepCopy()
	for _, list := range [][]v1.Container{c.Spec.InitContainers, c.Spec.Containers} {
		for i := range list {
			if r, ok := a[list[i].Name]; ok {
				list[i].Resources = r
			}
		}
	}
	return c
}

// Equal compares two allocations by their meaning.
func (a Allocation) Equal(b Allocation) bool { return apiequality.Semantic.DeepEqual(a, b) }

// Increases says whether b gives some container more than a does.
func (a Allocation) Increases(b Allocation) bool {
	for name, r := range b {
		for resource, q := range r.Requests {
			if have := a[name].Requests[resource]; q.Cmp(have) > 0 {
				return true
			}
		}
	}
	return false
}
