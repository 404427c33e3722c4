package eventlog_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/syncd/internal/eventlog"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

const node = "node-1"

func message(t *testing.T, name string, count int32) bus.Message {
	t.Helper()
	e := v1.Event{Reason: "Started", Type: "Normal", Count: count, InvolvedObject: v1.ObjectReference{Kind: "Pod", Name: "web", UID: "u"}}
	e.Namespace, e.Name = "default", name
	data, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return bus.Message{Subject: bus.EventSubject(node, "u", e.Reason), Data: data, Time: time.Now()}
}

func run(t *testing.T, l *eventlog.Log) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
}

func TestEventsAreSeenWithTheirNewestCount(t *testing.T) {
	b := bustest.New(t)
	c := b.Connect(bus.ServiceSyncd, node)
	stream, err := bus.OpenStream(t.Context(), c, bus.Events)
	if err != nil {
		t.Fatal(err)
	}
	publish := func(m bus.Message) {
		t.Helper()
		if _, _, err := stream.Publish(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	publish(message(t, "old.1", 1))
	publish(bus.Message{Subject: bus.EventSubject(node, "u", "X"), Data: []byte("not an event")})
	publish(message(t, "old.1", 4))
	l, err := eventlog.Open(t.Context(), c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	run(t, l)
	if err := l.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, version := l.Table().List("default", nil)
	if len(list) != 1 || list[0].Fields["involvedObject.uid"] != "u" || list[0].Fields["reason"] != "Started" {
		t.Fatalf("got %+v", list)
	}
	var e v1.Event
	data, err := list[0].JSON()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &e); err != nil || e.Count != 4 || e.ResourceVersion != list[0].ResourceVersion() {
		t.Errorf("got %s, %v", data, err)
	}
	w, err := l.Table().Watch(version, watchcache.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	publish(message(t, "new.2", 1))
	publish(message(t, "new.2", 2))
	for _, want := range []string{watchcache.Added, watchcache.Modified} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		got, err := w.Next(ctx)
		cancel()
		if err != nil || got.Type != want || got.Object.Name != "new.2" {
			t.Errorf("got %+v, %v, want %s", got, err, want)
		}
	}
}

// script is a stream that gives messages and then waits.
type script struct {
	messages []bus.Message
	fails    int
}

func (s *script) Read(ctx context.Context, from bus.ReadFrom, f func(context.Context, bus.Message) error) error {
	if from.Follow {
		<-ctx.Done()
		return ctx.Err()
	}
	if s.fails > 0 {
		s.fails--
		return fault.New(fault.Unavailable, "away")
	}
	for i, m := range s.messages {
		m.Sequence = uint64(i + 1)
		if m.Sequence < from.Sequence {
			continue
		}
		if err := f(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

func TestTheViewIsBounded(t *testing.T) {
	s := &script{fails: 1}
	ancient := message(t, "ancient", 1)
	ancient.Time = time.Now().Add(-2 * eventlog.MaxAge)
	s.messages = append(s.messages, ancient)
	for i := range eventlog.MaxEvents + 10 {
		s.messages = append(s.messages, message(t, fmt.Sprintf("e%04d", i), 1))
	}
	// Seen again, an event is young again.
	s.messages = append(s.messages, message(t, "e0010", 2))
	l := eventlog.New(s, ">", slog.New(slog.DiscardHandler))
	run(t, l)
	if err := l.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := l.Table().Len(); n != eventlog.MaxEvents {
		t.Errorf("%d events", n)
	}
	for name, want := range map[string]bool{"ancient": false, "e0009": false, "e0010": true, "e0011": true, fmt.Sprintf("e%04d", eventlog.MaxEvents+9): true} {
		if _, ok := l.Table().Get("default", name); ok != want {
			t.Errorf("%s: %v", name, ok)
		}
	}
}
