package admission

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/podplane/podplane/internal/fault"
)

// DefaultMaxPods is the largest number of active pods on a node, as in Kubernetes.
const DefaultMaxPods = 110

// Fit says whether the node takes one more valid pod beside those that are active. Refusals: kind ResourceExhausted when the node is
// full, Conflict when a host port is taken, Invalid when the pod asks for another kind of node.
func (n Node) Fit(pod *v1.Pod, active []*v1.Pod) error {
	most := n.MaxPods
	if most <= 0 {
		most = DefaultMaxPods
	}
	if len(active) >= most {
		return fault.WithReason(fault.New(fault.ResourceExhausted, "pod %q does not fit: node %s has %d active pods of at most %d (OutOfpods)", pod.Name, n.Name, len(active), most), "OutOfpods")
	}
	if err := n.fitPorts(pod, active); err != nil {
		return err
	}
	return n.fitAffinity(pod)
}

func (n Node) fitPorts(pod *v1.Pod, active []*v1.Pod) error {
	wanted := hostPorts(pod)
	if len(wanted) == 0 {
		return nil
	}
	for _, other := range active {
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
	return fault.Invalidate(about(pod), field.ErrorList{field.Invalid(at, "", detail)})
}
