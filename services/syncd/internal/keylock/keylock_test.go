package keylock_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/podplane/podplane/services/syncd/internal/keylock"
)

func TestOneAtATime(t *testing.T) {
	var l keylock.Locks
	var wg sync.WaitGroup
	inside := map[string]int{"a": 0, "b": 0}
	total := map[string]*int{"a": new(int), "b": new(int)}
	var mu sync.Mutex
	for i := range 100 {
		key := []string{"a", "b"}[i%2]
		wg.Go(func() {
			unlock, err := l.Lock(t.Context(), key)
			if err != nil {
				t.Error(err)
				return
			}
			defer unlock()
			mu.Lock()
			inside[key]++
			if inside[key] != 1 {
				t.Errorf("%d inside of %s", inside[key], key)
			}
			mu.Unlock()
			*total[key]++ // the race detector objects if two are inside
			mu.Lock()
			inside[key]--
			mu.Unlock()
		})
	}
	wg.Wait()
	if *total["a"] != 50 || *total["b"] != 50 || l.Len() != 0 {
		t.Errorf("%d and %d were inside, %d locks are left", *total["a"], *total["b"], l.Len())
	}
}

func TestWaitingEndsWithItsContext(t *testing.T) {
	var l keylock.Locks
	unlock, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Lock(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting ended with %v", err)
	}
	unlock()
	if l.Len() != 0 {
		t.Errorf("%d locks are left", l.Len())
	}
}
