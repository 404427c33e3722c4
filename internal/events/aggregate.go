package events

import (
	"container/list"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// aggregateKey tells events apart; equal ones are counted.
type aggregateKey struct {
	ref                        ObjectRef
	eventType, reason, message string
}

// aggregate is an event and its repeats.
type aggregate struct {
	name        string
	uid         types.UID
	first, last time.Time
	count       int32
}

// aggregate counts an event. It is called with mu held.
func (r *Recorder) aggregate(key aggregateKey, now time.Time) *aggregate {
	key.ref.ResourceVersion = "" // the same event of a later version is a repeat
	a, ok := r.aggregates.get(key)
	if !ok || now.Sub(a.last) > AggregateWindow {
		a = &aggregate{name: r.newName(key.ref.Name, now), uid: newUID(), first: now}
		r.aggregates.put(key, a)
	}
	a.last = now
	a.count++
	return a
}

// newName makes a name that this recorder has not given before, though two
// events of an object may fall on one instant.
func (r *Recorder) newName(object string, now time.Time) string {
	if !now.After(r.lastName) {
		now = r.lastName.Add(1)
	}
	r.lastName = now
	return eventName(object, now)
}

// budget is the publications that an object has left.
type budget struct {
	tokens float64
	at     time.Time
}

// allow takes one publication from the object's budget. It is called with mu held.
func (r *Recorder) allow(ref ObjectRef, now time.Time) bool {
	key := ObjectRef{Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID, APIVersion: ref.APIVersion}
	b, ok := r.budgets.get(key)
	if !ok {
		b = &budget{tokens: SpamBurst, at: now}
		r.budgets.put(key, b)
	}
	b.tokens = min(SpamBurst, b.tokens+float64(now.Sub(b.at))/float64(SpamRefill))
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// tracker is a map of bounded size that forgets what was used longest ago.
type tracker[K comparable, V any] struct {
	max   int
	order *list.List // of trackedItem, the latest first
	items map[K]*list.Element
}

type trackedItem[K comparable, V any] struct {
	key   K
	value V
}

func newTracker[K comparable, V any](limit int) *tracker[K, V] {
	return &tracker[K, V]{max: limit, order: list.New(), items: map[K]*list.Element{}}
}

func (t *tracker[K, V]) get(key K) (v V, ok bool) {
	e, ok := t.items[key]
	if !ok {
		return v, false
	}
	t.order.MoveToFront(e)
	return e.Value.(trackedItem[K, V]).value, true
}

func (t *tracker[K, V]) put(key K, v V) {
	if e, ok := t.items[key]; ok {
		e.Value = trackedItem[K, V]{key, v}
		t.order.MoveToFront(e)
		return
	}
	t.items[key] = t.order.PushFront(trackedItem[K, V]{key, v})
	if t.order.Len() > t.max {
		oldest := t.order.Back()
		t.order.Remove(oldest)
		delete(t.items, oldest.Value.(trackedItem[K, V]).key)
	}
}
