package chain_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/pod"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/chain"
)

var epoch = time.Date(2026, 1, 2, 10, 2, 0, 0, time.UTC)

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// history makes an input, each thing with the second at which it was.
type history struct{ chain.Input }

func at(s float64) *timestamppb.Timestamp {
	return timestamppb.New(epoch.Add(time.Duration(s * float64(time.Second))))
}

var types = map[string]podplanev1.LifecycleType{
	pod.LifecycleContainerCreated: podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_CREATED,
	pod.LifecycleContainerStarted: podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_STARTED,
	pod.LifecycleContainerDied:    podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_DIED,
	pod.LifecycleContainerRemoved: podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_REMOVED,
	pod.LifecycleContainerChanged: podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_CHANGED,
	pod.LifecycleSandboxStarted:   podplanev1.LifecycleType_LIFECYCLE_TYPE_SANDBOX_STARTED,
	pod.LifecycleSandboxStopped:   podplanev1.LifecycleType_LIFECYCLE_TYPE_SANDBOX_STOPPED,
	pod.LifecycleSandboxRemoved:   podplanev1.LifecycleType_LIFECYCLE_TYPE_SANDBOX_REMOVED,
}

func (h *history) event(s float64, eventType, container, id string, attempt uint32, change ...func(*podplanev1.LifecycleEvent)) {
	e := &podplanev1.LifecycleEvent{
		Type: types[eventType], Container: container, ContainerId: id, SandboxId: "box", Attempt: attempt, OccurredAt: at(s),
		Id: pod.LifecycleEventID(id, eventType), Sequence: uint64(len(h.Lifecycle) + 1), Trace: &podplanev1.TraceContext{Traceparent: traceparent},
	}
	if container == "" {
		e.SandboxId, e.ContainerId = id, ""
	}
	for _, f := range change {
		f(e)
	}
	h.Lifecycle = append(h.Lifecycle, e)
}

func exit(code int32, reason string) func(*podplanev1.LifecycleEvent) {
	return func(e *podplanev1.LifecycleEvent) { e.ExitCode, e.Reason = &code, reason }
}

func (h *history) decided(s float64, d *podplanev1.Decision) {
	d.DecidedAt = at(s)
	h.Decisions = append(h.Decisions, chain.Decided{
		Sequence: uint64(len(h.Decisions) + 1),
		Record:   &podplanev1.DecisionsRecord{Decisions: []*podplanev1.Decision{d}, Trace: &podplanev1.TraceContext{Traceparent: traceparent}},
	})
}

func upon(id, eventType, message string) *podplanev1.DecisionCause {
	return &podplanev1.DecisionCause{Kind: "lifecycle", EventId: pod.LifecycleEventID(id, eventType), ObjectId: id, Message: message}
}

func lines(chains []*podplanev1.WhyChain) string {
	var b strings.Builder
	for _, c := range chains {
		b.WriteString(c.GetAt().AsTime().Format("05.0"))
		for i, s := range c.GetSteps() {
			if i > 0 {
				b.WriteString(" ->")
			}
			b.WriteString(" " + s.GetText())
		}
		b.WriteString("\n")
	}
	return b.String()
}

// life is a pod that crashed by its memory, was killed by a probe, and deleted.
func life() *history {
	h := &history{}
	h.decided(0, &podplanev1.Decision{Action: "CreateSandbox", Message: "it is to run here", Cause: &podplanev1.DecisionCause{Kind: "pod", Message: "pod created over the API", OccurredAt: at(0)}})
	h.event(0.1, pod.LifecycleSandboxStarted, "", "box", 0)
	h.decided(0.2, &podplanev1.Decision{Action: "StartContainer", Container: "app", Message: "its image and volumes are there", Cause: upon("box", pod.LifecycleSandboxStarted, "sandbox ready")})
	h.event(0.3, pod.LifecycleContainerCreated, "app", "c0", 0)
	h.event(0.4, pod.LifecycleContainerStarted, "app", "c0", 0)
	h.event(3, pod.LifecycleContainerDied, "app", "c0", 0, exit(137, "OOMKilled"))
	died := func() *podplanev1.DecisionCause {
		return upon("c0", pod.LifecycleContainerDied, "container app ended with exit code 137 (OOMKilled)")
	}
	h.decided(3.01, &podplanev1.Decision{Action: "BackOff", Container: "app", ObjectId: "c0", Message: "restartPolicy Always, back-off 10s", Cause: died()})
	h.decided(13, &podplanev1.Decision{Action: "StartContainer", Container: "app", Attempt: 1, Message: "restartPolicy Always, back-off 10s", Cause: died()})
	h.event(13.1, pod.LifecycleContainerCreated, "app", "c1", 1)
	h.event(13.2, pod.LifecycleContainerStarted, "app", "c1", 1)
	probe := &podplanev1.DecisionCause{Kind: "probe", Container: "app", ObjectId: "c1", Message: "liveness probe HTTP /healthz failed 3 times: 503", OccurredAt: at(20)}
	h.decided(20.1, &podplanev1.Decision{Action: "KillContainer", Container: "app", ObjectId: "c1", Attempt: 1, Message: "asked to stop within 30s", Cause: probe})
	h.event(21.3, pod.LifecycleContainerDied, "app", "c1", 1, exit(143, "Error"))
	h.decided(21.4, &podplanev1.Decision{Action: "StartContainer", Container: "app", Attempt: 2, Message: "restartPolicy Always", Cause: upon("c1", pod.LifecycleContainerDied, "")})
	h.event(21.5, pod.LifecycleContainerStarted, "app", "c2", 2)
	h.decided(21.5, &podplanev1.Decision{Action: "RemoveContainer", Container: "app", ObjectId: "c0", Cause: &podplanev1.DecisionCause{Kind: "housekeeping", ObjectId: "c0", Message: "only the newest dead container of each name is kept"}})
	h.event(21.7, pod.LifecycleContainerRemoved, "app", "c0", 0)
	deleted := func() *podplanev1.DecisionCause {
		return &podplanev1.DecisionCause{Kind: "deletion", Message: "pod deleted, grace period 30s", OccurredAt: at(40)}
	}
	h.decided(40.1, &podplanev1.Decision{Action: "StopPod", Message: "its containers are stopped", Cause: deleted()})
	h.decided(40.1, &podplanev1.Decision{Action: "KillContainer", Container: "app", ObjectId: "c2", Message: "asked to stop within 30s", Cause: deleted()})
	h.event(40.6, pod.LifecycleContainerDied, "app", "c2", 2, exit(0, "Completed"))
	h.decided(40.7, &podplanev1.Decision{Action: "StopSandbox", ObjectId: "box", Message: "no container of the pod runs any more", Cause: upon("c2", pod.LifecycleContainerDied, "")})
	h.event(40.8, pod.LifecycleSandboxStopped, "", "box", 0)
	h.decided(40.9, &podplanev1.Decision{Action: "RemoveSandbox", ObjectId: "box", Message: "nothing of the pod runs any more", Cause: deleted()})
	h.event(41, pod.LifecycleContainerRemoved, "app", "c1", 1)
	h.event(41, pod.LifecycleContainerRemoved, "app", "c2", 2)
	h.event(41, pod.LifecycleSandboxRemoved, "", "box", 0)
	h.decided(41.1, &podplanev1.Decision{Action: "RemoveRecord", Message: "nothing of the pod is left on the node", Cause: deleted()})
	for i, e := range []v1.Event{
		{Reason: "Pulled", Message: "Container image present", Count: 3},
		{Reason: "Started", Message: "Started container app"},
		{Reason: "Failed", Message: "Error: something that a decision tells"},
	} {
		e.FirstTimestamp, e.LastTimestamp = metav1.NewTime(epoch.Add(200*time.Millisecond)), metav1.NewTime(epoch.Add(22*time.Second))
		e.InvolvedObject.FieldPath, e.ReportingController = "spec.containers{app}", "podplane-syncd"
		h.Events = append(h.Events, chain.Reported{Sequence: uint64(i), Event: &e, Trace: traceparent})
	}
	return h
}

const told = `00.0 pod created over the API -> it is to run here -> sandbox ready
00.2 sandbox ready -> its image and volumes are there -> container app started
00.2 Pulled: Container image present (3 times until 2026-01-02T10:02:22Z) [podplane-syncd]
03.0 container app ended with exit code 137 (OOMKilled) -> restartPolicy Always, back-off 10s -> container app started as restart 1
20.0 liveness probe HTTP /healthz failed 3 times: 503 -> asked to stop within 30s -> container app ended with exit code 143 after 1.2s -> restartPolicy Always -> container app started as restart 2
21.5 only the newest dead container of each name is kept -> container app removed
40.0 pod deleted, grace period 30s -> its containers are stopped
40.0 pod deleted, grace period 30s -> asked to stop within 30s -> container app ended with exit code 0 after 500ms -> no container of the pod runs any more -> sandbox stopped
40.0 pod deleted, grace period 30s -> nothing of the pod runs any more -> sandbox removed
40.0 pod deleted, grace period 30s -> nothing of the pod is left on the node -> the pod is gone
`

func TestALife(t *testing.T) {
	h := life()
	chains, left := chain.Compose(h.Input)
	if got := lines(chains); got != told || left != 0 {
		t.Errorf("told:\n%s\nwant:\n%s", got, told)
	}
	for _, c := range chains {
		if c.GetTraceId() != "0af7651916cd43dd8448eb211c80319c" {
			t.Errorf("chain %v has the trace %q", c.GetSteps()[0], c.GetTraceId())
		}
		for i, s := range c.GetSteps() {
			if s.GetAt() == nil || s.GetSource() == "" {
				t.Errorf("step %v has no time or source", s)
			}
			if i > 0 && s.GetAt().AsTime().Before(c.GetSteps()[0].GetAt().AsTime()) {
				t.Errorf("step %v is before what it follows from", s)
			}
		}
	}
}

func TestChoices(t *testing.T) {
	h := life()
	h.Container = "other"
	chains, _ := chain.Compose(h.Input)
	for _, c := range chains {
		if c.GetContainer() == "app" {
			t.Errorf("a chain about another container: %v", c)
		}
	}
	if len(chains) == 0 {
		t.Error("what is about the pod as a whole is left out")
	}
	h.Container, h.Since = "", epoch.Add(30*time.Second)
	if chains, _ = chain.Compose(h.Input); len(chains) != 4 {
		t.Errorf("since: %s", lines(chains))
	}
	h.Since, h.Limit = time.Time{}, 2
	if chains, left := chain.Compose(h.Input); len(chains) != 2 || left != 8 {
		t.Errorf("limit: %d left out of %s", left, lines(chains))
	}
}

// TestAnythingMayBeMissing drops at random what the journals have forgotten: what is left is told, each thing once, none out of order.
func TestAnythingMayBeMissing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for range 2000 {
		all, h := life(), &history{}
		for _, e := range all.Lifecycle {
			if rnd.IntN(3) > 0 {
				h.Lifecycle = append(h.Lifecycle, e)
			}
		}
		for _, d := range all.Decisions {
			if rnd.IntN(3) > 0 {
				h.Decisions = append(h.Decisions, d)
			}
		}
		rnd.Shuffle(len(h.Lifecycle), func(i, j int) { h.Lifecycle[i], h.Lifecycle[j] = h.Lifecycle[j], h.Lifecycle[i] })
		chains, _ := chain.Compose(h.Input)
		again, _ := chain.Compose(h.Input)
		if lines(chains) != lines(again) {
			t.Fatal("not the same twice")
		}
		text := lines(chains)
		for _, e := range h.Lifecycle {
			if e.GetType() != podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_DIED {
				continue
			}
			want := "ended with exit code " + map[string]string{"c0": "137", "c1": "143", "c2": "0"}[e.GetContainerId()]
			if !strings.Contains(text, want) {
				t.Fatalf("%q is missing in:\n%s", want, text)
			}
		}
		for i := range chains {
			if i > 0 && chains[i].GetAt().AsTime().Before(chains[i-1].GetAt().AsTime()) {
				t.Fatalf("out of order:\n%s", text)
			}
			if proto.Size(chains[i]) == 0 || len(chains[i].GetSteps()) == 0 {
				t.Fatal("an empty chain")
			}
		}
	}
}
