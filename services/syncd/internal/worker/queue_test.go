package worker

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// asks is a pod that wants so many CPUs.
func asks(name string, cpus int64, priority int32, guaranteed bool) *v1.Pod {
	cpu := v1.ResourceList{v1.ResourceCPU: *resource.NewQuantity(cpus, resource.DecimalSI), v1.ResourceMemory: resource.MustParse("1Mi")}
	r := v1.ResourceRequirements{Requests: cpu}
	if guaranteed {
		r.Limits = cpu
	}
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{Priority: &priority, Containers: []v1.Container{{Name: "c", Resources: r}}}}
}

// node is a queue on a node with so many CPUs.
func node(cpus int64) *queue {
	return newQueue(func(p *v1.Pod, held map[string]*v1.Pod) (reason, message string) {
		sum := p.Spec.Containers[0].Resources.Requests.Cpu().Value()
		if sum > cpus {
			return plan.ResizeInfeasible, "too large"
		}
		for uid, other := range held {
			if uid != string(p.UID) {
				sum += other.Spec.Containers[0].Resources.Requests.Cpu().Value()
			}
		}
		if sum > cpus {
			return plan.ResizeDeferred, "no room"
		}
		return "", ""
	})
}

func TestQueueOrder(t *testing.T) {
	q := node(10)
	q.gave(asks("full", 10, 0, false))
	var woken []string
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, p := range []*v1.Pod{
		asks("late", 2, 0, false), asks("later", 2, 0, false), asks("guaranteed", 2, 0, true), asks("important", 2, 100, false), asks("large", 9, 1000, false),
	} {
		if reason, _ := q.ask(p, now.Add(time.Duration(i)*time.Second), func() { woken = append(woken, p.Name) }); reason != plan.ResizeDeferred {
			t.Errorf("%s: %q", p.Name, reason)
		}
	}
	if reason, why := q.ask(asks("giant", 11, 0, false), now, func() {}); reason != plan.ResizeInfeasible || why != "too large" {
		t.Errorf("what the node can never have: %q, %q", reason, why)
	}
	// Room for two: the large one goes first in the order, but does not fit and holds nobody up.
	q.gave(asks("full", 6, 0, false))
	if got := strings.Join(woken, " "); got != "important guaranteed" {
		t.Errorf("%q got more", got)
	}
	if reason, _ := q.ask(asks("important", 2, 100, false), now, func() {}); reason != "" {
		t.Errorf("what was granted is asked for again: %q", reason)
	}
	q.forget("full")
	if got := strings.Join(woken, " "); got != "important guaranteed late later" {
		t.Errorf("%q got more after a pod went", got)
	}
	for _, name := range []string{"important", "guaranteed", "late", "later"} {
		q.forget(name)
	}
	if got := woken[len(woken)-1]; got != "large" {
		t.Errorf("%q", woken)
	}
	q.forget("large")
	q.forget("giant")
	if len(q.held)+len(q.waiting) != 0 {
		t.Errorf("left: %v %v", q.held, q.waiting)
	}
}

type noEvents struct{}

func (noEvents) PodEvent(*v1.Pod, string, string, string, string) {}

// TestWithdrawnResize: what a pod does not ask for any more is neither given to it nor kept from others.
func TestWithdrawnResize(t *testing.T) {
	m := New(Config{}, Deps{Room: node(10).room, Events: noEvents{}}, slog.New(slog.DiscardHandler))
	m.resizes.gave(asks("full", 8, 0, false))
	w := newWorker(m, "p", PodChange{UID: "p", Pod: asks("p", 2, 0, false)})
	w.desire(asks("p", 5, 0, false))
	if w.resize.Pending != plan.ResizeDeferred || len(m.resizes.waiting) != 1 {
		t.Fatalf("it is %q, %d wait", w.resize.Pending, len(m.resizes.waiting))
	}
	w.desire(asks("p", 2, 0, false))
	m.resizes.forget("full")
	if w.resize.Pending != "" || len(m.resizes.waiting) != 0 || m.resizes.held["p"].Spec.Containers[0].Resources.Requests.Cpu().Value() != 2 {
		t.Errorf("it is %q, waiting %v, held %v", w.resize.Pending, m.resizes.waiting, m.resizes.held)
	}
}

func TestQueueWithoutBounds(t *testing.T) {
	if reason, _ := newQueue(nil).ask(asks("x", 1<<40, 0, false), time.Time{}, nil); reason != "" {
		t.Errorf("%q", reason)
	}
}
