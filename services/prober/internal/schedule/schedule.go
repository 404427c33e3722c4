// Package schedule orders things by the time at which they are due.
//
// A Queue is a heap: setting, moving and taking a thing costs the logarithm of their number, and nothing runs while
// nothing is due: whoever owns the queue needs one timer, for Next. It is not safe for use by several goroutines.
package schedule

import (
	"container/heap"
	"time"
)

// Queue holds each key at most once.
type Queue[K comparable] struct {
	items items[K]
	index map[K]*item[K]
}

type item[K comparable] struct {
	key K
	due time.Time
	at  int // in items
}

// New makes an empty queue.
func New[K comparable]() *Queue[K] { return &Queue[K]{index: map[K]*item[K]{}} }

// Len is the number of keys that are due at some time.
func (q *Queue[K]) Len() int { return len(q.items) }

// Set makes key due at that time, instead of when it was due before. The zero time takes it out.
func (q *Queue[K]) Set(key K, due time.Time) {
	it := q.index[key]
	switch {
	case due.IsZero() && it == nil:
	case due.IsZero():
		heap.Remove(&q.items, it.at)
		delete(q.index, key)
	case it == nil:
		it = &item[K]{key: key, due: due}
		q.index[key] = it
		heap.Push(&q.items, it)
	case !it.due.Equal(due):
		it.due = due
		heap.Fix(&q.items, it.at)
	}
}

// Next answers when the first key is due; zero when there is none.
func (q *Queue[K]) Next() time.Time {
	if len(q.items) == 0 {
		return time.Time{}
	}
	return q.items[0].due
}

// Take takes the first key out if it is due at now, with the time at which it was.
func (q *Queue[K]) Take(now time.Time) (key K, due time.Time, ok bool) {
	if len(q.items) == 0 || q.items[0].due.After(now) {
		return key, due, false
	}
	it := heap.Pop(&q.items).(*item[K])
	delete(q.index, it.key)
	return it.key, it.due, true
}

type items[K comparable] []*item[K]

func (s items[K]) Len() int           { return len(s) }
func (s items[K]) Less(i, j int) bool { return s[i].due.Before(s[j].due) }
func (s items[K]) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].at, s[j].at = i, j
}

func (s *items[K]) Push(x any) {
	it := x.(*item[K])
	it.at = len(*s)
	*s = append(*s, it)
}

func (s *items[K]) Pop() any {
	last := len(*s) - 1
	it := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	return it
}
