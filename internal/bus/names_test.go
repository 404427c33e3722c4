package bus_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
)

func TestKeys(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{bus.PodKey("node", "b1-2"), "node.b1-2"},
		{bus.PodKey("a.example.com", "u"), "a=2Eexample=2Ecom.u"},
		{bus.ObjectKey("ns", "configmap", "kube-root-ca.crt"), "ns.configmap.kube-root-ca=2Ecrt"},
		{bus.ProbeKey("n", "u", "c", "readiness"), "n.u.c.readiness"},
		{bus.ConditionKey("n", bus.ConditionRuntimeReady), "n.RuntimeReady"},
		{bus.ServiceKey("syncd", "n", "i"), "syncd.n.i"},
		{bus.Key("a", "", "*", ">"), "a.=.=2A.=3E"},
		{bus.NodePattern("a.b"), "a=2Eb.>"},
		{bus.ServicePattern("syncd"), "syncd.>"},
		{bus.LifecycleSubject("n", "u", "ContainerDied"), "pleg.v1.n.u.ContainerDied"},
		{bus.LifecyclePattern("n"), "pleg.v1.n.>"},
		{bus.LifecyclePodPattern("n", "u"), "pleg.v1.n.u.>"},
		{bus.EventSubject("n", bus.NodeUID, "Rebooted"), "events.v1.n.node.Rebooted"},
		{bus.EventPattern("n"), "events.v1.n.>"},
		{bus.NodeKey("a.example"), "a=2Eexample"},
		{bus.LifecycleEverywhere(""), "pleg.v1.>"},
		{bus.LifecycleEverywhere("u.1"), "pleg.v1.*.u=2E1.>"},
		{bus.EventsEverywhere(""), "events.v1.>"},
		{bus.EventsEverywhere("u"), "events.v1.*.u.>"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

func TestSplitKeyRefuses(t *testing.T) {
	for _, key := range []string{"", "a..b", "a=", "a=2", "a=2e", "a=GG"} {
		if parts, err := bus.SplitKey(key); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q became %q: %v", key, parts, err)
		}
	}
}

func FuzzKey(f *testing.F) {
	f.Add("node.example.com", "uid")
	f.Add("", "=")
	f.Add("*", ">\x00é ")
	f.Fuzz(func(t *testing.T, a, b string) {
		key := bus.Key(a, b)
		parts, err := bus.SplitKey(key)
		if err != nil || !slices.Equal(parts, []string{a, b}) {
			t.Fatalf("%q, %q became %q and %q: %v", a, b, key, parts, err)
		}
		if strings.Count(key, ".") != 1 || strings.ContainsAny(key, "*> \t\r\n\x00") {
			t.Fatalf("key %q", key)
		}
	})
}

func FuzzSplitKey(f *testing.F) {
	f.Add("a.b=2E")
	f.Add("=.=")
	f.Fuzz(func(t *testing.T, key string) {
		parts, err := bus.SplitKey(key)
		if err != nil {
			return
		}
		again, err := bus.SplitKey(bus.Key(parts...))
		if err != nil || !slices.Equal(again, parts) {
			t.Fatalf("%q: %q, then %q: %v", key, parts, again, err)
		}
	})
}
