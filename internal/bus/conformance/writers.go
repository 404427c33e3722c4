package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// running is a Writer that runs until the test ends.
type running struct {
	*bus.Writer[Text]
	stop  context.CancelFunc
	ended chan error

	mu     sync.Mutex
	stored map[string]int
	failed map[string]error
}

func writer(t *testing.T, b *bus.Bucket[Text]) *running {
	t.Helper()
	r := &running{ended: make(chan error, 1), stored: map[string]int{}, failed: map[string]error{}}
	r.Writer = bus.NewWriter(b, bus.WriterOptions[Text]{
		Parallel: 4,
		OnStored: func(key string, rev uint64) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.stored[key]++
			if rev == 0 {
				t.Errorf("%s stored at revision 0", key)
			}
		},
		OnError: func(key string, err error, _ bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.failed[key] = err
		},
	})
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	go func() { r.ended <- r.Run(ctx) }()
	t.Cleanup(stop)
	return r
}

func (r *running) count(key string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stored[key]
}

func testWriterNewestWins(t *testing.T, s Subject) {
	ctx, b := within(t), open(t, s, "newest")
	w := writer(t, b)
	const keys, values = 20, 200
	for v := range values {
		for k := range keys {
			w.Set(fmt.Sprintf("n.%d", k), text("%d", v))
		}
	}
	if err := w.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	for k := range keys {
		key := fmt.Sprintf("n.%d", k)
		if e := must(b.Get(ctx, key))(t); e.Value.GetValue() != fmt.Sprint(values-1) {
			t.Fatalf("%s has %v", key, e.Value)
		}
		if n := w.count(key); n == 0 || n > values {
			t.Errorf("%s was stored %d times", key, n)
		}
	}
	if n := w.Pending(); n != 0 {
		t.Fatalf("%d pending", n)
	}
}

func testWriterSkipsEqual(t *testing.T, s Subject) {
	ctx, b := within(t), open(t, s, "equal")
	rev := must(b.Put(ctx, "n.seeded", text("seed")))(t)
	w := writer(t, b)
	w.Seed(must(b.Get(ctx, "n.seeded"))(t))
	w.Set("n.seeded", text("seed"))
	w.Set("n.a", text("x"))
	if err := w.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	w.Set("n.a", text("x"))
	if err := w.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if n := w.count("n.a"); n != 1 {
		t.Fatalf("stored %d times", n)
	}
	if e := must(b.Get(ctx, "n.seeded"))(t); e.Revision != rev {
		t.Fatalf("an equal value was stored at %d after %d", e.Revision, rev)
	}
	w.Set("n.seeded", text("other"))
	if err := w.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if e := must(b.Get(ctx, "n.seeded"))(t); e.Value.GetValue() != "other" {
		t.Fatalf("got %+v", e)
	}
}

func testWriterRemove(t *testing.T, s Subject) {
	ctx, b := within(t), open(t, s, "removed")
	w := writer(t, b)
	w.Set("n.a", text("x"))
	w.Remove("n.a")
	w.Remove("n.never")
	must(b.Put(ctx, "n.old", text("from an earlier process")))(t)
	w.Remove("n.old")
	if err := w.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if l := must(b.List(ctx, ">"))(t); len(l) != 0 {
		t.Fatalf("left: %v", l)
	}
	if n := w.count("n.never"); n != 0 {
		t.Fatal("removing what is not there cost a write")
	}
	w.Set("n.a", text("x"))
	if err := w.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	must(b.Get(ctx, "n.a"))(t)
}

func testWriterGivesUp(t *testing.T, s Subject) {
	ctx := within(t)
	spec := Texts("givesup")
	spec.MaxValueBytes = 1 << 10
	b := must(bus.Open(ctx, connect(t, s, owner), spec))(t)
	w := writer(t, b)
	w.Set("n.big", wrapperspb.String(strings.Repeat("x", 2<<10)))
	w.Set("n.a", text("x"))
	if err := w.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	must(b.Get(ctx, "n.a"))(t)
	w.mu.Lock()
	wantKind(t, w.failed["n.big"], fault.TooLarge)
	w.mu.Unlock()
	w.Set("n.big", text("small"))
	if err := w.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	must(b.Get(ctx, "n.big"))(t)
}

func testWriterDrains(t *testing.T, s Subject) {
	ctx, b := within(t), open(t, s, "drains")
	w := writer(t, b)
	for i := range 100 {
		w.Set(fmt.Sprintf("n.%d", i), text("%d", i))
	}
	w.stop()
	if err := <-w.ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if l := must(b.List(ctx, ">"))(t); len(l) != 100 {
		t.Fatalf("%d stored", len(l))
	}
	wantKind(t, w.Run(ctx), fault.FailedPrecondition)
	w.Set("n.late", text("x"))
	wantKind(t, w.Flush(ctx), fault.Unavailable)
}

func testRegistration(t *testing.T, s Subject) {
	ctx := within(t)
	lists := make(chan []*podplanev1.ServiceRecord, 100)
	watcher := connect(t, s, bus.ServiceGateway)
	watching, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- watcher.WatchServices(watching, bus.ServiceSyncd, func(l []*podplanev1.ServiceRecord) { lists <- l })
	}()
	select {
	case l := <-lists:
		if len(l) != 0 {
			t.Fatalf("got %v", l)
		}
	case err := <-ended:
		t.Fatal(err)
	}
	other := must(connect(t, s, bus.ServiceVolumed).Register(ctx, &podplanev1.ServiceRecord{GrpcAddress: "127.0.0.1:1"}))(t)
	reg := must(connect(t, s, bus.ServiceSyncd).Register(ctx, &podplanev1.ServiceRecord{GrpcAddress: "127.0.0.1:2"}))(t)
	l := <-lists
	if len(l) != 1 || l[0].GetGrpcAddress() != "127.0.0.1:2" || l[0].GetService() != bus.ServiceSyncd ||
		l[0].GetNode() != "n" || l[0].GetInstance() != "i" || l[0].GetReady() || l[0].GetLastSeen() == nil {
		t.Fatalf("got %v", l)
	}
	reg.Update(func(r *podplanev1.ServiceRecord) { r.Ready = true })
	if l := <-lists; len(l) != 1 || !l[0].GetReady() {
		t.Fatalf("got %v", l)
	}
	// It outlives its time to live because it is renewed, and nobody is told of that.
	services := must(bus.Open(ctx, watcher, bus.Services))(t)
	seen := must(services.Get(ctx, bus.ServiceKey(bus.ServiceSyncd, "n", "i")))(t).Value.GetLastSeen().AsTime()
	deadline := time.NewTimer(3 * bus.RegistrationHeartbeat)
	defer deadline.Stop()
	renewed := make(chan struct{})
	renewals, stopRenewals := context.WithCancel(ctx)
	go func() {
		_ = services.Watch(renewals, bus.ServicePattern(bus.ServiceSyncd), bus.Handler[*podplanev1.ServiceRecord]{
			Apply: func(e bus.Entry[*podplanev1.ServiceRecord]) {
				if e.Value.GetLastSeen().AsTime().After(seen) {
					stopRenewals()
				}
			},
		})
		close(renewed)
	}()
	select {
	case <-renewed:
	case <-deadline.C:
		t.Fatal("the registration is not renewed")
	}
	stopRenewals()
	if len(lists) != 0 {
		t.Fatalf("told of a renewal: %v", <-lists)
	}
	if err := reg.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if l := <-lists; len(l) != 0 {
		t.Fatalf("got %v", l)
	}
	if err := other.Close(ctx); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
