package bus_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/bus/conformance"
)

// observe watches everything, from after the present state was applied.
func observe(t *testing.T, ctx context.Context, b *bus.Bucket[text]) (entries chan bus.Entry[text], stop func()) {
	t.Helper()
	entries, synced, ended := make(chan bus.Entry[text], 100), make(chan struct{}), make(chan struct{})
	watching, cancel := context.WithCancel(ctx)
	go func() {
		defer close(ended)
		_ = b.Watch(watching, ">", bus.Handler[text]{Apply: func(e bus.Entry[text]) { entries <- e }, Synced: func() { close(synced) }})
	}()
	select {
	case <-synced:
	case <-ctx.Done():
		t.Fatal("not synced")
	}
	return entries, func() { cancel(); <-ended }
}

func expect(t *testing.T, ctx context.Context, entries chan bus.Entry[text], want string) {
	t.Helper()
	select {
	case e := <-entries:
		if e.Value.GetValue() != want {
			t.Fatalf("got %+v, want %q", e, want)
		}
	case <-ctx.Done():
		t.Fatalf("%q did not come", want)
	}
}

// TestRequestsExpire has a watcher at rest ask again and again.
func TestRequestsExpire(t *testing.T) {
	bus.QuickPulls(t, 200*time.Millisecond, 50*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	s := bustest.NewEmpty(t)
	b, err := bus.Open(ctx, s.Connect(owner, "n"), conformance.Texts("rest"))
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(s.Server().ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	asked, err := nc.SubscribeSync("$JS.API.CONSUMER.MSG.NEXT.KV_rest.*")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	entries, stop := observe(t, ctx, b)
	defer stop()
	var consumer string
	for i := range 4 {
		m, err := asked.NextMsgWithContext(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && m.Subject != consumer {
			t.Fatalf("asked %s after %s: the cursor was opened again", m.Subject, consumer)
		}
		consumer = m.Subject
	}
	for i := range 3 {
		if _, err := b.Put(ctx, "n.a", value("%d", i)); err != nil {
			t.Fatal(err)
		}
		expect(t, ctx, entries, fmt.Sprint(i))
	}
}

// TestConsumerDeleted takes the consumer away below a watcher, which opens
// another one, without applying anything twice.
func TestConsumerDeleted(t *testing.T) {
	bus.QuickPulls(t, 2*time.Second, 100*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	s := bustest.NewEmpty(t)
	b, err := bus.Open(ctx, s.Connect(owner, "n"), conformance.Texts("taken"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(ctx, "n.a", value("first")); err != nil {
		t.Fatal(err)
	}
	entries, stop := observe(t, ctx, b)
	defer stop()
	expect(t, ctx, entries, "first")
	nc, err := nats.Connect(s.Server().ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for i := range 3 {
		answer, err := nc.RequestWithContext(ctx, "$JS.API.CONSUMER.NAMES.KV_taken", nil)
		if err != nil {
			t.Fatal(err)
		}
		var names struct {
			Consumers []string `json:"consumers"`
		}
		if err := json.Unmarshal(answer.Data, &names); err != nil {
			t.Fatal(err)
		}
		for _, name := range names.Consumers {
			if _, err := nc.RequestWithContext(ctx, "$JS.API.CONSUMER.DELETE.KV_taken."+name, nil); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.Put(ctx, "n.a", value("%d", i)); err != nil {
			t.Fatal(err)
		}
		expect(t, ctx, entries, fmt.Sprint(i))
	}
	if len(entries) != 0 {
		t.Errorf("came twice: %+v", <-entries)
	}
}
