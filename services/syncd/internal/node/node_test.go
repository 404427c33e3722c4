package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/node"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

const name = "node-1"

// conditions is the bucket.
type conditions struct {
	entries chan bus.Entry[*podplanev1.ConditionRecord]
}

func (c conditions) Watch(ctx context.Context, _ string, h bus.Handler[*podplanev1.ConditionRecord]) error {
	for {
		select {
		case e := <-c.entries:
			h.Apply(e)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c conditions) set(kind, status string) { c.setOf(name, kind, status) }

func (c conditions) setOf(node, kind, status string) {
	now := timestamppb.New(time.Now())
	c.entries <- bus.Entry[*podplanev1.ConditionRecord]{
		Key: bus.ConditionKey(node, kind), Value: &podplanev1.ConditionRecord{Type: kind, Status: status, Reason: "Said", Heartbeat: now, Transition: now},
	}
}

// nodes is the bucket of nodes: what this node puts, and what others have put.
type nodes struct {
	entries chan bus.Entry[*podplanev1.NodeRecord]
	put     chan *podplanev1.NodeRecord
}

func (n nodes) Watch(ctx context.Context, _ string, h bus.Handler[*podplanev1.NodeRecord]) error {
	h.Synced()
	for {
		select {
		case e := <-n.entries:
			h.Apply(e)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (n nodes) Put(_ context.Context, _ string, r *podplanev1.NodeRecord) (uint64, error) {
	n.put <- r
	return 1, nil
}

// services are the registrations: the names of nodes with a syncd.
type services chan []string

func (s services) WatchServices(ctx context.Context, _ string, f func([]*podplanev1.ServiceRecord)) error {
	for {
		select {
		case names := <-s:
			var list []*podplanev1.ServiceRecord
			for _, n := range names {
				list = append(list, &podplanev1.ServiceRecord{Service: bus.ServiceSyncd, Node: n})
			}
			f(list)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func sources(c conditions) (node.Sources, nodes, services) {
	n := nodes{entries: make(chan bus.Entry[*podplanev1.NodeRecord]), put: make(chan *podplanev1.NodeRecord, 16)}
	s := make(services)
	return node.Sources{
		Conditions: func(context.Context) (node.Bucket[*podplanev1.ConditionRecord], error) { return c, nil }, Nodes: n, Services: s,
	}, n, s
}

type versioner struct{}

func (versioner) Version(context.Context) (cri.Version, error) {
	return cri.Version{RuntimeName: "containerd", RuntimeVersion: "v2.4.2"}, nil
}

func current(t *testing.T, v *node.View) *v1.Node {
	t.Helper()
	return shown(t, v, name)
}

func shown(t *testing.T, v *node.View, name string) *v1.Node {
	t.Helper()
	o, ok := v.Table().Get("", name)
	if !ok {
		t.Fatalf("there is no node %s", name)
	}
	data, err := o.JSON()
	if err != nil {
		t.Fatal(err)
	}
	n := new(v1.Node)
	if err := json.Unmarshal(data, n); err != nil {
		t.Fatal(err)
	}
	return n
}

func condition(n *v1.Node, kind v1.NodeConditionType) v1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return v1.NodeCondition{}
}

func TestConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var away error
		v := node.New(node.Options{
			Node: name, Version: "1.2.3", Root: t.TempDir(), Addresses: []string{"10.0.0.9"}, Runtime: versioner{},
			BusErr: func() error { mu.Lock(); defer mu.Unlock(); return away },
		})
		c := conditions{make(chan bus.Entry[*podplanev1.ConditionRecord])}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		from, _, _ := sources(c)
		go func() { ended <- v.Run(ctx, from) }()
		synctest.Wait()
		first := current(t, v)
		if r := condition(first, v1.NodeReady); r.Status != v1.ConditionFalse || !strings.Contains(r.Message, "RuntimeReady is Unknown") {
			t.Errorf("at first: %+v", r)
		}
		if first.Status.Capacity.Cpu().IsZero() || first.Status.Capacity.Memory().IsZero() || first.Status.Capacity.Pods().Value() != 110 ||
			first.Status.NodeInfo.KubeletVersion != "podplane 1.2.3" || first.Status.Addresses[0].Address != "10.0.0.9" || first.Labels[v1.LabelHostname] != name {
			t.Errorf("got %+v", first)
		}

		c.set(bus.ConditionRuntimeReady, "True")
		c.set(bus.ConditionNetworkReady, "True")
		c.set(bus.ConditionMemoryPressure, "False")
		synctest.Wait()
		n := current(t, v)
		if r := condition(n, v1.NodeReady); r.Status != v1.ConditionTrue {
			t.Errorf("with a runtime: %+v", r)
		}
		if n.Status.NodeInfo.ContainerRuntimeVersion != "containerd://v2.4.2" || condition(n, v1.NodeMemoryPressure).Status != v1.ConditionFalse ||
			condition(n, v1.NodeDiskPressure).Status != v1.ConditionUnknown {
			t.Errorf("got %+v", n.Status)
		}
		ready := condition(n, v1.NodeReady).LastTransitionTime

		// Heartbeats alone are no news.
		version := v.Table().Version()
		time.Sleep(20 * time.Second)
		c.set(bus.ConditionRuntimeReady, "True")
		c.set(bus.ConditionNetworkReady, "True")
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if got := condition(current(t, v), v1.NodeMemoryPressure); got.Status != v1.ConditionUnknown || got.Reason != "NodeStatusUnknown" {
			t.Errorf("a silent writer: %+v", got)
		}
		if r := condition(current(t, v), v1.NodeReady); r.Status != v1.ConditionTrue || !r.LastTransitionTime.Equal(&ready) {
			t.Errorf("still ready: %+v, since %v", r, ready)
		}
		if v.Table().Version() > version+2<<10 {
			t.Errorf("%d versions for one change", v.Table().Version()-version)
		}

		mu.Lock()
		away = errors.New("connection refused")
		mu.Unlock()
		v.Wake()
		synctest.Wait()
		if r := condition(current(t, v), v1.NodeReady); r.Status != v1.ConditionFalse || !strings.Contains(r.Message, "connection refused") {
			t.Errorf("without the bus: %+v", r)
		}
		w, err := v.Table().Watch(0, watchcache.Filter{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
		if _, err := w.Next(t.Context()); err == nil {
			t.Error("a watch goes on after the end")
		}
	})
}

// TestAnotherNode shows a node as long as it says something, and says Unknown when it is silent.
func TestAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var away error
		view := func(name string) *node.View {
			return node.New(node.Options{
				Node: name, Version: "1.2.3", Root: t.TempDir(), Addresses: []string{"10.0.0.9"},
				BusErr: func() error { mu.Lock(); defer mu.Unlock(); return away },
			})
		}
		run := func(v *node.View, from node.Sources) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); _ = v.Run(ctx, from) }()
			t.Cleanup(func() { cancel(); <-ended })
		}
		first, firstNodes, _ := sources(conditions{make(chan bus.Entry[*podplanev1.ConditionRecord])})
		run(view("other.example"), first)
		record := <-firstNodes.put

		c := conditions{make(chan bus.Entry[*podplanev1.ConditionRecord])}
		from, nodes, services := sources(c)
		v := view(name)
		run(v, from)
		if _, err := v.Nodes(t.Context()); !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) == 0 {
			t.Errorf("before the registrations are known: %v", err)
		}
		services <- []string{name}
		synctest.Wait()
		if all, err := v.Nodes(t.Context()); err != nil || !slices.Equal(all, []string{name}) {
			t.Errorf("alone: %v, %v", all, err)
		}

		nodes.entries <- bus.Entry[*podplanev1.NodeRecord]{Key: bus.NodeKey("other.example"), Value: record}
		services <- []string{name, "other.example"}
		for _, kind := range []string{bus.ConditionRuntimeReady, bus.ConditionNetworkReady} {
			c.setOf("other.example", kind, "True")
		}
		synctest.Wait()
		other := shown(t, v, "other.example")
		if r := condition(other, v1.NodeReady); r.Status != v1.ConditionTrue {
			t.Errorf("a healthy one: %+v", r)
		}
		if other.Status.Addresses[0].Address != "10.0.0.9" || other.Status.Capacity.Pods().Value() != 110 {
			t.Errorf("got %+v", other.Status)
		}
		if all, err := v.Nodes(t.Context()); err != nil || !slices.Equal(all, []string{name, "other.example"}) {
			t.Errorf("two: %v, %v", all, err)
		}

		services <- []string{name}
		synctest.Wait()
		if r := condition(shown(t, v, "other.example"), v1.NodeReady); r.Status != v1.ConditionUnknown || !strings.Contains(r.Message, "registered") {
			t.Errorf("without services: %+v", r)
		}
		services <- []string{name, "other.example"}
		mu.Lock()
		away = errors.New("connection refused")
		mu.Unlock()
		v.Wake()
		synctest.Wait()
		if r := condition(shown(t, v, "other.example"), v1.NodeReady); r.Status != v1.ConditionUnknown || !strings.Contains(r.Message, "connection refused") {
			t.Errorf("without the bus here: %+v", r)
		}
		nodes.entries <- bus.Entry[*podplanev1.NodeRecord]{Key: bus.NodeKey("other.example"), Deleted: true}
		services <- []string{name}
		synctest.Wait()
		if _, there := v.Table().Get("", "other.example"); there {
			t.Error("a node that was forgotten is shown")
		}
	})
}

func TestAllocatable(t *testing.T) {
	capacity := v1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("110")}
	left := node.Less(capacity, v1.ResourceList{"cpu": resource.MustParse("500m"), "memory": resource.MustParse("2Gi"), "pid": resource.MustParse("100")})
	for name, want := range map[v1.ResourceName]string{"cpu": "1500m", "memory": "0", "pods": "110"} {
		if q := left[name]; q.Cmp(resource.MustParse(want)) != 0 {
			t.Errorf("%s of %s is left, want %s", q.String(), name, want)
		}
	}
	if _, ok := left["pid"]; ok || len(left) != 3 {
		t.Errorf("left: %v, want only what was there", left)
	}
	if q := capacity["cpu"]; q.String() != "2" {
		t.Errorf("the capacity became %s", q.String())
	}
}
