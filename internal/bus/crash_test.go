package bus_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/conformance"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

type text = conformance.Text

const owner = "owner"

func value(format string, args ...any) text { return wrapperspb.String(fmt.Sprintf(format, args...)) }

// acknowledged is what the bus said that it has stored.
type acknowledged struct {
	mu     sync.Mutex
	puts   map[string]string // key to value
	events map[string]uint64 // ID to sequence
}

// load writes and publishes until ctx ends, everything again until it is acknowledged.
type load struct {
	b   *bus.Bucket[text]
	j   *bus.Stream
	ack acknowledged
	wg  sync.WaitGroup
	n   atomic.Int64
}

// progress waits until n more things are acknowledged.
func (l *load) progress(t *testing.T, ctx context.Context, n int64) {
	t.Helper()
	for goal := l.n.Load() + n; l.n.Load() < goal; {
		if ctx.Err() != nil {
			t.Fatalf("stuck after %d acknowledgements", l.n.Load())
		}
		pause(ctx, time.Millisecond)
	}
}

func (l *load) start(t *testing.T, ctx context.Context, writers int) {
	l.ack.puts, l.ack.events = map[string]string{}, map[string]uint64{}
	for w := range writers {
		l.wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				// Half of the keys are written once, so that a loss can't hide behind a later write.
				key := fmt.Sprintf("n.%d", w)
				if i%2 == 0 {
					key = fmt.Sprintf("n.%d-%d", w, i)
				}
				l.until(t, ctx, func(ctx context.Context) error {
					_, err := l.b.Put(ctx, key, value("%d", i))
					return err
				}, func() { l.ack.puts[key] = fmt.Sprint(i) })
			}
		})
	}
	l.wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			id := fmt.Sprintf("event-%d", i)
			var seq uint64
			l.until(t, ctx, func(ctx context.Context) (err error) {
				seq, _, err = l.j.Publish(ctx, bus.Message{Subject: "journal.a", ID: id, Data: []byte(id)})
				return err
			}, func() { l.ack.events[id] = seq })
		}
	})
}

// until tries until it is acknowledged; what was tried when ctx ends is tried to the end.
func (l *load) until(t *testing.T, ctx context.Context, try func(context.Context) error, acked func()) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patient)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			l.ack.mu.Lock()
			defer l.ack.mu.Unlock()
			acked()
			l.n.Add(1)
			return
		}
		if !fault.Is(err, fault.Unavailable) || ctx.Err() != nil {
			t.Errorf("not acknowledged: %v", err)
			return
		}
		pause(ctx, 5*time.Millisecond)
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// check compares what is stored with what was acknowledged.
func (l *load) check(t *testing.T, ctx context.Context) {
	t.Helper()
	list, err := l.b.List(ctx, ">")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for _, e := range list {
		have[e.Key] = e.Value.GetValue()
	}
	for k, v := range l.ack.puts {
		if have[k] != v {
			t.Errorf("%s is %q, acknowledged was %q", k, have[k], v)
		}
	}
	stored := map[string]uint64{}
	err = l.j.Read(ctx, bus.ReadFrom{}, func(_ context.Context, m bus.Message) error {
		if first, twice := stored[m.ID]; twice {
			t.Errorf("%s is stored twice, at %d and %d", m.ID, first, m.Sequence)
		}
		stored[m.ID] = m.Sequence
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for id, seq := range l.ack.events {
		if stored[id] != seq {
			t.Errorf("%s is at %d, acknowledged was %d", id, stored[id], seq)
		}
	}
}

// TestServerKilled kills the server again and again below watchers, readers,
// writers and publishers: nothing acknowledged is lost, nobody sees anything
// twice that must come once, and everybody arrives at the last state.
func TestServerKilled(t *testing.T) {
	const kills, writers = 4, 4
	seed := uint64(20)
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	ctx, cancel := context.WithTimeout(t.Context(), 2*patient)
	defer cancel()
	server := startChild(t, filepath.Join(t.TempDir(), "store"))
	tcp := overTCP{server.url}
	c := tcp.Connect(t, bus.Config{Service: owner, Instance: "1"})
	b, err := bus.Open(ctx, c, conformance.Texts("killed"))
	if err != nil {
		t.Fatal(err)
	}
	j, err := bus.OpenStream(ctx, c, conformance.Journal("journal"))
	if err != nil {
		t.Fatal(err)
	}

	look := lookOn(t, ctx, tcp)
	l := &load{b: b, j: j}
	loading, stop := context.WithCancel(ctx)
	l.start(t, loading, writers)
	w := bus.NewWriter(b, bus.WriterOptions[text]{})
	writing, stopWriter := context.WithCancel(ctx)
	var writer sync.WaitGroup
	writer.Go(func() { _ = w.Run(writing) })
	for i := range kills {
		l.progress(t, ctx, int64(50+random.IntN(200)))
		w.Set("n.writer", value("%d", i))
		server.kill(t)
		w.Set("n.writer", value("while away %d", i))
		t.Logf("ready %v after kill %d", server.start(t), i)
	}
	l.progress(t, ctx, 50)
	stop()
	l.wg.Wait()
	if err := w.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	stopWriter()
	writer.Wait()
	l.ack.puts["n.writer"] = fmt.Sprintf("while away %d", kills-1)
	l.check(t, ctx)
	look.arrive(t, ctx, &l.ack)
	t.Logf("%d records and %d events acknowledged", len(l.ack.puts), len(l.ack.events))
}

// onlooker watches and reads over all interruptions.
type onlooker struct {
	mu     sync.Mutex
	values map[string]string
	events map[string]int
	order  error
	change chan struct{}
	wg     sync.WaitGroup
}

func lookOn(t *testing.T, ctx context.Context, tcp overTCP) *onlooker {
	t.Helper()
	o := &onlooker{values: map[string]string{}, events: map[string]int{}, change: make(chan struct{}, 1)}
	c := tcp.Connect(t, bus.Config{Service: "onlooker"})
	b, err := bus.Open(ctx, c, conformance.Texts("killed"))
	if err != nil {
		t.Fatal(err)
	}
	j, err := bus.OpenStream(ctx, c, conformance.Journal("journal"))
	if err != nil {
		t.Fatal(err)
	}
	looking, stop := context.WithCancel(ctx)
	revs := map[string]uint64{}
	o.wg.Go(func() {
		err := b.Watch(looking, ">", bus.Handler[text]{Apply: func(e bus.Entry[text]) {
			o.mu.Lock()
			defer o.mu.Unlock()
			if e.Deleted || e.Revision <= revs[e.Key] {
				o.order = errors.Join(o.order, fmt.Errorf("%s: %+v after revision %d", e.Key, e, revs[e.Key]))
			}
			revs[e.Key], o.values[e.Key] = e.Revision, e.Value.GetValue()
			o.changed()
		}})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	var last uint64
	o.wg.Go(func() {
		err := j.Read(looking, bus.ReadFrom{Follow: true}, func(_ context.Context, m bus.Message) error {
			o.mu.Lock()
			defer o.mu.Unlock()
			if m.Sequence != last+1 {
				o.order = errors.Join(o.order, fmt.Errorf("event %d after %d", m.Sequence, last))
			}
			last = m.Sequence
			o.events[m.ID]++
			o.changed()
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Cleanup(o.wg.Wait)
	t.Cleanup(stop)
	return o
}

func (o *onlooker) changed() {
	select {
	case o.change <- struct{}{}:
	default:
	}
}

// arrive waits until the onlooker has seen everything that was acknowledged.
func (o *onlooker) arrive(t *testing.T, ctx context.Context, ack *acknowledged) {
	t.Helper()
	for {
		left := o.missing(ack)
		if left == "" {
			break
		}
		select {
		case <-o.change:
		case <-ctx.Done():
			t.Fatal(left)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.order != nil {
		t.Error(o.order)
	}
	for id, n := range o.events {
		if n != 1 {
			t.Errorf("%s came %d times", id, n)
		}
	}
}

func (o *onlooker) missing(ack *acknowledged) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	for k, v := range ack.puts {
		if o.values[k] != v {
			return fmt.Sprintf("%s was seen as %q, is %q", k, o.values[k], v)
		}
	}
	for id := range ack.events {
		if o.events[id] == 0 {
			return id + " was not seen"
		}
	}
	return ""
}

// TestServerComesBackEmpty replaces the server by one with an empty directory:
// owners create again what they own, writers store again what they last stored,
// watchers learn what vanished, and registrations return.
func TestServerComesBackEmpty(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	dir := t.TempDir()
	server := startChild(t, filepath.Join(dir, "first"))
	tcp := overTCP{server.url}
	c := tcp.Connect(t, bus.Config{Service: owner})
	b, err := bus.Open(ctx, c, conformance.Texts("killed"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(ctx, "n.put", value("lost")); err != nil {
		t.Fatal(err)
	}
	w := bus.NewWriter(b, bus.WriterOptions[text]{})
	var wg sync.WaitGroup
	running, stop := context.WithCancel(ctx)
	defer wg.Wait()
	defer stop()
	wg.Go(func() { _ = w.Run(running) })
	w.Set("n.written", value("kept"))
	if err := w.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	entries, synced := make(chan bus.Entry[text], 10), make(chan struct{})
	wg.Go(func() {
		_ = b.Watch(running, ">", bus.Handler[text]{Apply: func(e bus.Entry[text]) { entries <- e }, Synced: func() { close(synced) }})
	})
	<-synced
	for range 2 {
		<-entries
	}
	services := make(chan int, 10)
	gateway := tcp.Connect(t, bus.Config{Service: bus.ServiceGateway, Node: "n", Instance: "g"})
	reg, err := gateway.Register(ctx, &podplanev1.ServiceRecord{})
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() {
		_ = gateway.WatchServices(running, "", func(l []*podplanev1.ServiceRecord) { services <- len(l) })
	})
	if n := <-services; n != 1 {
		t.Fatalf("%d services", n)
	}

	server.kill(t)
	server.store = filepath.Join(dir, "second")
	server.start(t)

	vanished, returned := false, false
	for !vanished || !returned {
		select {
		case e := <-entries:
			switch {
			case e.Key == "n.put" && e.Deleted && e.Revision == 0:
				vanished = true
			case e.Key == "n.written" && e.Value.GetValue() == "kept":
				returned = true
			case e.Key == "n.written" && e.Deleted:
			default:
				t.Fatalf("got %+v", e)
			}
		case <-ctx.Done():
			t.Fatalf("vanished %v, returned %v", vanished, returned)
		}
	}
	r, err := bus.Open(ctx, gateway, bus.Services)
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := r.Get(ctx, bus.ServiceKey(bus.ServiceGateway, "n", "g")); err == nil {
			break
		} else if ctx.Err() != nil {
			t.Fatal(err)
		}
		pause(ctx, 10*time.Millisecond)
	}
	if len(services) != 0 {
		t.Fatal("a running service was reported as gone")
	}
	if err := reg.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestServerAway has calls fail at once, with the reason, and a first connect that waits.
func TestServerAway(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	server := startChild(t, filepath.Join(t.TempDir(), "store"))
	c := overTCP{server.url}.Connect(t, bus.Config{Service: owner})
	b, err := bus.Open(ctx, c, conformance.Texts("away"))
	if err != nil {
		t.Fatal(err)
	}
	states := make(chan bool, 10)
	stop := c.OnState(func(connected bool) { states <- connected })
	defer stop()
	if !<-states {
		t.Fatal("not connected")
	}
	server.kill(t)
	if <-states {
		t.Fatal("connected to a killed server")
	}
	began := time.Now()
	for what, err := range map[string]error{
		"put":   second(b.Put(ctx, "n.a", value("x"))),
		"get":   second(b.Get(ctx, "n.a")),
		"list":  second(b.List(ctx, ">")),
		"state": c.Err(),
	} {
		if !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s while the server is away: %v", what, err)
		}
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("failing took %v", took)
	}
	if fault.RetryAfter(c.Err()) == 0 {
		t.Error("does not say when to try again")
	}
	short, cancelShort := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancelShort()
	if _, err := bus.Connect(short, bus.Config{URL: server.url}); !fault.Is(err, fault.Unavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("first connect: %v", err)
	}
	connected, url := make(chan error, 1), server.url
	go func() {
		late, err := bus.Connect(ctx, bus.Config{URL: url})
		if err == nil {
			err = late.Close(ctx)
		}
		connected <- err
	}()
	server.start(t)
	if err := <-connected; err != nil {
		t.Fatal(err)
	}
	if !<-states {
		t.Fatal("not connected again")
	}
	if _, err := b.Put(ctx, "n.a", value("x")); err != nil {
		t.Fatal(err)
	}
}

func second[T any](_ T, err error) error { return err }
