package journal_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/pleg/internal/diff"
	"github.com/podplane/podplane/services/pleg/internal/journal"
)

const (
	node        = "node-a"
	traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
)

func ref(uid string) diff.Ref { return diff.Ref{UID: uid, Namespace: "default", Name: "web-" + uid} }

// life returns the events of a pod with one container up to the given phase.
func life(uid string, to diff.Phase, start time.Time) []diff.Event {
	p := pod.RuntimePod{UID: uid, Namespace: "default", Name: "web-" + uid, ObservedAt: start}
	p.Sandboxes = []pod.Sandbox{{ID: uid + "-s", UID: uid, Ready: true, CreatedAt: start, Annotations: map[string]string{pod.AnnotationTraceparent: traceparent}}}
	c := pod.Container{ID: uid + "-c", Name: "app", SandboxID: uid + "-s", PodUID: uid, Attempt: 3, State: pod.ContainerCreated, CreatedAt: start}
	if to >= diff.PhaseRunning {
		c.State, c.StartedAt = pod.ContainerRunning, start.Add(time.Millisecond)
	}
	if to >= diff.PhaseExited {
		c.State, c.FinishedAt, c.ExitCode, c.Reason = pod.ContainerExited, start.Add(2*time.Millisecond), 137, "OOMKilled"
	}
	p.Containers = []pod.Container{c}
	obs := diff.Observation{Pod: p, At: start.Add(3 * time.Millisecond), Via: diff.ViaStream}
	if to == diff.PhaseRemoved {
		obs.RemovedID, obs.RemovedAt = uid+"-c", obs.At
	}
	_, events, _ := diff.Diff(diff.Pod{}, obs, time.Time{})
	return events
}

func openStream(t *testing.T, b *bustest.Bus) *bus.Stream {
	t.Helper()
	s, err := bus.OpenStream(t.Context(), b.Connect(bus.ServicePleg, node), bus.Lifecycle)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// run starts a publisher that ends with the test.
func run(t *testing.T, s journal.Stream, opts journal.Options) *journal.Publisher {
	t.Helper()
	opts.Node = node
	p := journal.NewPublisher(s, opts)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p
}

func readN(t *testing.T, s *bus.Stream, n int) []bus.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var got []bus.Message
	enough := errors.New("enough")
	err := s.Read(ctx, bus.ReadFrom{Follow: true}, func(_ context.Context, m bus.Message) error {
		if got = append(got, m); len(got) == n {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatalf("read %d of %d events: %v", len(got), n, err)
	}
	return got
}

func TestPublishThenLoad(t *testing.T) {
	s := openStream(t, bustest.New(t))
	start := time.Now().UTC().Truncate(time.Microsecond)
	p := run(t, s, journal.Options{Registry: prometheus.NewRegistry()})
	running, exited, removed := life("a", diff.PhaseRunning, start), life("b.x", diff.PhaseExited, start), life("c", diff.PhaseRemoved, start)
	for _, events := range [][]diff.Event{running, exited, removed} {
		p.Publish(events)
	}
	total := len(running) + len(exited) + len(removed)
	messages := readN(t, s, total)
	checkMessage(t, messages, exited)

	r, err := journal.Load(t.Context(), s, node, time.Hour, time.Now(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string]diff.Phase{
		"a":   {"a-s": diff.PhaseRunning, "a-c": diff.PhaseRunning},
		"b.x": {"b.x-s": diff.PhaseRunning, "b.x-c": diff.PhaseExited},
		"c":   {"c-s": diff.PhaseRunning},
	}
	if len(r.Pods) != len(want) {
		t.Errorf("loaded pods: %v", r.Pods)
	}
	for uid, objects := range want {
		if len(r.Pods[uid].Objects) != len(objects) || r.Pods[uid].Ref != ref(uid) {
			t.Errorf("pod %s: %+v", uid, r.Pods[uid])
		}
		for id, phase := range objects {
			if o := r.Pods[uid].Objects[id]; o.Phase != phase || o.SandboxID != uid+"-s" {
				t.Errorf("object %s: %+v, want phase %s", id, o, phase)
			}
		}
	}
	c := r.Pods["b.x"].Objects["b.x-c"]
	if c.Name != "app" || c.Attempt != 3 || c.ExitCode != 137 || c.Traceparent != traceparent {
		t.Errorf("container from the journal: %+v", c)
	}
	if ago := time.Since(r.Horizon); ago < time.Hour || ago > time.Hour+time.Minute {
		t.Errorf("horizon is %s ago, want the age of the journal", ago)
	}
}

func checkMessage(t *testing.T, messages []bus.Message, events []diff.Event) {
	t.Helper()
	died := events[len(events)-1]
	i := slices.IndexFunc(messages, func(m bus.Message) bool { return m.ID == died.ID || m.Header["ce-id"] == died.ID })
	if i < 0 {
		t.Fatal("the container's death is not in the journal")
	}
	m := messages[i]
	if want := "pleg.v1." + node + ".b=2Ex.ContainerDied"; m.Subject != want {
		t.Errorf("subject %s, want %s", m.Subject, want)
	}
	for header, want := range map[string]string{
		"ce-specversion": "1.0", "ce-type": "podplane.pleg.v1.ContainerDied", "ce-source": "/nodes/" + node + "/pleg",
		"ce-time": died.OccurredAt.Format(time.RFC3339Nano), "ce-subject": "b.x-c", "content-type": "application/json",
	} {
		if m.Header[header] != want {
			t.Errorf("header %s is %q, want %q", header, m.Header[header], want)
		}
	}
	if m.Trace.TraceID().String() != traceparent[3:35] {
		t.Errorf("trace of the message is %s", m.Trace.TraceID())
	}
	e, err := journal.Decode(m)
	if err != nil {
		t.Fatal(err)
	}
	if e.GetType() != podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_DIED || e.GetExitCode() != 137 || e.GetReason() != "OOMKilled" ||
		e.GetContainer() != "app" || e.GetVia() != "stream" || !e.GetOccurredAt().AsTime().Equal(died.OccurredAt) || e.GetSequence() != m.Sequence {
		t.Errorf("event %v", e)
	}
	if len(e.GetContainers()) != 1 || e.GetContainers()[0].GetState() != "exited" {
		t.Errorf("snapshot %v", e.GetContainers())
	}
}

// TestRepublish publishes everything twice, as after a crash between a publication and its acknowledgement.
func TestRepublish(t *testing.T) {
	s := openStream(t, bustest.New(t))
	events := life("a", diff.PhaseExited, time.Now())
	for range 2 {
		p := run(t, s, journal.Options{})
		p.Publish(events)
		waitDrained(t, p)
	}
	info, err := s.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.Messages != uint64(len(events)) {
		t.Errorf("%d messages, want %d", info.Messages, len(events))
	}
}

func waitDrained(t *testing.T, p *journal.Publisher) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for p.Pending() > 0 {
		select {
		case <-deadline:
			t.Fatalf("%d events are still waiting", p.Pending())
		case <-tick.C:
		}
	}
}

// flaky is a stream that is away for the first attempts of each message, and checks the order of each pod.
type flaky struct {
	mu       sync.Mutex
	attempts map[string]int
	stored   map[string][]string // event IDs by subject's pod
	away     int
	flying   map[string]bool
}

func (f *flaky) Publish(_ context.Context, m bus.Message) (uint64, bool, error) {
	parts, err := bus.SplitKey(m.Subject)
	if err != nil {
		return 0, false, err
	}
	uid := parts[3]
	f.mu.Lock()
	if f.flying[uid] {
		f.mu.Unlock()
		return 0, false, fmt.Errorf("two events of pod %s at once", uid)
	}
	f.flying[uid] = true
	f.mu.Unlock()
	runtime.Gosched()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flying[uid] = false
	f.attempts[m.ID]++
	if f.attempts[m.ID] <= f.away {
		return 0, false, fault.New(fault.Unavailable, "away")
	}
	f.stored[uid] = append(f.stored[uid], m.ID)
	return 1, false, nil
}

func TestKeptInOrderWhileAway(t *testing.T) {
	defer goleak.VerifyNone(t)
	f := &flaky{attempts: map[string]int{}, stored: map[string][]string{}, flying: map[string]bool{}, away: 2}
	p := journal.NewPublisher(f, journal.Options{Node: node, Parallel: 3, MaxPending: 30})
	want := map[string][]string{}
	for i := range 10 {
		uid := fmt.Sprint("p", i)
		events := life(uid, diff.PhaseExited, time.Now())
		p.Publish(events[:2])
		p.Publish(events[2:])
		for _, e := range events {
			want[uid] = append(want[uid], e.ID)
		}
	}
	if p.Room() {
		t.Errorf("there is room for more beside %d events", p.Pending())
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	waitDrained(t, p)
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for uid, ids := range want {
		if !slices.Equal(f.stored[uid], ids) {
			t.Errorf("pod %s: stored %v, want %v", uid, f.stored[uid], ids)
		}
	}
	if !p.Room() {
		t.Error("no room although nothing waits")
	}
}

// TestHorizon loads a journal whose oldest messages were dropped for its size.
func TestHorizon(t *testing.T) {
	b := bustest.NewEmpty(t)
	spec := bus.Lifecycle
	spec.MaxMsgs = 3
	s, err := bus.OpenStream(t.Context(), b.Connect(bus.ServicePleg, node), spec)
	if err != nil {
		t.Fatal(err)
	}
	p := run(t, s, journal.Options{})
	p.Publish(life("a", diff.PhaseExited, time.Now()))
	p.Publish(life("b", diff.PhaseExited, time.Now()))
	waitDrained(t, p)
	info, err := s.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, err := journal.Load(t.Context(), s, node, time.Hour, time.Now(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if info.FirstSequence == 1 || !r.Horizon.Equal(info.FirstTime) {
		t.Errorf("horizon %s, want the time of the first message %s (sequence %d)", r.Horizon, info.FirstTime, info.FirstSequence)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"type":"LIFECYCLE_TYPE_CONTAINER_DIED","exitCode":137,"containers":[{"name":"app"}],"later":"field"}`))
	f.Add([]byte(`{"type":99,"occurredAt":"never"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := journal.Decode(bus.Message{Data: data, Sequence: 7})
		if (err == nil) == (e == nil) || e != nil && e.GetSequence() != 7 {
			t.Fatalf("%v, %v", e, err)
		}
	})
}
