// Package limit bounds how often each of many callers may do something, by a token bucket for each.
//
// It keeps at most MaxKeys buckets. A bucket that has filled up again says nothing and is forgotten; when all are in use the one that was used
// longest ago goes, so that a crowd of strangers costs memory once and can't keep anybody out.
package limit

import (
	"container/list"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// MaxKeys is how many callers are known at once.
const MaxKeys = 4096

// Limiter is a set of buckets. Its methods may be called from any goroutine.
type Limiter struct {
	rate  rate.Limit
	burst int

	mu      sync.Mutex
	buckets map[string]*list.Element
	order   *list.List // the most recently used first
}

type bucket struct {
	key    string
	tokens *rate.Limiter
}

// New makes a limiter: perSecond in the long run, burst at once. Without a rate nothing is limited.
func New(perSecond float64, burst int) *Limiter {
	return &Limiter{rate: rate.Limit(perSecond), burst: max(burst, 1), buckets: map[string]*list.Element{}, order: list.New()}
}

// Take counts one act of a caller at a moment. wait is 0 when it is allowed, else the time after which one will be.
func (l *Limiter) Take(key string, now time.Time) (wait time.Duration) {
	if l == nil || l.rate <= 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.buckets[key]
	if e == nil {
		if len(l.buckets) >= MaxKeys {
			oldest := l.order.Back()
			delete(l.buckets, oldest.Value.(*bucket).key)
			l.order.Remove(oldest)
		}
		e = l.order.PushFront(&bucket{key: key, tokens: rate.NewLimiter(l.rate, l.burst)})
		l.buckets[key] = e
	} else {
		l.order.MoveToFront(e)
	}
	b := e.Value.(*bucket).tokens
	r := b.ReserveN(now, 1)
	if wait = r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
	}
	return wait
}
