package store_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/syncd/internal/admission"
	"github.com/podplane/podplane/services/syncd/internal/store"
)

// replica is the store of one replica of syncd, on a node that takes so many pods.
func replica(t *testing.T, b *bustest.Bus, most int) *store.Feed {
	t.Helper()
	f, err := store.Open(t.Context(), b.Connect(bus.ServiceSyncd, node), store.Options{
		Node: node, Admit: admission.Node{Name: node, MaxPods: most}.Fit,
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

// critical is a pod that others make room for.
func critical(name string) store.NewPod {
	n := newPod(name)
	priority := int32(2_000_000_000)
	n.Pod.Spec.Priority = &priority
	return n
}

// TestPreemption: a critical pod makes others leave, just as many as are needed, whichever replica is asked; who leaves holds nothing that others are
// refused for, but has to have ended before they start.
func TestPreemption(t *testing.T) {
	b := bustest.New(t)
	one, two := replica(t, b, 2), replica(t, b, 2)
	for _, name := range []string{"a", "b"} {
		if _, err := one.CreatePod(t.Context(), newPod(name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := two.CreatePod(t.Context(), newPod("normal")); !fault.Is(err, fault.ResourceExhausted) {
		t.Fatalf("got %v", err)
	}
	for range 2 { // again over the other replica: the first one has what it needs
		dry := critical("dry")
		dry.DryRun = true
		if _, err := two.CreatePod(t.Context(), dry); err != nil {
			t.Fatal(err)
		}
	}
	o, err := two.CreatePod(t.Context(), critical("c"))
	if err != nil {
		t.Fatal(err)
	}
	if err := one.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, _ := one.Pod(o.UID)
	var told []string
	for _, p := range one.Snapshot() {
		if by := p.Record.GetPreemption(); by != nil {
			told = append(told, p.UID)
			if by.GetUid() != o.UID || by.GetName() != "c" || by.GetAt() == nil {
				t.Errorf("got %v", by)
			}
		}
	}
	if len(told) != 1 || len(c.Record.GetAfter()) != 1 || c.Record.GetAfter()[0] != told[0] {
		t.Errorf("%d pods were told to make room, and c is to start after %v", len(told), c.Record.GetAfter())
	}
	if one.Ended(told[0]) || len(one.ActivePods()) != 2 {
		t.Errorf("%d pods are active", len(one.ActivePods()))
	}
	if _, err := one.CreatePod(t.Context(), newPod("normal")); !fault.Is(err, fault.ResourceExhausted) {
		t.Errorf("got %v", err)
	}
	if err := one.Remove(t.Context(), told[0]); err != nil {
		t.Fatal(err)
	}
	if !one.Ended(told[0]) {
		t.Error("a pod that is gone has not ended")
	}
}

// TestASmallerNodeKeepsItsPods: what was taken stays when the node takes less than before; only what is new is compared with that.
func TestASmallerNodeKeepsItsPods(t *testing.T) {
	b := bustest.New(t)
	before := replica(t, b, 2)
	for _, name := range []string{"a", "b"} {
		if _, err := before.CreatePod(t.Context(), newPod(name)); err != nil {
			t.Fatal(err)
		}
	}
	after := replica(t, b, 1)
	for _, p := range after.Snapshot() {
		if p.Pod.DeletionTimestamp != nil || p.Record.GetPreemption() != nil {
			t.Errorf("pod %s is to go", p.Pod.Name)
		}
	}
	if n := len(after.ActivePods()); n != 2 {
		t.Errorf("%d pods are active, want both", n)
	}
	if _, err := after.CreatePod(t.Context(), newPod("c")); !fault.Is(err, fault.ResourceExhausted) {
		t.Errorf("got %v", err)
	}
}
