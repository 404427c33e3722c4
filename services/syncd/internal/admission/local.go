package admission

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// local checks what depends on this node's configuration and kernel, and fills in what comes from there.
func (n Node) local(pod *v1.Pod) field.ErrorList {
	s, p := &pod.Spec, field.NewPath("spec")
	list := n.runtimeClass(s, p)
	if c := s.SecurityContext; c != nil {
		at := p.Child("securityContext")
		list = append(list, n.sysctls(c.Sysctls, at.Child("sysctls"))...)
		list = append(list, n.appArmor(c.AppArmorProfile, at.Child("appArmorProfile"))...)
		if g := c.SupplementalGroupsPolicy; g != nil && *g == v1.SupplementalGroupsPolicyStrict && n.StrictGroups != nil && !n.StrictGroups() {
			list = append(list, field.Forbidden(at.Child("supplementalGroupsPolicy"), "not supported by this node: its runtime can't do without the groups that the image names (SupplementalGroupsPolicyNotSupported)"))
		}
	}
	for _, containers := range []struct {
		name string
		list []v1.Container
	}{{"initContainers", s.InitContainers}, {"containers", s.Containers}} {
		for i := range containers.list {
			if c := containers.list[i].SecurityContext; c != nil {
				list = append(list, n.appArmor(c.AppArmorProfile, p.Child(containers.name).Index(i).Child("securityContext", "appArmorProfile"))...)
			}
		}
	}
	for i := range s.EphemeralContainers {
		if c := s.EphemeralContainers[i].SecurityContext; c != nil {
			list = append(list, n.appArmor(c.AppArmorProfile, p.Child("ephemeralContainers").Index(i).Child("securityContext", "appArmorProfile"))...)
		}
	}
	return list
}

// sysctls refuses kernel parameters that are neither safe nor allowed by configuration.
func (n Node) sysctls(sysctls []v1.Sysctl, p *field.Path) field.ErrorList {
	var list field.ErrorList
	for i, x := range sysctls {
		name := strings.ReplaceAll(x.Name, "/", ".")
		if name == "" || slices.Contains(safeSysctls, name) || slices.ContainsFunc(n.UnsafeSysctls, func(allowed string) bool { return sysctlMatches(allowed, name) }) {
			continue
		}
		list = append(list, field.NotSupported(p.Index(i).Child("name"), x.Name, append(slices.Clone(safeSysctls), n.UnsafeSysctls...)))
	}
	return list
}

// sysctlMatches compares a name with one of the configuration, which may end in an asterisk.
func sysctlMatches(allowed, name string) bool {
	allowed = strings.ReplaceAll(allowed, "/", ".")
	if prefix, ok := strings.CutSuffix(allowed, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return allowed == name
}

func (n Node) appArmor(a *v1.AppArmorProfile, p *field.Path) field.ErrorList {
	if a == nil || a.Type == v1.AppArmorProfileTypeUnconfined || n.AppArmor == nil {
		return nil
	}
	name := ""
	if a.Type == v1.AppArmorProfileTypeLocalhost && a.LocalhostProfile != nil {
		name = *a.LocalhostProfile
	}
	if err := n.AppArmor(name); err != nil {
		return field.ErrorList{field.Forbidden(p, "not supported by this node: "+err.Error())}
	}
	return nil
}

// runtimeClass looks the pod's class up and takes its overhead and node selector over.
func (n Node) runtimeClass(s *v1.PodSpec, p *field.Path) field.ErrorList {
	var overhead v1.ResourceList
	if s.RuntimeClassName != nil {
		at := p.Child("runtimeClassName")
		class, err := n.class(*s.RuntimeClassName)
		if err != nil {
			return field.ErrorList{field.Invalid(at, *s.RuntimeClassName, err.Error())}
		}
		if class == nil {
			return field.ErrorList{field.NotFound(at, *s.RuntimeClassName)}
		}
		if class.Overhead != nil {
			overhead = class.Overhead.PodFixed
		}
		if list := schedule(s, class.Scheduling, p); len(list) > 0 {
			return list
		}
	}
	if len(s.Overhead) > 0 && !apiequality.Semantic.DeepEqual(s.Overhead, overhead) {
		return field.ErrorList{field.Forbidden(p.Child("overhead"), "must be that of the pod's runtime class, or not be set")}
	}
	s.Overhead = overhead
	return nil
}

func (n Node) class(name string) (*nodev1.RuntimeClass, error) {
	if n.RuntimeClass == nil {
		return nil, nil
	}
	return n.RuntimeClass(name)
}

// schedule adds the class's node selector and tolerations to the pod's.
func schedule(s *v1.PodSpec, c *nodev1.Scheduling, p *field.Path) field.ErrorList {
	if c == nil {
		return nil
	}
	for k, v := range c.NodeSelector {
		if have, ok := s.NodeSelector[k]; ok && have != v {
			return field.ErrorList{field.Invalid(p.Child("nodeSelector").Key(k), have, "conflicts with the runtime class, which demands "+quote(v))}
		}
		if s.NodeSelector == nil {
			s.NodeSelector = make(map[string]string, len(c.NodeSelector))
		}
		s.NodeSelector[k] = v
	}
	for _, t := range c.Tolerations {
		if !slices.ContainsFunc(s.Tolerations, func(x v1.Toleration) bool { return x.MatchToleration(&t) }) {
			s.Tolerations = append(s.Tolerations, t)
		}
	}
	return nil
}
