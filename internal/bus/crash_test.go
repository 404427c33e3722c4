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

	moved chan struct{} // n grew
}

// progress waits until n more things are acknowledged.
func (l *load) progress(t *testing.T, ctx context.Context, n int64) {
	t.Helper()
	for goal := l.n.Load() + n; l.n.Load() < goal; {
		select {
		case <-l.moved:
		case <-ctx.Done():
			t.Fatalf("stuck after %d acknowledgements", l.n.Load())
		}
	}
}

func (l *load) start(t *testing.T, ctx context.Context, writers int) {
	l.moved = make(chan struct{}, 1)
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
			select {
			case l.moved <- struct{}{}:
			default:
			}
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
