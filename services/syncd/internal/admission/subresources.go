package admission

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	helpers "k8s.io/component-helpers/resource"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/syncd/internal/status"
)

// EphemeralContainers gives the pod with the ephemeral containers of sent, which may only be more than before.
func (n Node) EphemeralContainers(sent, old *v1.Pod) (*v1.Pod, error) {
	pod := old.DeepCopy()
	pod.Spec.EphemeralContainers = sent.DeepCopy().Spec.EphemeralContainers
	p := field.NewPath("spec", "ephemeralContainers")
	var list field.ErrorList
	for i := range pod.Spec.EphemeralContainers {
		defaultEphemeral(&pod.Spec.EphemeralContainers[i])
	}
	for i := range old.Spec.EphemeralContainers {
		have := &old.Spec.EphemeralContainers[i]
		at := slices.IndexFunc(pod.Spec.EphemeralContainers, func(e v1.EphemeralContainer) bool { return e.Name == have.Name })
		switch {
		case at < 0:
			list = append(list, field.Forbidden(p, "existing ephemeral containers "+quote(have.Name)+" may not be removed"))
		case !apiequality.Semantic.DeepEqual(*have, pod.Spec.EphemeralContainers[at]):
			list = append(list, field.Forbidden(p, "existing ephemeral containers "+quote(have.Name)+" may not be changed"))
		}
	}
	list = append(list, validateEphemeral(&pod.Spec, p)...)
	if len(list) == 0 {
		list = n.local(pod)
	}
	if len(list) > 0 {
		return nil, fault.Invalidate(about(pod), list)
	}
	if len(pod.Spec.EphemeralContainers) != len(old.Spec.EphemeralContainers) {
		pod.Generation++
	}
	return pod, nil
}

func defaultEphemeral(e *v1.EphemeralContainer) {
	c := v1.Container(e.EphemeralContainerCommon)
	defaultContainer(&c, false)
	e.EphemeralContainerCommon = v1.EphemeralContainerCommon(c)
}

func validateEphemeral(s *v1.PodSpec, p *field.Path) field.ErrorList {
	var list field.ErrorList
	names, regular := make(map[string]bool), make(map[string]bool)
	for _, containers := range [][]v1.Container{s.InitContainers, s.Containers} {
		for i := range containers {
			names[containers[i].Name], regular[containers[i].Name] = true, true
		}
	}
	volumes, _ := validateVolumes(s.Volumes, p) // they were checked when the pod was created
	for i := range s.EphemeralContainers {
		e, at := &s.EphemeralContainers[i], p.Index(i)
		c := v1.Container(e.EphemeralContainerCommon)
		list = append(list, invalidIf(at.Child("name"), c.Name, validation.IsDNS1123Label(c.Name))...)
		if names[c.Name] {
			list = append(list, field.Duplicate(at.Child("name"), c.Name))
		}
		names[c.Name] = true
		if e.TargetContainerName != "" && !regular[e.TargetContainerName] {
			list = append(list, field.NotFound(at.Child("targetContainerName"), e.TargetContainerName))
		}
		for _, f := range []struct {
			set  bool
			name string
		}{
			{len(c.Ports) > 0, "ports"},
			{c.LivenessProbe != nil, "livenessProbe"},
			{c.ReadinessProbe != nil, "readinessProbe"},
			{c.StartupProbe != nil, "startupProbe"},
			{c.Lifecycle != nil, "lifecycle"},
			{len(c.Resources.Limits)+len(c.Resources.Requests)+len(c.Resources.Claims) > 0, "resources"},
			{len(c.ResizePolicy) > 0, "resizePolicy"},
			{c.RestartPolicy != nil, "restartPolicy"},
			{len(c.RestartPolicyRules) > 0, "restartPolicyRules"},
		} {
			if f.set {
				list = append(list, field.Forbidden(at.Child(f.name), "cannot be set for an Ephemeral Container"))
			}
		}
		list = append(list, validateContainer(&c, volumes, at)...)
		list = append(list, validateProcMount(&c, ownUsers(s), at)...)
	}
	return list
}

// Resize gives the pod with the resources of sent. Nothing else may differ, and the class of service stays.
func (n Node) Resize(sent, old *v1.Pod) (*v1.Pod, error) {
	pod := old.DeepCopy()
	sent = sent.DeepCopy()
	Defaults(sent)
	inherit(&sent.Spec, &old.Spec)
	p := field.NewPath("spec")
	list := resize(pod.Spec.Containers, sent.Spec.Containers, p.Child("containers"))
	list = append(list, resize(pod.Spec.InitContainers, sent.Spec.InitContainers, p.Child("initContainers"))...)
	if !apiequality.Semantic.DeepEqual(sent.Spec.Resources, old.Spec.Resources) {
		list = append(list, notHere(p.Child("resources"), "resizing a pod as a whole; its containers' resources can be changed within what the pod has"))
		sent.Spec.Resources = old.Spec.Resources
	}
	list = append(list, validatePodResources(pod, p)...)
	if len(list) == 0 && !apiequality.Semantic.DeepEqual(withoutResources(&pod.Spec), withoutResources(&sent.Spec)) {
		for _, at := range changed(withoutResources(&sent.Spec), withoutResources(&old.Spec)) {
			list = append(list, field.Forbidden(field.NewPath("spec"+at), "only cpu and memory resources are mutable by a resize"))
		}
	}
	if len(list) == 0 && status.QOSClass(pod) != status.QOSClass(old) {
		list = append(list, field.Invalid(p, string(status.QOSClass(pod)), "Pod QOS Class may not change as a result of resizing"))
	}
	if len(list) > 0 {
		return nil, fault.Invalidate(about(old), list)
	}
	if !apiequality.Semantic.DeepEqual(pod.Spec, old.Spec) {
		pod.Generation++
	}
	return pod, nil
}

// resize takes the resources and resize policies over.
func resize(to, from []v1.Container, p *field.Path) field.ErrorList {
	if len(to) != len(from) {
		return field.ErrorList{field.Forbidden(p, "only cpu and memory resources are mutable by a resize")}
	}
	var list field.ErrorList
	for i := range to {
		at := p.Index(i).Child("resources")
		if to[i].Name != from[i].Name {
			return field.ErrorList{field.Forbidden(p.Index(i).Child("name"), "only cpu and memory resources are mutable by a resize")}
		}
		list = append(list, validateResources(&from[i].Resources, at)...)
		list = append(list, validateResizePolicy(from[i].ResizePolicy, p.Index(i).Child("resizePolicy"))...)
		list = append(list, otherResources(&from[i].Resources, &to[i].Resources, at)...)
		for name := range to[i].Resources.Limits {
			if _, kept := from[i].Resources.Limits[name]; !kept {
				list = append(list, field.Forbidden(at.Child("limits"), "resource limits cannot be removed"))
			}
		}
		for name := range to[i].Resources.Requests {
			if _, kept := from[i].Resources.Requests[name]; !kept {
				list = append(list, field.Forbidden(at.Child("requests"), "resource requests cannot be removed"))
			}
		}
		to[i].Resources, to[i].ResizePolicy = from[i].Resources, from[i].ResizePolicy
	}
	return list
}

// otherResources refuses a change of what is neither CPU nor memory.
func otherResources(r, old *v1.ResourceRequirements, p *field.Path) field.ErrorList {
	var list field.ErrorList
	for _, l := range []struct {
		name     string
		now, was v1.ResourceList
	}{{"limits", r.Limits, old.Limits}, {"requests", r.Requests, old.Requests}} {
		for name, q := range l.now {
			if was, had := l.was[name]; name != v1.ResourceCPU && name != v1.ResourceMemory && (!had || q.Cmp(was) != 0) {
				list = append(list, field.Forbidden(p.Child(l.name).Key(string(name)), "only cpu and memory resources are mutable by a resize"))
			}
		}
	}
	return list
}

func withoutResources(s *v1.PodSpec) *v1.PodSpec {
	c := s.DeepCopy()
	for _, list := range [][]v1.Container{c.Containers, c.InitContainers} {
		for i := range list {
			list[i].Resources, list[i].ResizePolicy = v1.ResourceRequirements{}, nil
		}
	}
	return c
}

// maxConditions bounds the conditions that others may set.
const maxConditions = 32

// Conditions gives the pod with those conditions of sent that are not the node's own. Times that were not sent are set where the status changed.
func (n Node) Conditions(sent, old *v1.Pod, now metav1.Time) (*v1.Pod, error) {
	pod := old.DeepCopy()
	pod.Status = v1.PodStatus{}
	p := field.NewPath("status", "conditions")
	var list field.ErrorList
	for i := range sent.Status.Conditions {
		c, at := sent.Status.Conditions[i], p.Index(i)
		if status.OwnCondition(c.Type) {
			continue
		}
		list = append(list, invalidIf(at.Child("type"), string(c.Type), validation.IsQualifiedName(string(c.Type)))...)
		list = append(list, enum(at.Child("status"), c.Status, v1.ConditionTrue, v1.ConditionFalse, v1.ConditionUnknown)...)
		if slices.ContainsFunc(pod.Status.Conditions, func(x v1.PodCondition) bool { return x.Type == c.Type }) {
			list = append(list, field.Duplicate(at.Child("type"), c.Type))
		}
		was := slices.IndexFunc(old.Status.Conditions, func(x v1.PodCondition) bool { return x.Type == c.Type })
		switch {
		case was >= 0 && old.Status.Conditions[was].Status == c.Status:
			c.LastTransitionTime = old.Status.Conditions[was].LastTransitionTime
		case c.LastTransitionTime.IsZero(), was >= 0 && c.LastTransitionTime.Equal(&old.Status.Conditions[was].LastTransitionTime):
			c.LastTransitionTime = now
		}
		pod.Status.Conditions = append(pod.Status.Conditions, c)
	}
	if n := len(pod.Status.Conditions); n > maxConditions {
		list = append(list, field.TooMany(p, n, maxConditions))
	}
	if len(list) > 0 {
		return nil, fault.Invalidate(about(old), list)
	}
	return pod, nil
}

// Room says why a node of so many resources has no room for the pod's requests beside those of the active pods, "" when it has.
func Room(pod *v1.Pod, active []*v1.Pod, node v1.ResourceList) string {
	wanted := requests(pod)
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		have, known := node[name]
		want := wanted[name]
		if !known || want.IsZero() {
			continue
		}
		for _, other := range active {
			if other.UID != pod.UID {
				more := requests(other)[name]
				want.Add(more)
			}
		}
		if want.Cmp(have) > 0 {
			return "Node didn't have enough resource: " + string(name) + ", requested: " + printed(wanted[name]) + ", of the node: " + printed(have)
		}
	}
	return ""
}

func requests(pod *v1.Pod) v1.ResourceList {
	return helpers.PodRequests(pod, helpers.PodResourcesOptions{})
}

func printed(q resource.Quantity) string { return q.String() }
