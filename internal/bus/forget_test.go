package bus_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// keep stores a record under keys of two nodes and gives a function that counts what is left of each.
func keep[T proto.Message](t *testing.T, c *bus.Conn, spec bus.BucketSpec[T], gone, stays string) func() (int, int) {
	t.Helper()
	b, err := bus.Open(t.Context(), c, spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{gone, stays} {
		if _, err := b.Put(t.Context(), k, spec.New()); err != nil {
			t.Fatal(err)
		}
	}
	return func() (int, int) {
		list, err := b.List(t.Context(), bus.AllKeys)
		if err != nil {
			t.Fatal(err)
		}
		n := map[string]int{}
		for _, e := range list {
			n[e.Key]++
		}
		return n[gone], n[stays]
	}
}

func TestForget(t *testing.T) {
	c := bustest.New(t).Connect("", "")
	const gone, stays = "gone.example", "gone"
	services, err := bus.Open(t.Context(), c, bus.Services)
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]func() (int, int){
		"pods":       keep(t, c, bus.Pods, bus.PodKey(gone, "1"), bus.PodKey(stays, "2")),
		"status":     keep(t, c, bus.Status, bus.PodKey(gone, "1"), bus.PodKey(stays, "2")),
		"volumes":    keep(t, c, bus.Volumes, bus.PodKey(gone, "1"), bus.PodKey(stays, "2")),
		"probes":     keep(t, c, bus.Probes, bus.ProbeKey(gone, "1", "c", "liveness"), bus.ProbeKey(stays, "2", "c", "liveness")),
		"evictions":  keep(t, c, bus.Evictions, bus.PodKey(gone, "1"), bus.PodKey(stays, "2")),
		"conditions": keep(t, c, bus.Conditions, bus.ConditionKey(gone, "DiskPressure"), bus.ConditionKey(stays, "DiskPressure")),
		"nodes":      keep(t, c, bus.Nodes, bus.NodeKey(gone), bus.NodeKey(stays)),
		"leases":     keep(t, c, bus.Leases, bus.LeaseKey("syncd", gone, "3"), bus.LeaseKey("syncd", stays, "3")),
	}
	key := bus.ServiceKey("pleg", gone, "x")
	if _, err := services.Put(t.Context(), key, &podplanev1.ServiceRecord{Service: "pleg", Node: gone}); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.Forget(t.Context(), c, gone); !fault.Is(err, fault.FailedPrecondition) {
		t.Errorf("a node that runs: %v", err)
	}
	for name, count := range left {
		if g, s := count(); g != 1 || s != 1 {
			t.Errorf("%s after a refusal: %d and %d", name, g, s)
		}
	}
	if err := services.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if n, err := bus.Forget(t.Context(), c, gone); err != nil || n != 1 {
		t.Errorf("got %d pods, %v", n, err)
	}
	for name, count := range left {
		if g, s := count(); g != 0 || s != 1 {
			t.Errorf("%s: %d of the node that is gone, %d of the other", name, g, s)
		}
	}
}
