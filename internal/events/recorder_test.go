package events_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/events"
	"github.com/podplane/podplane/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patient = 30 * time.Second

var (
	epoch = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	pod   = events.Pod("ns", "Web", "uid-1", "spec.containers{c}")
)

// stream is a Publisher that keeps what is published; fail decides what is refused.
type stream struct {
	mu       sync.Mutex
	fail     func() error
	messages []bus.Message
	traces   []trace.SpanContext
	came     chan struct{}
}

func newStream() *stream { return &stream{came: make(chan struct{}, 5000)} }

func (s *stream) Publish(ctx context.Context, m bus.Message) (uint64, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		if err := s.fail(); err != nil {
			s.came <- struct{}{}
			return 0, false, err
		}
	}
	s.messages = append(s.messages, m)
	s.traces = append(s.traces, trace.SpanContextFromContext(ctx))
	s.came <- struct{}{}
	return uint64(len(s.messages)), false, nil
}

func (s *stream) events(t *testing.T) []corev1.Event {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]corev1.Event, len(s.messages))
	for i, m := range s.messages {
		if err := json.Unmarshal(m.Data, &list[i]); err != nil {
			t.Fatal(err)
		}
	}
	return list
}

func (s *stream) wait(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case <-s.came:
		case <-time.After(patient):
			t.Fatal("nothing was published")
		}
	}
}

// drain publishes what is queued: a Run whose ctx has ended publishes once and returns.
func drain(t *testing.T, r *events.Recorder) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestEvent(t *testing.T) {
	s, c := newStream(), clocktesting.NewFakeClock(epoch)
	r := events.NewRecorder(s, "syncd", "host.a", c)
	r.Event(pod, events.Warning, "Failed", "pull %q: %d %%", "img", 7)
	r.Event(events.Node("host.a"), events.Normal, "Starting", "literal %d")
	drain(t, r)
	got := s.events(t)
	if len(got) != 2 {
		t.Fatalf("%d events", len(got))
	}
	e := got[0]
	if e.Kind != "Event" || e.APIVersion != "v1" || e.Namespace != "ns" || e.Name != fmt.Sprintf("web.%x", epoch.UnixNano()) || e.UID == "" ||
		e.Type != "Warning" || e.Reason != "Failed" || e.Message != `pull "img": 7 %` || e.Count != 1 || e.Action != "" ||
		e.Source.Component != "podplane-syncd" || e.Source.Host != "host.a" || e.ReportingController != "podplane-syncd" || e.ReportingInstance != "host.a" ||
		!e.FirstTimestamp.Time.Equal(epoch.Truncate(time.Second)) || !e.LastTimestamp.Time.Equal(epoch.Truncate(time.Second)) {
		t.Errorf("got %+v", e)
	}
	want := corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "Web", UID: "uid-1", APIVersion: "v1", FieldPath: "spec.containers{c}"}
	if e.InvolvedObject != want {
		t.Errorf("about %+v", e.InvolvedObject)
	}
	if subject := s.messages[0].Subject; subject != "events.v1.host=2Ea.uid-1.Failed" {
		t.Errorf("subject %s", subject)
	}
	if n := got[1]; n.Namespace != "default" || n.Message != "literal %d" || n.Name == e.Name || s.messages[1].Subject != "events.v1.host=2Ea.node.Starting" {
		t.Errorf("got %+v on %s", n, s.messages[1].Subject)
	}
	if r.Published() != 2 || r.Dropped() != 0 || r.Filtered() != 0 {
		t.Error("counters", r.Published(), r.Dropped(), r.Filtered())
	}
}

func TestMessageIsCutBetweenCharacters(t *testing.T) {
	s := newStream()
	r := events.NewRecorder(s, "syncd", "n", nil)
	r.Event(pod, events.Normal, "Long", "%s", "x"+strings.Repeat("é", 1000))
	drain(t, r)
	if m := s.events(t)[0].Message; len(m) > events.MaxMessageBytes || len(m) < events.MaxMessageBytes-4 || !utf8.ValidString(m) {
		t.Errorf("%d bytes, valid %v", len(m), utf8.ValidString(m))
	}
}

func TestRepeatsAreCounted(t *testing.T) {
	s, c := newStream(), clocktesting.NewFakeClock(epoch)
	r := events.NewRecorder(s, "syncd", "n", c)
	for range 20 {
		r.Event(pod, events.Warning, "BackOff", "again")
		c.Step(10 * time.Second)
	}
	r.Event(pod, events.Warning, "BackOff", "other words")
	c.Step(events.AggregateWindow + time.Second)
	r.Event(pod, events.Warning, "BackOff", "again") // too late: an event of its own
	drain(t, r)
	got := s.events(t)
	var counts []int32
	for _, e := range got {
		counts = append(counts, e.Count)
	}
	if fmt.Sprint(counts) != "[1 2 4 8 16 1 1]" {
		t.Fatalf("counts %v", counts)
	}
	names, ids := map[string]bool{}, map[string]bool{}
	for i, e := range got {
		names[e.Name] = true
		ids[s.messages[i].ID] = true
	}
	if len(names) != 3 || len(ids) != len(got) {
		t.Errorf("names %v, ids %v", names, ids)
	}
	if last := got[4]; !last.FirstTimestamp.Time.Equal(epoch.Truncate(time.Second)) || last.LastTimestamp.Sub(epoch) < 149*time.Second {
		t.Errorf("got %+v", last)
	}
}

func TestSpamIsHeldBack(t *testing.T) {
	s, c := newStream(), clocktesting.NewFakeClock(epoch)
	r := events.NewRecorder(s, "syncd", "n", c)
	for i := range 40 {
		r.Event(pod, events.Normal, "Noise", "%d", i)
	}
	r.Event(events.Pod("ns", "other", "uid-2", ""), events.Normal, "Noise", "x") // has a budget of its own
	if r.Filtered() != 15 {
		t.Errorf("%d held back", r.Filtered())
	}
	c.Step(2 * events.SpamRefill)
	for i := range 5 {
		r.Event(pod, events.Normal, "Later", "%d", i)
	}
	drain(t, r)
	if n := len(s.events(t)); n != 25+1+2 || r.Filtered() != 18 {
		t.Errorf("%d published, %d held back", n, r.Filtered())
	}
}

func TestQueueIsBounded(t *testing.T) {
	s := newStream()
	r := events.NewRecorder(s, "syncd", "n", clocktesting.NewFakeClock(epoch))
	for i := range events.QueueSize + 7 {
		r.Event(events.Pod("ns", "p", fmt.Sprint(i), ""), events.Normal, "R", "m")
	}
	if r.Dropped() != 7 {
		t.Errorf("%d dropped", r.Dropped())
	}
	drain(t, r)
	if n := len(s.events(t)); n != events.QueueSize {
		t.Errorf("%d published", n)
	}
}

func TestKeptWhileTheBusIsAway(t *testing.T) {
	s, c := newStream(), clocktesting.NewFakeClock(epoch)
	away := true
	s.fail = func() error {
		if away {
			return fault.New(fault.Unavailable, "away")
		}
		return nil
	}
	r := events.NewRecorder(s, "syncd", "n", c)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	r.Event(pod, events.Normal, "First", "m")
	r.Event(pod, events.Normal, "Second", "m")
	s.wait(t, 1)
	s.mu.Lock()
	away = false
	s.mu.Unlock()
	for published := false; !published; { // the timer may be set after a step
		c.Step(10 * time.Second)
		select {
		case <-s.came:
			published = true
		case <-time.After(time.Millisecond):
		}
	}
	s.wait(t, 1)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	got := s.events(t)
	if len(got) != 2 || got[0].Reason != "First" || got[1].Reason != "Second" || r.Dropped() != 0 {
		t.Errorf("got %+v", got)
	}
}

func TestWhatCanNeverBeStoredIsDropped(t *testing.T) {
	s := newStream()
	refuse := fault.New(fault.PermissionDenied, "no")
	s.fail = func() error { err := refuse; refuse = nil; return err }
	r := events.NewRecorder(s, "syncd", "n", nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	r.Event(pod, events.Normal, "Refused", "m")
	r.Event(pod, events.Normal, "Taken", "m")
	s.wait(t, 2)
	cancel()
	<-ended
	if got := s.events(t); len(got) != 1 || got[0].Reason != "Taken" || r.Dropped() != 1 || r.Published() != 1 {
		t.Errorf("got %+v", got)
	}
}

func TestEndWithoutTheBus(t *testing.T) {
	s := newStream()
	s.fail = func() error { return fault.New(fault.Unavailable, "away") }
	r := events.NewRecorder(s, "syncd", "n", nil)
	for i := range 5 {
		r.Event(pod, events.Normal, "R", "%d", i)
	}
	drain(t, r)
	if r.Dropped() != 5 {
		t.Errorf("%d dropped", r.Dropped())
	}
}

// TestOnTheBus publishes on a real stream, in the trace of the caller.
func TestOnTheBus(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	c := bustest.New(t).Connect(bus.ServiceSyncd, "n")
	stream, err := bus.OpenStream(ctx, c, bus.Events)
	if err != nil {
		t.Fatal(err)
	}
	r := events.NewRecorder(stream, bus.ServiceSyncd, "n", nil)
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	r.EventContext(trace.ContextWithSpanContext(ctx, sc), pod, events.Normal, "Started", "Started container c")
	drain(t, r)
	n := 0
	err = stream.Read(ctx, bus.ReadFrom{Filter: bus.EventsEverywhere("uid-1")}, func(_ context.Context, m bus.Message) error {
		var e corev1.Event
		if err := json.Unmarshal(m.Data, &e); err != nil {
			return err
		}
		if e.Reason != "Started" || m.Trace.TraceID() != sc.TraceID() || m.Writer != "syncd/test" {
			t.Errorf("got %+v of %s in %+v", e, m.Writer, m.Trace)
		}
		n++
		return nil
	})
	if err != nil || n != 1 {
		t.Errorf("%d events: %v", n, err)
	}
}

// TestConcurrent records from many goroutines while publishing.
func TestConcurrent(t *testing.T) {
	s := newStream()
	r := events.NewRecorder(s, "syncd", "n", nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 100 {
				r.Event(events.Pod("ns", "p", fmt.Sprintf("%d-%d", g, i), ""), events.Normal, "R", "m")
			}
		})
	}
	wg.Wait()
	s.wait(t, 800)
	cancel()
	<-ended
	names := map[string]bool{}
	for _, e := range s.events(t) {
		names[e.Name] = true
	}
	if len(names) != 800 || r.Published() != 800 {
		t.Errorf("%d names, %d published", len(names), r.Published())
	}
}
