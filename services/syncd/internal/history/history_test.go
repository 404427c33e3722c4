package history_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/history"
)

var epoch = time.Date(2026, 1, 2, 10, 0, 0, 0, time.UTC)

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// live are the pods that there are, by namespace/name.
type live map[string]*podplanev1.StatusRecord

func (l live) Find(namespace, name string) (string, bool) {
	r, ok := l[namespace+"/"+name]
	return r.GetUid(), ok
}

func (l live) Status(uid string) (*podplanev1.StatusRecord, bool) {
	for _, r := range l {
		if r.GetUid() == uid {
			return r, true
		}
	}
	return nil, false
}

func (live) WaitSynced(context.Context) error { return nil }

// rig is a History on a real bus, whose journals the test writes.
type rig struct {
	*history.History
	t         *testing.T
	pods      live
	decisions *bus.Stream
	lifecycle *bus.Stream
	events    *bus.Stream
	n         int
}

func newRig(t *testing.T) *rig {
	t.Helper()
	b := bustest.New(t)
	r := &rig{t: t, pods: live{}}
	open := func(service string, spec bus.StreamSpec) *bus.Stream {
		s, err := bus.OpenStream(t.Context(), b.Connect(service, "n"), spec)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	r.decisions, r.lifecycle, r.events = open(bus.ServiceSyncd, bus.Decisions), open(bus.ServicePleg, bus.Lifecycle), open(bus.ServiceSyncd, bus.Events)
	r.History = history.New(r.pods, slog.New(slog.DiscardHandler))
	r.Use(r.lifecycle, r.decisions, r.events)
	return r
}

func (r *rig) publish(s *bus.Stream, subject string, data []byte, err error) {
	r.t.Helper()
	r.n++
	if err == nil {
		_, _, err = s.Publish(r.t.Context(), bus.Message{Subject: subject, ID: fmt.Sprint(r.n), Data: data})
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func at(second int) *timestamppb.Timestamp {
	return timestamppb.New(epoch.Add(time.Duration(second) * time.Second))
}

// died is a container's end, and started what was decided upon it.
func (r *rig) died(second int, namespace, name, uid, id string) {
	code := int32(3)
	e := &podplanev1.LifecycleEvent{
		Type: podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_DIED, Namespace: namespace, Name: name, Uid: uid, Container: "app", ContainerId: id,
		ExitCode: &code, OccurredAt: at(second), Id: pod.LifecycleEventID(id, pod.LifecycleContainerDied), Trace: &podplanev1.TraceContext{Traceparent: traceparent},
	}
	data, err := protojson.Marshal(e)
	r.publish(r.lifecycle, bus.LifecycleSubject("n", uid, "ContainerDied"), data, err)
}

func (r *rig) started(second int, namespace, name, uid, after string) {
	rec := &podplanev1.DecisionsRecord{Namespace: namespace, Name: name, Uid: uid, Decisions: []*podplanev1.Decision{{
		Action: "StartContainer", Container: "app", Attempt: 1, DecidedAt: at(second), Message: "it is started again",
		Cause: &podplanev1.DecisionCause{Kind: "lifecycle", EventId: pod.LifecycleEventID(after, pod.LifecycleContainerDied), ObjectId: after},
	}}, Trace: &podplanev1.TraceContext{Traceparent: traceparent}}
	data, err := proto.Marshal(rec)
	r.publish(r.decisions, bus.DecisionsSubject("n", uid, namespace, name), data, err)
}

func (r *rig) event(second int, namespace, name, uid, event, message string, count int32) {
	e := v1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: event}, Reason: "PullQueued", Message: message, Count: count,
		InvolvedObject: v1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: name, FieldPath: "spec.containers{app}"},
		LastTimestamp:  metav1.NewTime(at(second).AsTime()),
	}
	data, err := json.Marshal(e)
	r.publish(r.events, bus.EventSubject("n", uid, "PullQueued"), data, err)
}

func (r *rig) why(req *podplanev1.WhyRequest) *podplanev1.WhyResponse {
	r.t.Helper()
	resp, err := r.Why(r.t.Context(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp
}

func text(r *podplanev1.WhyResponse) string {
	var b strings.Builder
	for _, c := range r.GetChains() {
		for _, s := range c.GetSteps() {
			b.WriteString(s.GetText() + "; ")
		}
	}
	return b.String()
}

func TestJournalsAreJoined(t *testing.T) {
	r := newRig(t)
	r.pods["ns/web"] = &podplanev1.StatusRecord{
		Namespace: "ns", Name: "web", Uid: "u1", Status: []byte(`{"phase":"Running"}`), Trace: &podplanev1.TraceContext{Traceparent: traceparent},
		Waiting: []*podplanev1.Waiting{{Step: "backoff", Resource: "app"}},
	}
	r.died(1, "ns", "web", "u1", "c1")
	r.started(2, "ns", "web", "u1", "c1")
	r.event(3, "ns", "web", "u1", "web.1", "Waiting to pull", 1)
	r.event(9, "ns", "web", "u1", "web.1", "Waiting to pull", 7)
	r.died(4, "ns", "other", "u2", "c2")
	resp := r.why(&podplanev1.WhyRequest{Namespace: "ns", Pod: "web"})
	if resp.GetUid() != "u1" || resp.GetPhase() != "Running" || len(resp.GetWaiting()) != 1 || resp.GetTraceId() != traceparent[3:35] || len(resp.GetMissing()) != 0 {
		t.Errorf("about the pod: %v", resp)
	}
	got := text(resp)
	if !strings.Contains(got, "exit code 3") || !strings.Contains(got, "it is started again") || strings.Count(got, "Waiting to pull") != 1 {
		t.Errorf("chains: %s", got)
	}
	if byUID := r.why(&podplanev1.WhyRequest{Namespace: "ns", Uid: "u1"}); byUID.GetName() != "web" || text(byUID) != got {
		t.Errorf("asked by UID: %v", byUID)
	}
	if last := r.why(&podplanev1.WhyRequest{Namespace: "ns", Pod: "web", Limit: 1}); len(last.GetChains()) != 1 || last.GetLeftOut() != uint32(len(resp.GetChains())-1) {
		t.Errorf("the newest one: %v", last)
	}
	if none := r.why(&podplanev1.WhyRequest{Namespace: "ns", Pod: "web", Since: "10m"}); strings.Contains(text(none), "exit code") || len(none.GetChains()) == 0 {
		t.Errorf("of the last minutes, in which only the Event was: %v", none)
	}
	if none := r.why(&podplanev1.WhyRequest{Namespace: "ns", Pod: "web", Container: "side"}); len(none.GetChains()) != 0 {
		t.Errorf("of another container: %v", none)
	}
}

// A pod that is gone is found by its name: the newest of those that had it, with the UIDs of the others.
func TestPodsThatAreGone(t *testing.T) {
	r := newRig(t)
	r.started(1, "ns", "job", "u1", "c1")
	r.started(5, "ns", "job", "u2", "c2")
	r.died(6, "ns", "silent", "u3", "c3") // of which there is no decision
	resp := r.why(&podplanev1.WhyRequest{Namespace: "ns", Pod: "job"})
	if resp.GetUid() != "u2" || resp.GetPhase() != "Gone" || strings.Join(resp.GetEarlierUids(), " ") != "u1" || resp.GetTraceId() == "" {
		t.Errorf("the newest: %v", resp)
	}
	if resp := r.why(&podplanev1.WhyRequest{Namespace: "ns", Pod: "job", Uid: "u1"}); resp.GetUid() != "u1" || len(resp.GetChains()) != 1 {
		t.Errorf("the one before: %v", resp)
	}
	if resp := r.why(&podplanev1.WhyRequest{Namespace: "ns", Pod: "silent"}); resp.GetUid() != "u3" || !strings.Contains(text(resp), "exit code 3") {
		t.Errorf("by its lifecycle events alone: %v", resp)
	}
}

func TestRefused(t *testing.T) {
	r := newRig(t)
	r.pods["secret/db"] = &podplanev1.StatusRecord{Namespace: "secret", Name: "db", Uid: "u9", Status: []byte(`{}`)}
	r.started(1, "secret", "db", "u9", "c9")
	for name, c := range map[string]struct {
		req  *podplanev1.WhyRequest
		kind fault.Kind
	}{
		"no pod":                        {&podplanev1.WhyRequest{}, fault.BadRequest},
		"a time that is none":           {&podplanev1.WhyRequest{Pod: "x", Since: "yesterday"}, fault.BadRequest},
		"a time to come":                {&podplanev1.WhyRequest{Pod: "x", Since: "-5m"}, fault.BadRequest},
		"a pod that never was":          {&podplanev1.WhyRequest{Namespace: "ns", Pod: "x"}, fault.NotFound},
		"a UID of another namespace":    {&podplanev1.WhyRequest{Namespace: "ns", Uid: "u9"}, fault.NotFound},
		"the same with a name of yours": {&podplanev1.WhyRequest{Namespace: "ns", Pod: "mine", Uid: "u9"}, fault.NotFound},
	} {
		resp, err := r.Why(t.Context(), c.req)
		if c.kind == fault.NotFound && err == nil && len(resp.GetChains()) == 0 && resp.GetPhase() == "Gone" && len(resp.GetWaiting()) == 0 {
			continue // nothing is told of it
		}
		if fault.KindOf(err) != c.kind {
			t.Errorf("%s: %v, %v; want %v", name, resp, err, c.kind)
		}
	}
	if resp := r.why(&podplanev1.WhyRequest{Namespace: "secret", Pod: "db", Since: epoch.Format(time.RFC3339)}); len(resp.GetChains()) != 1 {
		t.Errorf("in its own namespace: %v", resp)
	}
}

// A journal that is not there yet is named, and the others answer.
func TestJournalsThatAreMissing(t *testing.T) {
	r := newRig(t)
	r.pods["ns/web"] = &podplanev1.StatusRecord{Namespace: "ns", Name: "web", Uid: "u1", Status: []byte(`{"phase":"Pending"}`)}
	r.started(1, "ns", "web", "u1", "c1")
	h := history.New(r.pods, slog.New(slog.DiscardHandler))
	if _, err := h.Why(t.Context(), &podplanev1.WhyRequest{Namespace: "ns", Pod: "web"}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("without any journal: %v", err)
	}
	h.Use(nil, r.decisions, nil)
	resp, err := h.Why(t.Context(), &podplanev1.WhyRequest{Namespace: "ns", Pod: "web"})
	if err != nil || len(resp.GetChains()) != 1 || len(resp.GetMissing()) != 2 || !strings.Contains(strings.Join(resp.GetMissing(), " "), "lifecycle events") {
		t.Errorf("with one journal: %v, %v", resp, err)
	}
}
