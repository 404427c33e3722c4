package admission

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	helpers "k8s.io/component-helpers/resource"
)

func validateResources(r *v1.ResourceRequirements, p *field.Path) field.ErrorList {
	if len(r.Claims) > 0 {
		return field.ErrorList{notHere(p.Child("claims"), "dynamic resource allocation")}
	}
	list := validateResourceList(r.Limits, p.Child("limits"))
	list = append(list, validateResourceList(r.Requests, p.Child("requests"))...)
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		request := r.Requests[name]
		at := p.Child("requests").Key(string(name))
		limit, limited := r.Limits[name]
		switch {
		case limited && request.Cmp(limit) > 0:
			list = append(list, field.Invalid(at, "", "must be less than or equal to the "+string(name)+" limit of "+limit.String()))
		case isHugePages(name) && !limited:
			list = append(list, field.Required(p.Child("limits").Key(string(name)), "a limit must be set for hugepages"))
		case isHugePages(name) && request.Cmp(limit) != 0:
			list = append(list, field.Invalid(at, "", "must be equal to the "+string(name)+" limit of "+limit.String()))
		}
	}
	return list
}

// podResources are those that a pod may ask for as a whole.
func podResources(name v1.ResourceName) bool {
	return name == v1.ResourceCPU || name == v1.ResourceMemory || isHugePages(name)
}

// defaultPodResources fills in what a pod with limits as a whole requests: what its containers do, else as much as its limit.
func defaultPodResources(pod *v1.Pod) {
	r := pod.Spec.Resources
	if r == nil || len(r.Limits) == 0 {
		return
	}
	requests := maps.Clone(r.Requests)
	if requests == nil {
		requests = make(v1.ResourceList)
	}
	for name, sum := range helpers.AggregateContainerRequests(pod, helpers.PodResourcesOptions{}) {
		if _, asked := requests[name]; !asked && podResources(name) && !isHugePages(name) {
			requests[name] = sum.DeepCopy()
		}
	}
	for name, limit := range r.Limits {
		if _, asked := requests[name]; !asked && podResources(name) {
			requests[name] = limit.DeepCopy()
		}
	}
	r.Requests = requests
}

// validatePodResources checks what the pod asks for as a whole, by itself and beside what its containers do.
func validatePodResources(pod *v1.Pod, p *field.Path) field.ErrorList {
	r, at := pod.Spec.Resources, p.Child("resources")
	if r == nil {
		return nil
	}
	list := validateResources(r, at)
	for _, l := range []struct {
		name string
		of   v1.ResourceList
	}{{"limits", r.Limits}, {"requests", r.Requests}} {
		for _, name := range slices.Sorted(maps.Keys(l.of)) {
			if knownResource(name) && !podResources(name) {
				list = append(list, field.NotSupported(at.Child(l.name).Key(string(name)), name, []string{"cpu", "memory", "hugepages-<size>"}))
			}
		}
	}
	sums := helpers.AggregateContainerRequests(pod, helpers.PodResourcesOptions{})
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		sum, q := sums[name], r.Requests[name]
		if podResources(name) && sum.Cmp(q) > 0 {
			list = append(list, field.Invalid(at.Child("requests").Key(string(name)), q.String(), "must be greater than or equal to aggregate container requests of "+sum.String()))
		}
	}
	return append(list, validateContainersWithinPod(&pod.Spec, p)...)
}

// validateContainersWithinPod refuses limits of containers above that of the pod as a whole. Together they may be above it.
func validateContainersWithinPod(s *v1.PodSpec, p *field.Path) field.ErrorList {
	var list field.ErrorList
	for _, containers := range []struct {
		name string
		list []v1.Container
	}{{"initContainers", s.InitContainers}, {"containers", s.Containers}} {
		for i := range containers.list {
			limits := containers.list[i].Resources.Limits
			for _, name := range slices.Sorted(maps.Keys(limits)) {
				limit := limits[name]
				if whole, limited := s.Resources.Limits[name]; limited && limit.Cmp(whole) > 0 {
					at := p.Child(containers.name).Index(i).Child("resources", "limits").Key(string(name))
					list = append(list, field.Invalid(at, limit.String(), "must be less than or equal to pod limits of "+whole.String()))
				}
			}
		}
	}
	return list
}

func isHugePages(name v1.ResourceName) bool {
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

func validateResourceList(l v1.ResourceList, p *field.Path) field.ErrorList {
	var list field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(l)) {
		at := p.Key(string(name))
		q := l[name]
		if !knownResource(name) {
			list = append(list, notHere(at, "this resource", "cpu", "memory", "ephemeral-storage", "hugepages-<size>"))
			continue
		}
		if q.Sign() < 0 {
			list = append(list, field.Invalid(at, q.String(), "must be greater than or equal to 0"))
		}
		if name != v1.ResourceCPU && q.MilliValue()%1000 != 0 && q.Cmp(*resource.NewQuantity(1<<50, resource.BinarySI)) < 0 {
			list = append(list, field.Invalid(at, q.String(), "must be an integer"))
		}
	}
	return list
}

func knownResource(name v1.ResourceName) bool {
	switch name {
	case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage:
		return true
	}
	if !isHugePages(name) {
		return false
	}
	_, err := resource.ParseQuantity(strings.TrimPrefix(string(name), v1.ResourceHugePagesPrefix))
	return err == nil
}

func validateResizePolicy(policies []v1.ContainerResizePolicy, p *field.Path) field.ErrorList {
	var list field.ErrorList
	for i, r := range policies {
		list = append(list, enum(p.Index(i).Child("resourceName"), r.ResourceName, v1.ResourceCPU, v1.ResourceMemory)...)
		list = append(list, enum(p.Index(i).Child("restartPolicy"), r.RestartPolicy, v1.NotRequired, v1.RestartContainer)...)
	}
	return list
}
