package admission

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
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
