package bus_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// until repeats f while it is refused for the moment.
func until(t *testing.T, what string, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		if !fault.Is(err, fault.Unavailable) || ctx.Err() != nil {
			t.Fatalf("%s: %v", what, err)
		}
		pause(ctx, 10*time.Millisecond)
	}
}

// TestAClusterLosesServers stops servers of a cluster one after the other: with one it goes on, with two gone nothing is taken, and all that was
// acknowledged is there when they are back.
func TestAClusterLosesServers(t *testing.T) {
	c := bustest.NewCluster(t)
	conn := c.Connect(bus.ServiceSyncd, "n")
	pods, err := bus.Open(t.Context(), conn, bus.Pods)
	if err != nil {
		t.Fatal(err)
	}
	stored := map[string]bool{}
	put := func(ctx context.Context, uid string) error {
		_, err := pods.Put(ctx, bus.PodKey("n", uid), &podplanev1.PodRecord{Uid: uid})
		if err == nil {
			stored[bus.PodKey("n", uid)] = true
		}
		return err
	}
	until(t, "with all servers", func(ctx context.Context) error { return put(ctx, "three") })
	c.Stop(0)
	until(t, "with two servers", func(ctx context.Context) error { return put(ctx, "two") })
	c.Stop(1)
	for i := range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := put(ctx, fmt.Sprint("one-", i)); !fault.Is(err, fault.Unavailable) {
			t.Errorf("with one server: %v", err)
		}
		cancel()
	}
	c.Start(0)
	c.Start(1)
	until(t, "with all servers again", func(ctx context.Context) error { return put(ctx, "again") })
	// A list needs the cluster's leader, who may come back later than that of the bucket.
	until(t, "listed with all servers again", func(ctx context.Context) error {
		list, err := pods.List(ctx, bus.AllKeys)
		for _, e := range list {
			delete(stored, e.Key)
		}
		return err
	})
	if len(stored) > 0 {
		t.Errorf("acknowledged and lost: %v", stored)
	}
}

// TestCreateAfterInACluster lets three connections create under one pattern at the same time: each creation is decided on all before it.
func TestCreateAfterInACluster(t *testing.T) {
	c := bustest.NewCluster(t)
	const each = 15
	type creation struct{ after, rev uint64 }
	var mu sync.Mutex
	var all []creation
	var wg sync.WaitGroup
	for _, node := range []string{"a", "b", "c"} {
		conn := c.Connect(bus.ServiceSyncd, node)
		pods, err := bus.Open(t.Context(), conn, bus.Pods)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for i := range each {
				for {
					last, err := pods.LastRevision(t.Context(), bus.AllKeys)
					var rev uint64
					if err == nil {
						uid := fmt.Sprintf("%s-%d", node, i)
						rev, err = pods.CreateAfter(t.Context(), bus.PodKey(node, uid), &podplanev1.PodRecord{Uid: uid}, bus.AllKeys, last)
					}
					if err == nil {
						mu.Lock()
						all = append(all, creation{last, rev})
						mu.Unlock()
						break
					}
					if !fault.Is(err, fault.Conflict) && !fault.Is(err, fault.Unavailable) || errors.Is(err, context.Canceled) {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if len(all) != 3*each {
		t.Fatalf("%d of %d were created", len(all), 3*each)
	}
	for _, x := range all {
		for _, y := range all {
			if x.after < y.rev && y.rev < x.rev {
				t.Errorf("the creation at %d was decided after %d and without that at %d", x.rev, x.after, y.rev)
			}
		}
	}
}
