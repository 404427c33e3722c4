package syncd

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/plan"
	"github.com/podplane/podplane/services/syncd/internal/store"
)

func TestCountRejections(t *testing.T) {
	r := prometheus.NewRegistry()
	rejected, err := countRejections(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, reason := range []string{"OutOfcpu", "OutOfcpu", "NodePorts", "NewReason", ""} {
		rejected(reason)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		got[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
	}
	want := map[string]float64{"OutOfcpu": 2, "NodePorts": 1, "Other": 2, "OutOfmemory": 0}
	for reason, n := range want {
		if have, there := got[reason]; !there || have != n {
			t.Errorf("%s was counted %v times, want %v", reason, have, n)
		}
	}
	if len(got) != len(rejections)+1 {
		t.Errorf("got the reasons %v", got)
	}
}

// answering is a runtime that says what it can do, or nothing.
type answering struct {
	cri.Health
	status cri.Status
	err    error
}

func (a answering) Status(context.Context) (cri.Status, error) { return a.status, a.err }

func TestStrictGroups(t *testing.T) {
	for _, c := range []struct {
		runtime answering
		want    bool
	}{
		{answering{status: cri.Status{SupplementalGroupsPolicy: true}}, true},
		{answering{}, false},
		{answering{err: errors.New("away")}, true}, // it may well know it
	} {
		if got := strictGroups(c.runtime)(); got != c.want {
			t.Errorf("%+v: got %v", c.runtime, got)
		}
	}
}

// TestPreempted: what a record says about making room becomes an order with the pod's own grace.
func TestPreempted(t *testing.T) {
	at, grace := time.Unix(1000, 0), int64(7)
	p := &v1.Pod{}
	if preempted(store.PodChange{Pod: p, Record: &podplanev1.PodRecord{}}) != nil {
		t.Error("an order of nobody")
	}
	rec := &podplanev1.PodRecord{Preemption: &podplanev1.Preemption{Uid: "u", Namespace: "ns", Name: "web", At: timestamppb.New(at)}}
	e := preempted(store.PodChange{Pod: p, Record: rec})
	if e.Reason != plan.ReasonPreempting || e.Message != "Preempted in order to admit critical pod ns/web" || e.Grace != 30*time.Second || !e.OrderedAt.Equal(at) {
		t.Errorf("got %+v", e)
	}
	p.Spec.TerminationGracePeriodSeconds = &grace
	if e := preempted(store.PodChange{Pod: p, Record: rec}); e.Grace != 7*time.Second {
		t.Errorf("got a grace of %v", e.Grace)
	}
}
