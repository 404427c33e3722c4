// Package admission decides which pods and config objects this node takes: it fills in Kubernetes' defaults, validates and, for updates,
// says what may change. It is pure: no I/O, no clock, no state.
//
// Every finding names the field, what is wrong with it and what is allowed. What Kubernetes has and this node does not do yet is refused
// as "not supported by this node" rather than taken and ignored.
//
// Where a kubelet would take a pod and let it fail (no room, a host port in use, pressure), there is nobody here to place it elsewhere, so Fit
// and FitPressure refuse it at once and the client hears why.
package admission

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podplane/podplane/internal/fault"
)

// Node is what admission must know of the node.
type Node struct {
	Name string
	// MaxPods is the largest number of active pods; 0 is 110.
	MaxPods int
	// Allocatable is what the node has for the requests of pods; what is not named here is not compared. Pods are counted by MaxPods.
	Allocatable v1.ResourceList
	// Labels are the node's.
	Labels map[string]string
	// UnsafeSysctls are kernel parameters that pods may set beside the safe ones; an asterisk at the end stands for anything.
	UnsafeSysctls []string
	// RuntimeClass looks a runtime class up, nil when there is none of the name; a nil function knows none.
	RuntimeClass func(name string) (*nodev1.RuntimeClass, error)
	// AppArmor says why a profile can't be used, "" being the runtime's default; a nil function allows all.
	AppArmor func(profile string) error
	// StrictGroups says whether the runtime can give containers just the supplemental groups of their pod; a nil function says yes.
	StrictGroups func() bool
}

// Pod defaults and validates a pod that is to be created in a namespace; "" takes the pod's own, or "default". It changes the pod.
func (n Node) Pod(pod *v1.Pod, namespace string) error {
	list := n.identify(pod, namespace)
	pod.Status = v1.PodStatus{}
	Defaults(pod)
	list = append(list, n.local(pod)...)
	list = append(list, Validate(pod)...)
	return fault.Invalidate(about(pod), list)
}

func about(pod *v1.Pod) fault.Object {
	name := pod.Name
	if name == "" {
		name = pod.GenerateName
	}
	return fault.Object{Resource: "Pod", Name: name}
}

// identify sets the namespace and the node, and clears what only the system may set.
func (n Node) identify(pod *v1.Pod, namespace string) field.ErrorList {
	var list field.ErrorList
	meta := field.NewPath("metadata")
	switch {
	case namespace == "" && pod.Namespace == "":
		pod.Namespace = "default"
	case pod.Namespace == "":
		pod.Namespace = namespace
	case namespace != "" && pod.Namespace != namespace:
		list = append(list, field.Invalid(meta.Child("namespace"), pod.Namespace, "must be the namespace of the request, "+quote(namespace)+", or empty"))
	}
	spec := field.NewPath("spec", "nodeName")
	switch pod.Spec.NodeName {
	case "":
		pod.Spec.NodeName = n.Name
	case n.Name:
	default:
		list = append(list, field.Invalid(spec, pod.Spec.NodeName, "must be this node, "+quote(n.Name)+", or empty"))
	}
	ClearSystemMeta(pod)
	return list
}

func quote(s string) string { return `"` + s + `"` }

// list of words for messages, quoted.
func oneOf[T ~string](words ...T) []string {
	l := make([]string, len(words))
	for i, w := range words {
		l[i] = string(w)
	}
	return l
}

func enum[T ~string](p *field.Path, value T, allowed ...T) field.ErrorList {
	for _, a := range allowed {
		if a == value {
			return nil
		}
	}
	return field.ErrorList{field.NotSupported(p, string(value), oneOf(allowed...))}
}

func notHere(p *field.Path, what string, supported ...string) *field.Error {
	detail := "not supported by this node: " + what
	if len(supported) > 0 {
		detail += ", supported: " + strings.Join(supported, ", ")
	}
	return field.Forbidden(p, detail)
}
