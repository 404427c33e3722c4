package worker

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/services/syncd/internal/plan"
	"github.com/podplane/podplane/services/syncd/internal/status"
)

// queue decides which pods get more resources while they run, one decision at a time. Those that wait are looked at in their order whenever one asks
// or gives back; one for which there is no room does not hold up those behind it. Nothing is kept of a pod that has gone.
type queue struct {
	room func(p *v1.Pod, held map[string]*v1.Pod) (reason, message string)

	mu      sync.Mutex
	waiting map[string]*waiter
	// held are the pods as they were allocated by this process: their statuses may not tell of it yet.
	held map[string]*v1.Pod
}

// waiter is a pod that asks for more than it has.
type waiter struct {
	pod     *v1.Pod
	since   time.Time
	wake    func()
	reason  string
	message string
}

func newQueue(room func(p *v1.Pod, held map[string]*v1.Pod) (reason, message string)) *queue {
	return &queue{room: room, waiting: make(map[string]*waiter), held: make(map[string]*v1.Pod)}
}

// ask says whether the pod gets what it asks for: reason is empty then, else why not. wake is called when it may ask again with success.
func (q *queue) ask(p *v1.Pod, now time.Time, wake func()) (reason, message string) {
	if q.room == nil {
		return "", ""
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	uid := string(p.UID)
	w := q.waiting[uid]
	if w == nil {
		w = &waiter{since: now}
		q.waiting[uid] = w
	}
	w.pod, w.wake = p, wake
	q.serve(uid)
	return w.reason, w.message
}

// gave notes what a pod has now and lets others have what it gave back.
func (q *queue) gave(p *v1.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.waiting, string(p.UID))
	q.held[string(p.UID)] = p
	q.serve("")
}

// forget drops a pod that is gone, or somebody else's.
func (q *queue) forget(uid string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.waiting, uid)
	delete(q.held, uid)
	q.serve("")
}

// serve looks at all that wait. What is granted is held at once, so that nobody else gets it. mu is held.
func (q *queue) serve(asking string) {
	order := make([]*waiter, 0, len(q.waiting))
	for _, w := range q.waiting {
		order = append(order, w)
	}
	slices.SortFunc(order, before)
	for _, w := range order {
		if w.reason, w.message = q.room(w.pod, q.held); w.reason != "" {
			continue
		}
		uid := string(w.pod.UID)
		q.held[uid] = w.pod
		delete(q.waiting, uid)
		if uid != asking {
			w.wake()
		}
	}
}

var classOrder = map[v1.PodQOSClass]int{v1.PodQOSGuaranteed: 0, v1.PodQOSBurstable: 1, v1.PodQOSBestEffort: 2}

// before orders those that wait: by priority, by class of service, by how long they have waited.
func before(a, b *waiter) int {
	return cmp.Or(
		cmp.Compare(priority(b.pod), priority(a.pod)),
		cmp.Compare(classOrder[status.QOSClass(a.pod)], classOrder[status.QOSClass(b.pod)]),
		a.since.Compare(b.since),
		strings.Compare(string(a.pod.UID), string(b.pod.UID)),
	)
}

func priority(p *v1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

// resizeEvent is the reason of the Event for a resize that was not allocated.
func resizeEvent(reason string) string {
	if reason == plan.ResizeInfeasible {
		return "ResizeInfeasible"
	}
	return "ResizeDeferred"
}
