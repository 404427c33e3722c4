package admission

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podplane/podplane/services/syncd/internal/status"
)

// preempt chooses whom a critical pod makes go, as a kubelet does: as few pods as possible of the better classes of service, of each class those that
// come closest to what is missing. Nobody goes who is critical too, unless of lower priority; ok is false when even all others would not do.
func preempt(candidate Tenant, active []Tenant, short []shortage) (victims []types.UID, ok bool) {
	var classes [3][]Tenant // guaranteed, burstable, best effort
	for _, t := range active {
		if preemptable(&candidate, &t) {
			c := class(t.Pod)
			classes[c] = append(classes[c], t)
		}
	}
	missing := make(need, len(short))
	for i := range short {
		missing[short[i].name] = float64(ofMissing(&short[i]))
	}
	if len(missing.without(slices.Concat(classes[:]...))) > 0 {
		return nil, false
	}
	var chosen [3][]Tenant
	for c := range classes {
		// What the classes that come later can give in any case, and what was chosen before, need not come from this one.
		rest := missing.without(slices.Concat(chosen[:c]...)).without(slices.Concat(classes[c+1:]...))
		chosen[c] = nearest(classes[c], rest)
	}
	all := slices.Concat(chosen[:]...)
	for i := 0; i < len(all); { // who turns out not to be needed stays
		others := slices.Delete(slices.Clone(all), i, i+1)
		if len(missing.without(others)) == 0 {
			all = others
		} else {
			i++
		}
	}
	for i := range all {
		victims = append(victims, all[i].Pod.UID)
	}
	return victims, true
}

// preemptable says whether the one may make the other go. A static pod never goes: its manifest would ask for it for ever.
func preemptable(by, t *Tenant) bool {
	if t.Static {
		return false
	}
	if !t.critical() {
		return true
	}
	a, b := by.Pod.Spec.Priority, t.Pod.Spec.Priority
	return a != nil && b != nil && *a > *b
}

func class(pod *v1.Pod) int {
	switch status.QOSClass(pod) {
	case v1.PodQOSGuaranteed:
		return 0
	case v1.PodQOSBurstable:
		return 1
	}
	return 2
}

// need is how much is missing of resources; what is not missing is not in it. CPU counts in thousandths.
type need map[v1.ResourceName]float64

func amount(name v1.ResourceName, list v1.ResourceList) float64 {
	q := list[name]
	if name == v1.ResourceCPU {
		return float64(q.MilliValue())
	}
	return float64(q.Value())
}

func ofMissing(s *shortage) int64 {
	m := s.missing()
	if s.name == v1.ResourceCPU {
		return m.MilliValue()
	}
	return m.Value()
}

// without is what is still missing when these pods are gone.
func (n need) without(pods []Tenant) need {
	left := make(need, len(n))
	for name, missing := range n {
		for i := range pods {
			missing -= amount(name, demand(pods[i].Pod))
		}
		if missing > 0 {
			left[name] = missing
		}
	}
	return left
}

// distance is how far a pod is from giving all that is missing: 0 when it does.
func (n need) distance(pod *v1.Pod) (d float64) {
	has := demand(pod)
	for name, missing := range n {
		if part := 1 - amount(name, has)/missing; part > 0 {
			d += part * part
		}
	}
	return d
}

// nearest takes pods until nothing is missing: each time the one that comes closest, of those equally close the smaller one.
func nearest(pods []Tenant, missing need) (chosen []Tenant) {
	pods = slices.Clone(pods)
	for len(missing) > 0 && len(pods) > 0 {
		best := 0
		for i := range pods {
			a, b := missing.distance(pods[i].Pod), missing.distance(pods[best].Pod)
			if a < b || a == b && smaller(pods[i].Pod, pods[best].Pod) {
				best = i
			}
		}
		chosen = append(chosen, pods[best])
		missing = missing.without(pods[best : best+1])
		pods = slices.Delete(pods, best, best+1)
	}
	return chosen
}

// smaller orders pods by their requests for memory, then CPU; at last by UID, so that the order is always the same.
func smaller(a, b *v1.Pod) bool {
	x, y := demand(a), demand(b)
	for _, name := range []v1.ResourceName{v1.ResourceMemory, v1.ResourceCPU} {
		if p, q := amount(name, x), amount(name, y); p != q {
			return p < q
		}
	}
	return a.UID < b.UID
}
