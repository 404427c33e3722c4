package pod

import v1 "k8s.io/api/core/v1"

// FindContainer returns the specification of a container of any kind, nil when the pod has none of the name. An ephemeral container
// is given as if it were a regular one.
func FindContainer(p *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	for i := range p.Spec.EphemeralContainers {
		if e := &p.Spec.EphemeralContainers[i]; e.Name == name {
			c := v1.Container(e.EphemeralContainerCommon)
			return &c
		}
	}
	return nil
}
