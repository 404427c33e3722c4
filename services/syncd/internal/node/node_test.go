package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/cri"
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

func (c conditions) set(kind, status string) {
	now := timestamppb.New(time.Now())
	c.entries <- bus.Entry[*podplanev1.ConditionRecord]{
		Key: bus.ConditionKey(name, kind), Value: &podplanev1.ConditionRecord{Type: kind, Status: status, Reason: "Said", Heartbeat: now, Transition: now},
	}
}

type versioner struct{}

func (versioner) Version(context.Context) (cri.Version, error) {
	return cri.Version{RuntimeName: "containerd", RuntimeVersion: "v2.4.2"}, nil
}

func current(t *testing.T, v *node.View) *v1.Node {
	t.Helper()
	o, ok := v.Table().Get("", name)
	if !ok {
		t.Fatal("there is no node")
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
		go func() { ended <- v.Run(ctx, c) }()
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
		if v.Table().Version() > version+2 {
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
