package admission_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	helpers "k8s.io/component-helpers/resource"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/syncd/internal/admission"
	"github.com/podplane/podplane/services/syncd/internal/status"
)

func TestFit(t *testing.T) {
	active := []admission.Tenant{{Pod: podOf(t, container("ports: [{containerPort: 1, hostPort: 80, hostIP: 10.0.0.1, protocol: TCP}]"))}}
	for spec, kind := range map[string]fault.Kind{
		container("ports: [{containerPort: 1, hostPort: 80, protocol: TCP}]"):                   fault.Conflict,
		container("ports: [{containerPort: 1, hostPort: 80, hostIP: 10.0.0.1, protocol: TCP}]"): fault.Conflict,
		container("ports: [{containerPort: 1, hostPort: 80, hostIP: 10.0.0.2, protocol: TCP}]"): fault.None,
		container("ports: [{containerPort: 1, hostPort: 80, protocol: UDP}]"):                   fault.None,
		container("ports: [{containerPort: 80, protocol: TCP}]"):                                fault.None,
		"nodeSelector: {disk: ssd}":                 fault.None,
		"nodeSelector: {disk: hdd}":                 fault.Invalid,
		"nodeSelector: {kubernetes.io/os: windows}": fault.Invalid,
		"affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: NotIn, values: [ssd]}]}]}}}":     fault.Invalid,
		"affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [node-1]}]}]}}}": fault.None,
		"affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: disk, operator: In, values: [hdd]}]}}]}}":   fault.None,
	} {
		if _, err := node.Fit(admission.Tenant{Pod: podOf(t, spec)}, active); fault.KindOf(err) != kind {
			t.Errorf("%s: got %v", spec, err)
		}
	}
}

// asking is a pod that asks for cpu and memory ("" for none).
func asking(uid, cpu, memory string) admission.Tenant {
	list := v1.ResourceList{}
	for name, q := range map[v1.ResourceName]string{v1.ResourceCPU: cpu, v1.ResourceMemory: memory} {
		if q != "" {
			list[name] = resource.MustParse(q)
		}
	}
	return admission.Tenant{Pod: withRequests(uid, list, nil)}
}

func withRequests(uid string, requests, limits v1.ResourceList) *v1.Pod {
	p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "a", Resources: v1.ResourceRequirements{Requests: requests, Limits: limits}}}}}
	p.Name, p.UID = uid, types.UID(uid)
	return p
}

func leaving(t admission.Tenant) admission.Tenant {
	t.Leaving = true
	return t
}

func static(t admission.Tenant) admission.Tenant {
	t.Static = true
	return t
}

func priority(t admission.Tenant, p int32) admission.Tenant {
	t.Pod.Spec.Priority = &p
	return t
}

func guaranteed(t admission.Tenant) admission.Tenant {
	c := &t.Pod.Spec.Containers[0]
	c.Resources.Limits = c.Resources.Requests
	return t
}

const critical = 2_000_000_000

// TestFitRequests: a node of 2 CPUs, 1 GiB and 3 pods.
func TestFitRequests(t *testing.T) {
	n := admission.Node{Name: "n", MaxPods: 3, Allocatable: v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("1Gi"), v1.ResourceEphemeralStorage: resource.MustParse("10Gi"),
	}}
	init := asking("c", "100m", "")
	init.Pod.Spec.InitContainers = []v1.Container{{Name: "i", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1500m")}}}}
	overhead := asking("c", "1", "")
	overhead.Pod.Spec.Overhead = v1.ResourceList{v1.ResourceCPU: resource.MustParse("250m")}
	storage := admission.Tenant{Pod: withRequests("c", v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse("11Gi")}, nil)}
	unknown := admission.Tenant{Pod: withRequests("c", v1.ResourceList{"example.com/gpu": resource.MustParse("1")}, nil)}
	for name, c := range map[string]struct {
		pod     admission.Tenant
		active  []admission.Tenant
		kind    fault.Kind
		reason  string
		words   string
		preempt string
		after   string
	}{
		"an empty node":             {pod: asking("c", "2", "1Gi")},
		"just":                      {pod: asking("c", "500m", ""), active: []admission.Tenant{asking("a", "1", ""), asking("b", "500m", "")}},
		"cpu":                       {pod: asking("c", "501m", ""), active: []admission.Tenant{asking("a", "1", ""), asking("b", "500m", "")}, kind: fault.ResourceExhausted, reason: "OutOfcpu", words: "Node didn't have enough resource: cpu, requested: 501m, used: 1500m, capacity: 2 (OutOfcpu)"},
		"memory":                    {pod: asking("c", "", "513Mi"), active: []admission.Tenant{asking("a", "", "512Mi")}, kind: fault.ResourceExhausted, reason: "OutOfmemory", words: "memory, requested: 513Mi, used: 512Mi, capacity: 1Gi"},
		"both":                      {pod: asking("c", "1", "1Gi"), active: []admission.Tenant{asking("a", "1500m", "1Mi")}, kind: fault.ResourceExhausted, reason: "OutOfcpu", words: "; Node didn't have enough resource: memory"},
		"more than the node has":    {pod: asking("c", "2001m", ""), kind: fault.Invalid, reason: "OutOfcpu", words: "requested: 2001m, used: 0, capacity: 2"},
		"ephemeral storage":         {pod: storage, kind: fault.Invalid, reason: "OutOfephemeral-storage"},
		"what the node knows not":   {pod: unknown},
		"pods":                      {pod: asking("c", "", ""), active: []admission.Tenant{asking("a", "", ""), asking("b", "", ""), asking("d", "", "")}, kind: fault.ResourceExhausted, reason: "OutOfpods", words: "pods, requested: 1, used: 3, capacity: 3"},
		"the largest init counts":   {pod: init, active: []admission.Tenant{asking("a", "501m", "")}, kind: fault.ResourceExhausted, reason: "OutOfcpu", words: "requested: 1500m"},
		"overhead counts":           {pod: overhead, active: []admission.Tenant{asking("a", "800m", "")}, kind: fault.ResourceExhausted, reason: "OutOfcpu", words: "requested: 1250m"},
		"leaving, holding nothing":  {pod: asking("c", "1", ""), active: []admission.Tenant{leaving(asking("a", "1", ""))}},
		"leaving, in the way":       {pod: asking("c", "1500m", ""), active: []admission.Tenant{leaving(asking("a", "1", ""))}, after: "a"},
		"a normal pod preempts not": {pod: priority(asking("c", "1", ""), critical-1), active: []admission.Tenant{asking("a", "2", "")}, kind: fault.ResourceExhausted, reason: "OutOfcpu"},
		"a critical pod":            {pod: priority(asking("c", "1", ""), critical), active: []admission.Tenant{asking("a", "2", "")}, preempt: "a"},
		"a static pod":              {pod: static(asking("c", "1", "")), active: []admission.Tenant{asking("a", "2", "")}, preempt: "a"},
		"not enough by others":      {pod: static(asking("c", "1", "")), active: []admission.Tenant{asking("a", "500m", ""), priority(asking("b", "1500m", ""), critical)}, kind: fault.ResourceExhausted, reason: "OutOfcpu"},
		"more critical":             {pod: priority(asking("c", "1", ""), critical+1), active: []admission.Tenant{priority(asking("b", "1500m", ""), critical)}, preempt: "b"},
		"static ones stay":          {pod: priority(asking("c", "1", ""), critical+1), active: []admission.Tenant{static(priority(asking("b", "1500m", ""), 0))}, kind: fault.ResourceExhausted, reason: "OutOfcpu"},
		"more than there can be":    {pod: static(asking("c", "3", "")), active: []admission.Tenant{asking("a", "2", "")}, kind: fault.Invalid, reason: "OutOfcpu"},
		"best effort first":         {pod: static(asking("c", "", "")), active: []admission.Tenant{guaranteed(asking("a", "100m", "1Mi")), asking("b", "", ""), asking("d", "100m", "")}, preempt: "b"},
		"burstable before better":   {pod: static(asking("c", "1", "")), active: []admission.Tenant{guaranteed(asking("a", "1", "1Mi")), asking("b", "1", "")}, preempt: "b"},
		"the nearest":               {pod: static(asking("c", "1", "")), active: []admission.Tenant{asking("a", "1200m", ""), asking("b", "400m", ""), asking("d", "400m", "")}, preempt: "a"},
		"the smaller of the same":   {pod: static(asking("c", "", "")), active: []admission.Tenant{asking("a", "", "2Mi"), asking("b", "", "1Mi"), asking("d", "", "3Mi")}, preempt: "b"},
		"nobody who leaves already": {pod: static(asking("c", "1", "")), active: []admission.Tenant{leaving(asking("a", "2", "")), asking("b", "1", "")}, after: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := n.Fit(c.pod, c.active)
			if fault.KindOf(err) != c.kind || (err != nil && (fault.ReasonOf(err) != c.reason || !strings.Contains(err.Error(), c.words))) {
				t.Errorf("got %v (%s), want %s, %q", err, fault.ReasonOf(err), c.reason, c.words)
			}
			if join(v.Preempt) != c.preempt || join(v.After) != c.after {
				t.Errorf("got %+v, want to preempt %q and to start after %q", v, c.preempt, c.after)
			}
		})
	}
}

func join(uids []types.UID) string {
	var list []string
	for _, u := range uids {
		list = append(list, string(u))
	}
	return strings.Join(list, ",")
}

// TestFitProperty: whoever is taken fits; who is made to go was needed, may be made to go, and is enough; and nobody of a better class goes where the
// worse ones would have done.
func TestFitProperty(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	n := admission.Node{Name: "n", MaxPods: 8, Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("4Gi")}}
	seen := map[string]int{}
	for run := range 20_000 {
		var active []admission.Tenant
		for i := range r.IntN(10) {
			active = append(active, random(r, fmt.Sprintf("p%d", i)))
		}
		c := random(r, "c")
		c.Leaving = false
		v, err := n.Fit(c, active)
		staying := slices.DeleteFunc(slices.Clone(active), func(t admission.Tenant) bool { return t.Leaving })
		isCritical := c.Static || *c.Pod.Spec.Priority >= critical
		switch {
		case err != nil:
			seen["refused"]++
			candidates := slices.DeleteFunc(slices.Clone(staying), func(t admission.Tenant) bool { return isCritical && mayGo(c, t) })
			if fits(n, c, candidates) {
				t.Fatalf("seed %d, run %d: refused (%v), though it fits without those that it may preempt", seed, run, err)
			}
		case len(v.Preempt) > 0:
			seen["preempts"]++
			left := slices.DeleteFunc(slices.Clone(staying), func(t admission.Tenant) bool { return slices.Contains(v.Preempt, t.Pod.UID) })
			if !isCritical || len(left) != len(staying)-len(v.Preempt) || !fits(n, c, left) || fits(n, c, staying) {
				t.Fatalf("seed %d, run %d: %v of %d pods", seed, run, v.Preempt, len(staying))
			}
			checkVictims(t, n, c, staying, left, fmt.Sprintf("seed %d, run %d", seed, run))
		default:
			if !fits(n, c, staying) || (len(v.After) > 0) == fits(n, c, active) {
				t.Fatalf("seed %d, run %d: taken, after %v", seed, run, v.After)
			}
			seen["taken"]++
		}
	}
	if seen["refused"] < 100 || seen["preempts"] < 100 || seen["taken"] < 100 {
		t.Errorf("the cases are too few to mean anything: %v", seen)
	}
}

func checkVictims(t *testing.T, n admission.Node, c admission.Tenant, staying, left []admission.Tenant, where string) {
	t.Helper()
	best := v1.PodQOSBestEffort
	for _, x := range staying {
		if slices.ContainsFunc(left, func(l admission.Tenant) bool { return l.Pod.UID == x.Pod.UID }) {
			continue
		}
		if !mayGo(c, x) {
			t.Fatalf("%s: %s may not go", where, x.Pod.UID)
		}
		if fits(n, c, append(slices.Clone(left), x)) {
			t.Fatalf("%s: %s need not go", where, x.Pod.UID)
		}
		if q := status.QOSClass(x.Pod); q == v1.PodQOSGuaranteed || q == v1.PodQOSBurstable && best != v1.PodQOSGuaranteed {
			best = q
		}
	}
	without := func(class v1.PodQOSClass) bool {
		return fits(n, c, slices.DeleteFunc(slices.Clone(staying), func(x admission.Tenant) bool {
			q := status.QOSClass(x.Pod)
			return mayGo(c, x) && (q == v1.PodQOSBestEffort || q != v1.PodQOSGuaranteed && class == v1.PodQOSGuaranteed)
		}))
	}
	if best != v1.PodQOSBestEffort && without(best) {
		t.Fatalf("%s: a %s pod goes, though the others would do", where, best)
	}
}

func mayGo(by, t admission.Tenant) bool {
	p := *t.Pod.Spec.Priority
	return !t.Static && (p < critical || *by.Pod.Spec.Priority > p)
}

func fits(n admission.Node, c admission.Tenant, others []admission.Tenant) bool {
	cpu, memory := *resource.NewQuantity(0, resource.DecimalSI), *resource.NewQuantity(0, resource.BinarySI)
	for _, x := range append([]admission.Tenant{c}, others...) {
		r := helpers.PodRequests(x.Pod, helpers.PodResourcesOptions{})
		cpu.Add(*r.Cpu())
		memory.Add(*r.Memory())
	}
	// What a pod does not ask for is not short for it.
	mine := helpers.PodRequests(c.Pod, helpers.PodResourcesOptions{})
	return (mine.Cpu().IsZero() || cpu.Cmp(*n.Allocatable.Cpu()) <= 0) && (mine.Memory().IsZero() || memory.Cmp(*n.Allocatable.Memory()) <= 0) && len(others) < n.MaxPods
}

func random(r *rand.Rand, uid string) admission.Tenant {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	t := asking(uid, pick("", "", "100m", "500m", "1", "2500m"), pick("", "", "64Mi", "1Gi", "2Gi"))
	if len(t.Pod.Spec.Containers[0].Resources.Requests) == 2 && r.IntN(2) == 0 {
		t = guaranteed(t)
	}
	t = priority(t, []int32{0, 0, 1000, critical, critical + 1000}[r.IntN(5)])
	t.Static, t.Leaving = r.IntN(6) == 0, r.IntN(6) == 0
	return t
}

// TestStrictGroups: the policy is refused by its field where the runtime does not know it, and only there.
func TestStrictGroups(t *testing.T) {
	for name, c := range map[string]struct {
		spec    string
		knows   bool
		refused bool
	}{
		"strict, known":     {"securityContext: {supplementalGroupsPolicy: Strict}", true, false},
		"strict, not known": {"securityContext: {supplementalGroupsPolicy: Strict}", false, true},
		"merge, not known":  {"securityContext: {supplementalGroupsPolicy: Merge}", false, false},
		"none":              {"", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := node
			n.StrictGroups = func() bool { return c.knows }
			err := n.Pod(podOf(t, c.spec), "")
			if (err != nil) != c.refused {
				t.Fatalf("got %v", err)
			}
			if f := fault.Fields(err); c.refused && (len(f) != 1 || f[0].Path != "spec.securityContext.supplementalGroupsPolicy" || !strings.Contains(err.Error(), "SupplementalGroupsPolicyNotSupported")) {
				t.Errorf("got %v", err)
			}
		})
	}
}
