package admission

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/podplane/podplane/internal/fault"
)

// DefaultMaxPods is the largest number of active pods on a node, as in Kubernetes.
const DefaultMaxPods = 110

// Tenant is a pod that holds or will hold resources of the node, with what its object does not say.
type Tenant struct {
	// Pod has the resources that were allocated to it. It is not changed.
	Pod *v1.Pod
	// Static: it comes from a manifest on the node or from a URL.
	Static bool
	// Leaving: it was told to make room. What it holds is given to others, who start when it has ended.
	Leaving bool
}

// critical says whether room is made for the pod.
func (t *Tenant) critical() bool {
	return t.Static || t.Pod.Spec.Priority != nil && *t.Pod.Spec.Priority >= systemCriticalPriority
}

// Verdict is how a pod is taken.
type Verdict struct {
	// Preempt are pods that must be told to make room before this one is stored.
	Preempt []types.UID
	// After are pods that must have ended before this one may start.
	After []types.UID
}

// Fit says whether the node takes one more valid pod beside those that are active, and how. Refusals: kind ResourceExhausted when the node is
// full, Conflict when a host port is taken, Invalid when the pod asks for another kind of node or for more than the node has.
func (n Node) Fit(candidate Tenant, active []Tenant) (Verdict, error) {
	if err := n.fitPorts(candidate.Pod, active); err != nil {
		return Verdict{}, err
	}
	if err := n.fitAffinity(candidate.Pod); err != nil {
		return Verdict{}, err
	}
	staying := slices.DeleteFunc(slices.Clone(active), func(t Tenant) bool { return t.Leaving })
	short := n.shortages(candidate.Pod, staying)
	switch {
	case len(short) > 0 && candidate.critical():
		victims, ok := preempt(candidate, staying, short)
		if !ok {
			return Verdict{}, n.full(candidate.Pod, short)
		}
		return Verdict{Preempt: victims}, nil
	case len(short) > 0:
		return Verdict{}, n.full(candidate.Pod, short)
	case len(staying) == len(active) || len(n.shortages(candidate.Pod, active)) == 0:
		return Verdict{}, nil
	}
	var v Verdict
	for i := range active {
		if active[i].Leaving {
			v.After = append(v.After, active[i].Pod.UID)
		}
	}
	return v, nil
}

// shortage is what is missing of a resource.
type shortage struct {
	name                      v1.ResourceName
	requested, used, capacity resource.Quantity
}

// missing is how much more there would have to be.
func (s *shortage) missing() resource.Quantity {
	m := s.requested.DeepCopy()
	m.Add(s.used)
	m.Sub(s.capacity)
	return m
}

// String is a kubelet's message.
func (s shortage) String() string {
	return fmt.Sprintf("Node didn't have enough resource: %s, requested: %s, used: %s, capacity: %s", s.name, s.requested.String(), s.used.String(), s.capacity.String())
}

// shortages compares requests with what the node has to give, sorted by name. What the node does not know is not compared.
func (n Node) shortages(pod *v1.Pod, active []Tenant) []shortage {
	capacity, wanted := n.capacity(), demand(pod)
	maps.DeleteFunc(wanted, func(name v1.ResourceName, q resource.Quantity) bool {
		_, known := capacity[name]
		return !known || q.IsZero()
	})
	used := v1.ResourceList{v1.ResourcePods: *resource.NewQuantity(int64(len(active)), resource.DecimalSI)}
	for i := range active {
		if len(wanted) == 1 {
			break // it asks for nothing but its place
		}
		for name, more := range requests(active[i].Pod) {
			sum := used[name]
			sum.Add(more)
			used[name] = sum
		}
	}
	var list []shortage
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		s := shortage{name: name, requested: wanted[name], used: used[name], capacity: capacity[name]}
		if m := s.missing(); m.Sign() > 0 {
			list = append(list, s)
		}
	}
	return list
}

// demand is what a pod takes of a node.
func demand(pod *v1.Pod) v1.ResourceList {
	r := requests(pod)
	if r == nil {
		r = make(v1.ResourceList, 1)
	}
	r[v1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return r
}

// capacity is what the node has for pods.
func (n Node) capacity() v1.ResourceList {
	most := n.MaxPods
	if most <= 0 {
		most = DefaultMaxPods
	}
	list := make(v1.ResourceList, len(n.Allocatable)+1)
	maps.Copy(list, n.Allocatable)
	list[v1.ResourcePods] = *resource.NewQuantity(int64(most), resource.DecimalSI)
	return list
}

// full refuses a pod. What the node would not have even if it were empty is not worth another try.
func (n Node) full(pod *v1.Pod, short []shortage) error {
	kind, words, reason := fault.ResourceExhausted, make([]string, len(short)), ""
	for i := range short {
		s := &short[i]
		words[i] = s.String()
		switch {
		case s.requested.Cmp(s.capacity) > 0 && kind != fault.Invalid:
			kind, reason = fault.Invalid, "OutOf"+string(s.name)
		case reason == "":
			reason = "OutOf" + string(s.name)
		}
	}
	err := fmt.Errorf("pod %q does not fit: %s (%s)", pod.Name, strings.Join(words, "; "), reason)
	return fault.WithReason(fault.Wrap(kind, err), reason)
}

func (n Node) fitPorts(pod *v1.Pod, active []Tenant) error {
	wanted := hostPorts(pod)
	if len(wanted) == 0 {
		return nil
	}
	for i := range active {
		other := active[i].Pod
		for p := range hostPorts(other) {
			for w := range wanted {
				if w.clashes(p) {
					err := fault.New(fault.Conflict, "pod %q does not fit: host port %d/%s is in use by pod %s/%s (NodePorts)", pod.Name, w.port, w.protocol, other.Namespace, other.Name)
					return fault.WithReason(err, "NodePorts")
				}
			}
		}
	}
	return nil
}

func hostPorts(pod *v1.Pod) map[hostPort]bool {
	var ports map[hostPort]bool
	add := func(c *v1.Container) {
		for _, p := range c.Ports {
			if p.HostPort == 0 {
				continue
			}
			if ports == nil {
				ports = make(map[hostPort]bool)
			}
			ports[hostPort{p.HostIP, p.Protocol, p.HostPort}] = true
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		// An init container that ends has given its ports back before the others start; a sidecar keeps them.
		if r := pod.Spec.InitContainers[i].RestartPolicy; r != nil && *r == v1.ContainerRestartPolicyAlways {
			add(&pod.Spec.InitContainers[i])
		}
	}
	return ports
}

func (h hostPort) clashes(o hostPort) bool {
	return h.port == o.port && h.protocol == o.protocol && (h.ip == o.ip || anyIP(h.ip) || anyIP(o.ip))
}

func anyIP(ip string) bool { return ip == "" || ip == "0.0.0.0" || ip == "::" }

// fitAffinity compares what the pod demands of its node with the node's labels.
func (n Node) fitAffinity(pod *v1.Pod) error {
	if len(pod.Spec.NodeSelector) == 0 && (pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil) {
		return nil
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}}
	ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	at, detail := field.NewPath("spec", "nodeSelector"), fmt.Sprintf("node %s does not have the labels that the pod's node selector or affinity demands (NodeAffinity)", n.Name)
	if len(pod.Spec.NodeSelector) == 0 {
		at = field.NewPath("spec", "affinity", "nodeAffinity")
	}
	if err != nil {
		detail = "can't be read: " + err.Error()
	}
	if ok && err == nil {
		return nil
	}
	return fault.WithReason(fault.Invalidate(about(pod), field.ErrorList{field.Invalid(at, "", detail)}), "NodeAffinity")
}
