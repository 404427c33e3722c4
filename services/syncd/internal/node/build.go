package node

import (
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podplane/podplane/internal/bus"
)

const (
	defaultMaxPods = 110
	reasonUnknown  = "NodeStatusUnknown"
)

// build makes a node as it is now: what it says about itself with its conditions. mu is held.
func (v *View) build(node string, now time.Time) *v1.Node {
	n := v.others[node]
	if node == v.opts.Node {
		n = v.describe()
	} else {
		n = n.DeepCopy()
	}
	n.Status.Conditions = append(v.pressures(node, now), v.readiness(node, now))
	return n
}

// describe is what this node says about itself. mu is held.
func (v *View) describe() *v1.Node {
	most := v.opts.MaxPods
	if most <= 0 {
		most = defaultMaxPods
	}
	f := &v.facts
	capacity := v1.ResourceList{
		v1.ResourceCPU: *resource.NewQuantity(int64(f.cpus), resource.DecimalSI), v1.ResourceMemory: *resource.NewQuantity(f.memory, resource.BinarySI),
		v1.ResourcePods: *resource.NewQuantity(int64(most), resource.DecimalSI),
	}
	if f.disk > 0 {
		capacity[v1.ResourceEphemeralStorage] = *resource.NewQuantity(f.disk, resource.BinarySI)
	}
	addresses := make([]v1.NodeAddress, 0, len(f.addresses)+1)
	for _, a := range f.addresses {
		addresses = append(addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a})
	}
	addresses = append(addresses, v1.NodeAddress{Type: v1.NodeHostName, Address: v.opts.Node})
	return &v1.Node{
		TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{
			Name: v.opts.Node, UID: types.UID(v.opts.Node), CreationTimestamp: metav1.NewTime(f.booted), Labels: Labels(v.opts.Node),
		},
		Status: v1.NodeStatus{
			Capacity: capacity, Allocatable: Less(capacity, v.opts.Reserved), Addresses: addresses,
			NodeInfo: v1.NodeSystemInfo{
				MachineID: f.machineID, SystemUUID: f.systemUUID, BootID: f.bootID, KernelVersion: f.kernel, OSImage: f.osImage,
				ContainerRuntimeVersion: v.runtime, KubeletVersion: "podplane " + v.opts.Version, OperatingSystem: "linux", Architecture: goarch,
			},
		},
	}
}

// Less is what is left of resources.
func Less(capacity, reserved v1.ResourceList) v1.ResourceList {
	left := capacity.DeepCopy()
	for name, q := range left {
		if r, ok := reserved[name]; ok {
			q.Sub(r)
			if q.Sign() < 0 {
				q.Set(0)
			}
			left[name] = q
		}
	}
	return left
}

// Conditions are what evictd and pleg say about this node now.
func (v *View) Conditions() []v1.NodeCondition {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.pressures(v.opts.Node, v.opts.Now())
}

// pressures are the conditions of a node under Kubernetes' names, Unknown where their writer is silent.
func (v *View) pressures(node string, now time.Time) []v1.NodeCondition {
	list := make([]v1.NodeCondition, 0, 6)
	for _, t := range []string{bus.ConditionMemoryPressure, bus.ConditionDiskPressure, bus.ConditionPIDPressure, bus.ConditionRuntimeReady, bus.ConditionNetworkReady} {
		list = append(list, v.condition(node, t, now))
	}
	return list
}

func (v *View) condition(node, name string, now time.Time) v1.NodeCondition {
	c := v1.NodeCondition{Type: v1.NodeConditionType(name), Status: v1.ConditionUnknown, Reason: "NodeStatusNeverUpdated", Message: "no service has said anything about it yet"}
	r := v.conditions[id{node, name}]
	if r == nil {
		return c
	}
	heartbeat := r.GetHeartbeat().AsTime()
	c.LastHeartbeatTime, c.LastTransitionTime = metav1.NewTime(heartbeat), metav1.NewTime(r.GetTransition().AsTime())
	if age := now.Sub(heartbeat); age > Stale {
		c.Reason, c.Message = reasonUnknown, "the service that watches it has been silent since "+heartbeat.UTC().Format(time.RFC3339)
		c.LastTransitionTime = metav1.NewTime(heartbeat.Add(Stale))
		return c
	}
	c.Status, c.Reason, c.Message = v1.ConditionStatus(r.GetStatus()), r.GetReason(), r.GetMessage()
	return c
}

// readiness sums up. It remembers when it last changed. mu is held.
func (v *View) readiness(node string, now time.Time) v1.NodeCondition {
	var why []string
	for _, t := range []string{bus.ConditionRuntimeReady, bus.ConditionNetworkReady} {
		if c := v.condition(node, t, now); c.Status != v1.ConditionTrue {
			why = append(why, t+" is "+string(c.Status)+": "+c.Message)
		}
	}
	away := v.opts.BusErr()
	c := v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", Message: "podplane is posting ready status"}
	switch {
	case node != v.opts.Node && away != nil:
		c.Status, c.Reason, c.Message = v1.ConditionUnknown, reasonUnknown, "node "+v.opts.Node+", which was asked, can't see it: the bus is away: "+away.Error()
	case node != v.opts.Node && !v.live[node]:
		c.Status, c.Reason, c.Message = v1.ConditionUnknown, reasonUnknown, "no syncd of the node is registered"
	case away != nil:
		why = append(why, "the bus is away: "+away.Error())
		fallthrough
	case len(why) > 0:
		c.Status, c.Reason, c.Message = v1.ConditionFalse, "KubeletNotReady", strings.Join(why, "; ")
	}
	before := v.ready[node]
	c.LastHeartbeatTime, c.LastTransitionTime = metav1.NewTime(now), before.LastTransitionTime
	if before.Status != c.Status {
		c.LastTransitionTime = metav1.NewTime(now)
	}
	v.ready[node] = c
	return c
}
