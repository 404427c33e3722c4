package limit_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/podplane/podplane/services/gateway/internal/limit"
)

func TestBurstThenRate(t *testing.T) {
	l, now := limit.New(10, 3), time.Unix(1000, 0)
	for i := range 3 {
		if w := l.Take("a", now); w != 0 {
			t.Fatalf("%d: %v", i, w)
		}
	}
	for range 5 { // refusals are not counted
		if w := l.Take("a", now); w != 100*time.Millisecond {
			t.Fatalf("wait %v", w)
		}
	}
	if w := l.Take("b", now); w != 0 {
		t.Errorf("another waits %v", w)
	}
	if w := l.Take("a", now.Add(100*time.Millisecond)); w != 0 {
		t.Errorf("after the wait: %v", w)
	}
	if w := l.Take("a", now.Add(100*time.Millisecond)); w == 0 {
		t.Error("twice after one wait")
	}
}

func TestCrowdIsBounded(t *testing.T) {
	l, now := limit.New(1, 1), time.Unix(1000, 0)
	for i := range 3 * limit.MaxKeys {
		if w := l.Take(strconv.Itoa(i), now); w != 0 {
			t.Fatalf("caller %d waits %v", i, w)
		}
	}
	if w := l.Take(strconv.Itoa(3*limit.MaxKeys-1), now); w == 0 {
		t.Error("the last one is forgotten")
	}
	if w := l.Take("0", now); w != 0 {
		t.Error("the first one is still known")
	}
}

func TestNoLimit(t *testing.T) {
	var none *limit.Limiter
	for _, l := range []*limit.Limiter{none, limit.New(0, 0)} {
		for range 1000 {
			if w := l.Take("a", time.Unix(1, 0)); w != 0 {
				t.Fatal(w)
			}
		}
	}
}
