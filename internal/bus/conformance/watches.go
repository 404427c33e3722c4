package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
)

func testWatchPresentThenChanges(t *testing.T, s Subject) {
	ctx, b := within(t), open(t, s, "watch")
	empty := watch(t, b, ">")
	empty.waitSynced(t)
	put := func(key, value string) uint64 {
		t.Helper()
		rev := must(b.Put(ctx, key, text("%s", value)))(t)
		if e := empty.next(t); e.Key != key || e.Value.GetValue() != value || e.Revision != rev {
			t.Fatalf("got %+v, want %s=%s", e, key, value)
		}
		return rev
	}
	put("n.a", "a1")
	put("m.a", "elsewhere")
	put("n.b", "b1")
	last := put("n.a", "a2")
	put("n.gone", "gone")
	if err := b.Delete(ctx, "n.gone"); err != nil {
		t.Fatal(err)
	}
	if e := empty.next(t); e.Key != "n.gone" || !e.Deleted {
		t.Fatalf("got %+v", e)
	}

	w := watch(t, b, bus.NodePattern("n"))
	w.waitSynced(t)
	if len(w.entries) != 2 {
		t.Fatalf("%d entries before Synced, want 2", len(w.entries))
	}
	if e := w.next(t); e.Key != "n.b" || e.Value.GetValue() != "b1" {
		t.Fatalf("got %+v", e)
	}
	if e := w.next(t); e.Key != "n.a" || e.Value.GetValue() != "a2" || e.Revision != last {
		t.Fatalf("got %+v", e)
	}
	put("m.b", "elsewhere")
	rev := put("n.c", "c1")
	if e := w.next(t); e.Key != "n.c" || e.Value.GetValue() != "c1" || e.Revision != rev || e.Deleted {
		t.Fatalf("got %+v", e)
	}
	if err := b.Delete(ctx, "n.c"); err != nil {
		t.Fatal(err)
	}
	if e := w.next(t); e.Key != "n.c" || !e.Deleted || e.Value != nil || e.Revision <= rev {
		t.Fatalf("got %+v", e)
	}
	w.stop()
	if err := <-w.ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// testWatchOrder has eight writers write 10 000 values while watchers come and look.
func testWatchOrder(t *testing.T, s Subject) {
	const writers, keys, writes = 8, 5, 250
	ctx, b := within(t), open(t, s, "order")
	type place struct {
		rev uint64
		n   int
	}
	watchOrder := func(ctx context.Context) error {
		at, done, top := map[string]place{}, 0, uint64(0)
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		var wrong error
		err := b.Watch(ctx, ">", bus.Handler[Text]{Apply: func(e bus.Entry[Text]) {
			var n int
			fmt.Sscan(e.Value.GetValue(), &n) //nolint:errcheck // a wrong n is found below
			if p := at[e.Key]; e.Revision <= p.rev || n <= p.n || e.Revision <= top {
				wrong = fmt.Errorf("%s: revision %d, value %d after %+v and %d", e.Key, e.Revision, n, p, top)
				stop()
			}
			at[e.Key], top = place{e.Revision, n}, e.Revision
			if n == writes {
				if done++; done == writers*keys {
					stop()
				}
			}
		}})
		if wrong != nil {
			return wrong
		}
		if done != writers*keys {
			return fmt.Errorf("%d of %d keys reached their last value: %w", done, writers*keys, err)
		}
		return nil
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if err := watchOrder(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	for w := range writers {
		wg.Go(func() {
			for n := 1; n <= writes; n++ {
				for k := range keys {
					if _, err := b.Put(ctx, fmt.Sprintf("n.%d-%d", w, k), text("%d", n)); err != nil {
						t.Error(err)
						return
					}
				}
				if w == 0 && n == writes/2 {
					wg.Go(func() { // one that comes in the middle
						if err := watchOrder(ctx); err != nil {
							t.Error(err)
						}
					})
				}
			}
		})
	}
	wg.Wait()
}

func testWatchLargeValues(t *testing.T, s Subject) {
	ctx, b := within(t), open(t, s, "heavy")
	const n = 6
	for i := range n {
		must(b.Put(ctx, fmt.Sprintf("n.%d", i), wrapperspb.String(strings.Repeat(string(rune('a'+i)), 3<<20))))(t)
	}
	w := watch(t, b, ">")
	w.waitSynced(t)
	if len(w.entries) != n {
		t.Fatalf("%d entries", len(w.entries))
	}
	for i := range n {
		if v := w.next(t).Value.GetValue(); len(v) != 3<<20 || v[0] != byte('a'+i) {
			t.Fatalf("value %d has %d bytes", i, len(v))
		}
	}
	if l := must(b.List(ctx, ">"))(t); len(l) != n {
		t.Fatalf("%d listed", len(l))
	}
}

// testWatchSlowHandler holds a handler up while far more is written than a cursor asks for.
func testWatchSlowHandler(t *testing.T, s Subject) {
	ctx, b := within(t), open(t, s, "slow")
	hold, last := make(chan struct{}), make(chan uint64, 1)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var n int
	synced := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		var before uint64
		ended <- b.Watch(watching, ">", bus.Handler[Text]{
			Synced: func() { close(synced) },
			Apply: func(e bus.Entry[Text]) {
				<-hold
				if e.Revision <= before {
					t.Errorf("revision %d after %d", e.Revision, before)
				}
				before, n = e.Revision, n+1
				if e.Value.GetValue() == "end" {
					last <- e.Revision
				}
			},
		})
	}()
	<-synced
	for i := range 1500 {
		must(b.Put(ctx, fmt.Sprintf("n.%d", i), text("%d", i)))(t)
	}
	end := must(b.Put(ctx, "n.end", text("end")))(t)
	close(hold)
	select {
	case rev := <-last:
		if rev != end {
			t.Fatalf("revision %d, want %d", rev, end)
		}
	case <-ctx.Done():
		t.Fatal("the last value did not come")
	}
	stop()
	<-ended
	if n != 1501 {
		t.Fatalf("%d values came, want 1501", n)
	}
}

func testWatchExpiry(t *testing.T, s Subject) {
	ctx := within(t)
	spec := Texts("expiry")
	spec.TTL, spec.Memory, spec.MaxBytes = time.Second, true, 1<<20
	b := must(bus.Open(ctx, connect(t, s, owner), spec))(t)
	w := watch(t, b, ">")
	w.waitSynced(t)
	must(b.Put(ctx, "n.a", text("short")))(t)
	if e := w.next(t); e.Value.GetValue() != "short" {
		t.Fatalf("got %+v", e)
	}
	if e := w.next(t); !e.Deleted || e.Key != "n.a" {
		t.Fatalf("got %+v", e)
	}
	_, err := b.Get(ctx, "n.a")
	wantKind(t, err, fault.NotFound)
	must(b.Create(ctx, "n.a", text("again")))(t)
}

func testWatchEnds(t *testing.T, s Subject) {
	ctx := within(t)
	c := connect(t, s, owner)
	b := must(bus.Open(ctx, c, Texts("ends")))(t)
	wantKind(t, b.Watch(ctx, "a..b", bus.Handler[Text]{Apply: func(bus.Entry[Text]) {}}), fault.Invalid)
	w := watch(t, b, ">")
	w.waitSynced(t)
	if err := c.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-w.ended; !fault.Is(err, fault.Unavailable) {
		t.Fatalf("watch on a closed connection: %v", err)
	}
	_, err := b.Put(ctx, "n.a", text("x"))
	wantKind(t, err, fault.Unavailable)
	if c.Connected() || !fault.Is(c.Err(), fault.Unavailable) {
		t.Fatal("a closed connection says that it is connected")
	}
}

func testTrace(t *testing.T, s Subject) {
	ctx, b := within(t), open(t, s, "traced")
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1, 2}, SpanID: trace.SpanID{3}, TraceFlags: trace.FlagsSampled})
	traced := trace.ContextWithSpanContext(ctx, sc)
	w := watch(t, b, ">")
	w.waitSynced(t)
	must(b.Put(traced, "n.a", text("x")))(t)
	same := func(what string, got trace.SpanContext) {
		t.Helper()
		if got.TraceID() != sc.TraceID() || !got.IsSampled() || !got.IsRemote() {
			t.Errorf("%s carries %+v", what, got)
		}
	}
	e := w.next(t)
	same("watch", e.Trace)
	same("entry's context", trace.SpanContextFromContext(e.Context(ctx)))
	same("get", must(b.Get(ctx, "n.a"))(t).Trace)
	must(b.Put(ctx, "n.b", text("x")))(t)
	if e := must(b.Get(ctx, "n.b"))(t); e.Trace.IsValid() {
		t.Errorf("untraced entry carries %+v", e.Trace)
	}
	j := must(bus.OpenStream(ctx, connect(t, s, owner), Journal("tracedj")))(t)
	if _, _, err := j.Publish(traced, bus.Message{Subject: "tracedj.a", Data: []byte("x"), Header: map[string]string{"ce-type": "t"}}); err != nil {
		t.Fatal(err)
	}
	err := j.Read(ctx, bus.ReadFrom{}, func(ctx context.Context, m bus.Message) error {
		same("message", m.Trace)
		same("message's context", trace.SpanContextFromContext(m.Context(ctx)))
		if len(m.Header) != 1 || m.Header["ce-type"] != "t" || m.Writer != "owner/i" {
			t.Errorf("headers %v, writer %q", m.Header, m.Writer)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
