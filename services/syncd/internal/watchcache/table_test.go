package watchcache_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

func object(name, label string) watchcache.Object {
	return watchcache.Object{Namespace: "n", Name: name, Labels: map[string]string{"l": label}}
}

// TestWatchersAgreeWithTheTable changes a table at random while watchers with filters come from anywhere in its history; each must end with
// what the table then lists.
func TestWatchersAgreeWithTheTable(t *testing.T) {
	table := watchcache.New(watchcache.Limits{History: 1 << 20, HistoryBytes: 1 << 30, Queue: 1 << 16})
	match := func(o *watchcache.Object) bool { return o.Labels["l"] == "x" }
	const steps = 2000
	var wg sync.WaitGroup
	follow := func(from uint64, state map[string]uint64) {
		w, err := table.Watch(from, watchcache.Filter{Namespace: "n", Match: match})
		if err != nil {
			t.Error(err)
			return
		}
		wg.Go(func() {
			defer w.Close()
			initial, _ := w.Initial()
			for _, o := range initial {
				state[o.Name] = o.Version
			}
			last := from
			for {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				e, err := w.Next(ctx)
				cancel()
				if err != nil {
					t.Error(err)
					return
				}
				if e.Object.Version <= last {
					t.Errorf("version %d after %d", e.Object.Version, last)
				}
				last = e.Object.Version
				_, had := state[e.Object.Name]
				if had != (e.Type != watchcache.Added) {
					t.Errorf("%s of %s while having it is %v", e.Type, e.Object.Name, had)
				}
				if e.Type == watchcache.Deleted {
					delete(state, e.Object.Name)
				} else {
					state[e.Object.Name] = e.Object.Version
				}
				if e.Object.Name == "end" {
					break
				}
			}
			objects, _ := table.List("n", match)
			if len(objects) != len(state) {
				t.Errorf("from %d: %d objects, the table has %d", from, len(state), len(objects))
			}
			for _, o := range objects {
				if state[o.Name] != o.Version {
					t.Errorf("%s: at %d, the table is at %d", o.Name, state[o.Name], o.Version)
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range steps {
		name := fmt.Sprint("o", r.IntN(20))
		if r.IntN(3) == 0 {
			table.Delete("n", name)
		} else {
			table.Set(object(name, string("xy"[r.IntN(2)])))
		}
		if i%100 == 0 {
			follow(0, make(map[string]uint64))
			objects, version := table.List("n", match)
			state := make(map[string]uint64, len(objects))
			for _, o := range objects {
				state[o.Name] = o.Version
			}
			follow(version, state)
		}
	}
	table.Set(object("end", "x"))
	wg.Wait()
}

func TestHistoryIsBounded(t *testing.T) {
	table := watchcache.New(watchcache.Limits{History: 100, HistoryBytes: 10 << 10})
	var versions []uint64
	for range 50 {
		o := object("a", "x")
		o.Size = 1 << 10
		versions = append(versions, table.Set(o).Version)
	}
	if _, err := table.Watch(versions[49-5], watchcache.Filter{}); err != nil {
		t.Errorf("a recent version: %v", err)
	}
	if _, err := table.Watch(versions[30], watchcache.Filter{}); !fault.Is(err, fault.Expired) {
		t.Errorf("a version beyond the bytes kept: %v", err)
	}
}

func TestCloseEndsWatchers(t *testing.T) {
	table := watchcache.New(watchcache.Limits{})
	w, err := table.Watch(0, watchcache.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	table.Set(object("a", "x"))
	table.Close(fault.New(fault.Unavailable, "stopping"))
	if e, err := w.Next(t.Context()); err != nil || e.Object.Name != "a" {
		t.Errorf("what was queued: got %+v, %v", e, err)
	}
	if _, err := w.Next(t.Context()); !fault.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
	if _, err := table.Watch(0, watchcache.Filter{}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a new watch: got %v", err)
	}
}
