package schedule_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/podplane/podplane/services/prober/internal/schedule"
)

// TestAgainstAMap drives a queue and a plain map alike.
func TestAgainstAMap(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	base := time.Unix(1_800_000_000, 0)
	q, m := schedule.New[int](), map[int]time.Time{}
	for range 20_000 {
		key, due := random.IntN(50), base.Add(time.Duration(random.IntN(1000))*time.Millisecond)
		switch random.IntN(4) {
		case 0:
			q.Set(key, time.Time{})
			delete(m, key)
		case 1:
			k, at, ok := q.Take(due)
			first, any := earliest(m)
			if ok != (any && !m[first].After(due)) {
				t.Fatalf("taken: %v, but the first is due at %v of %v", ok, m[first], due)
			}
			if ok && (!m[k].Equal(at) || !at.Equal(m[first])) {
				t.Fatalf("took %d due %v, the first is %d due %v", k, at, first, m[first])
			}
			if ok {
				delete(m, k)
			}
		default:
			q.Set(key, due)
			m[key] = due
		}
		first, any := earliest(m)
		if q.Len() != len(m) || any && !q.Next().Equal(m[first]) || !any && !q.Next().IsZero() {
			t.Fatalf("%d keys, next %v; want %d, %v", q.Len(), q.Next(), len(m), m[first])
		}
	}
}

func earliest(m map[int]time.Time) (key int, any bool) {
	for k, at := range m {
		if !any || at.Before(m[key]) {
			key, any = k, true
		}
	}
	return key, any
}
