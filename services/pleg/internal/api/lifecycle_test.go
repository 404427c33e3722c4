package api_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/pleg/internal/api"
)

// sink collects what is sent.
type sink struct {
	ctx  context.Context
	sent chan *podplanev1.LifecycleEvent
}

func (s *sink) Send(r *podplanev1.ListLifecycleResponse) error { s.sent <- r.GetEvent(); return nil }
func (s *sink) Context() context.Context                       { return s.ctx }
func (s *sink) SetHeader(metadata.MD) error                    { return nil }
func (s *sink) SendHeader(metadata.MD) error                   { return nil }
func (s *sink) SetTrailer(metadata.MD)                         {}
func (s *sink) SendMsg(any) error                              { return nil }
func (s *sink) RecvMsg(any) error                              { return nil }

func publish(t *testing.T, s *bus.Stream, uid, namespace, name, id string) {
	t.Helper()
	data := `{"uid":"` + uid + `","namespace":"` + namespace + `","name":"` + name + `","id":"` + id + `","type":"LIFECYCLE_TYPE_CONTAINER_DIED"}`
	if _, _, err := s.Publish(t.Context(), bus.Message{Subject: bus.LifecycleSubject("n", uid, "ContainerDied"), ID: id, Data: []byte(data)}); err != nil {
		t.Fatal(err)
	}
}

func TestListLifecycle(t *testing.T) {
	stream, err := bus.OpenStream(t.Context(), bustest.New(t).Connect(bus.ServicePleg, "n"), bus.Lifecycle)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, stream, "u1", "default", "a", "1")
	publish(t, stream, "u2", "default", "b", "2")
	publish(t, stream, "u3", "kube", "a", "3")
	publish(t, stream, "u1", "default", "a", "4")
	l := api.NewLifecycle(func() api.Reader { return stream }, slog.New(slog.DiscardHandler))
	for _, test := range []struct {
		req  *podplanev1.ListLifecycleRequest
		want []string
	}{
		{&podplanev1.ListLifecycleRequest{}, []string{"1", "2", "3", "4"}},
		{&podplanev1.ListLifecycleRequest{Uid: "u1"}, []string{"1", "4"}},
		{&podplanev1.ListLifecycleRequest{Namespace: "kube"}, []string{"3"}},
		{&podplanev1.ListLifecycleRequest{Name: "a"}, []string{"1", "3", "4"}},
		{&podplanev1.ListLifecycleRequest{AfterSequence: 2}, []string{"3", "4"}},
		{&podplanev1.ListLifecycleRequest{Since: "1h"}, []string{"1", "2", "3", "4"}},
		{&podplanev1.ListLifecycleRequest{Since: time.Now().Add(time.Hour).Format(time.RFC3339)}, nil},
		{&podplanev1.ListLifecycleRequest{Since: time.Now().Add(time.Hour).Format(time.RFC3339), AfterSequence: 1}, nil},
	} {
		out := &sink{ctx: t.Context(), sent: make(chan *podplanev1.LifecycleEvent, 10)}
		if err := l.ListLifecycle(test.req, out); err != nil {
			t.Fatalf("%v: %v", test.req, err)
		}
		close(out.sent)
		var got []string
		for e := range out.sent {
			got = append(got, e.GetId())
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%v: got %v, want %v", test.req, got, test.want)
		}
	}
}

func TestFollow(t *testing.T) {
	stream, err := bus.OpenStream(t.Context(), bustest.New(t).Connect(bus.ServicePleg, "n"), bus.Lifecycle)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, stream, "u1", "default", "a", "1")
	l := api.NewLifecycle(func() api.Reader { return stream }, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	out := &sink{ctx: ctx, sent: make(chan *podplanev1.LifecycleEvent)}
	done := make(chan error, 1)
	go func() { done <- l.ListLifecycle(&podplanev1.ListLifecycleRequest{Follow: true}, out) }()
	if e := <-out.sent; e.GetId() != "1" || e.GetSequence() != 1 {
		t.Errorf("first event %v", e)
	}
	publish(t, stream, "u1", "default", "a", "2")
	if e := <-out.sent; e.GetId() != "2" {
		t.Errorf("followed event %v", e)
	}
	cancel()
	if err := <-done; !fault.Is(err, fault.Canceled) {
		t.Errorf("after the client went away: %v", err)
	}
}

func TestBeforeTheJournalIsOpen(t *testing.T) {
	l := api.NewLifecycle(func() api.Reader { return nil }, slog.New(slog.DiscardHandler))
	err := l.ListLifecycle(&podplanev1.ListLifecycleRequest{}, &sink{ctx: t.Context()})
	if !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) == 0 {
		t.Errorf("got %v", err)
	}
}

func FuzzParseSince(f *testing.F) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, s := range []string{"", "10m", "2026-01-02T03:04:05Z", "-5s", "yesterday", "1e9h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := api.ParseSince(s, now)
		if err != nil && !fault.Is(err, fault.BadRequest) {
			t.Fatalf("%q: kind %s", s, fault.KindOf(err))
		}
		if d, derr := time.ParseDuration(s); derr == nil && d >= 0 && (err != nil || !got.Equal(now.Add(-d))) {
			t.Fatalf("%q: %s, %v", s, got, err)
		}
	})
}
