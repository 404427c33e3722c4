package store_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/syncd/internal/store"
)

// replica is the store of one replica of syncd, on a node that takes so many pods.
func replica(t *testing.T, b *bustest.Bus, most int) *store.Feed {
	t.Helper()
	f, err := store.Open(t.Context(), b.Connect(bus.ServiceSyncd, node), store.Options{
		Node: node, Admit: func(_ *v1.Pod, active []*v1.Pod) error {
			if len(active) >= most {
				return fault.New(fault.ResourceExhausted, "the node is full")
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	<-f.Synced()
	return f
}

// TestReplicasRaceForNames lets two replicas store pods of the same names at the same time: each name is stored once.
func TestReplicasRaceForNames(t *testing.T) {
	b := bustest.New(t)
	replicas := []*store.Feed{replica(t, b, 1000), replica(t, b, 1000)}
	const names = 20
	var stored [names]atomic.Int32
	var wg sync.WaitGroup
	for i := range names {
		for _, r := range replicas {
			wg.Go(func() {
				switch _, err := r.CreatePod(t.Context(), newPod(fmt.Sprintf("web-%d", i))); {
				case err == nil:
					stored[i].Add(1)
				case !fault.Is(err, fault.AlreadyExists):
					t.Errorf("web-%d: %v", i, err)
				}
			})
		}
	}
	wg.Wait()
	for i := range names {
		if n := stored[i].Load(); n != 1 {
			t.Errorf("web-%d was stored %d times", i, n)
		}
	}
}

// TestReplicasRaceForRoom lets two replicas fill a node: it never takes more than it has room for.
func TestReplicasRaceForRoom(t *testing.T) {
	b := bustest.New(t)
	const room = 7
	replicas := []*store.Feed{replica(t, b, room), replica(t, b, room)}
	var stored atomic.Int32
	var wg sync.WaitGroup
	for i := range 2 * room {
		for j, r := range replicas {
			wg.Go(func() {
				switch _, err := r.CreatePod(t.Context(), newPod(fmt.Sprintf("web-%d-%d", i, j))); {
				case err == nil:
					stored.Add(1)
				case !fault.Is(err, fault.ResourceExhausted):
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	if n := stored.Load(); n != room {
		t.Errorf("%d pods were stored, there is room for %d", n, room)
	}
}

// TestAReplicaFindsWhatAnotherHasStored deletes a pod at once at another replica than the one that stored it.
func TestAReplicaFindsWhatAnotherHasStored(t *testing.T) {
	b := bustest.New(t)
	one, two := replica(t, b, 1000), replica(t, b, 1000)
	for i := range 20 {
		name := fmt.Sprintf("web-%d", i)
		if _, err := one.CreatePod(t.Context(), newPod(name)); err != nil {
			t.Fatal(err)
		}
		if _, err := two.DeletePod(t.Context(), "default", name, store.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}
