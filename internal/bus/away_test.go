package bus_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/bus/conformance"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

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

// TestServerGoesBack restores an older copy of the server's directory: watchers
// go back with it instead of keeping what no longer is.
func TestServerGoesBack(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	dir := t.TempDir()
	server := startChild(t, filepath.Join(dir, "new"))
	c := overTCP{server.url}.Connect(t, bus.Config{Service: owner})
	b, err := bus.Open(ctx, c, conformance.Texts("back"))
	if err != nil {
		t.Fatal(err)
	}
	put := func(key, v string) {
		t.Helper()
		for {
			_, err := b.Put(ctx, key, value("%s", v))
			if err == nil {
				return
			}
			if !fault.Is(err, fault.Unavailable) || ctx.Err() != nil {
				t.Fatal(err)
			}
			pause(ctx, 5*time.Millisecond)
		}
	}
	put("n.changed", "old")
	put("n.same", "same")
	server.kill(t)
	run(t, "cp", "-a", filepath.Join(dir, "new"), filepath.Join(dir, "old"))
	server.start(t)
	put("n.changed", "new")
	put("n.added", "new")

	entries := make(chan bus.Entry[text], 10)
	watching, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = b.Watch(watching, ">", bus.Handler[text]{Apply: func(e bus.Entry[text]) { entries <- e }})
	}()
	defer func() { stop(); <-ended }()
	state := map[string]string{}
	settle := func(want string) {
		t.Helper()
		for fmt.Sprint(state) != want {
			select {
			case e := <-entries:
				if e.Deleted {
					delete(state, e.Key)
				} else {
					state[e.Key] = e.Value.GetValue()
				}
			case <-ctx.Done():
				t.Fatalf("arrived at %v, want %v", state, want)
			}
		}
	}
	settle("map[n.added:new n.changed:new n.same:same]")
	server.kill(t)
	server.store = filepath.Join(dir, "old")
	server.start(t)
	settle("map[n.changed:old n.same:same]")
	put("n.changed", "newest")
	settle("map[n.changed:newest n.same:same]")
}

// TestUndecodable leaves a value out that is no record, and goes on.
func TestUndecodable(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	s := bustest.NewEmpty(t)
	b, err := bus.Open(ctx, s.Connect(owner, "n"), conformance.Texts("garbage"))
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(s.Server().ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.RequestWithContext(ctx, "$KV.garbage.n.bad", []byte{0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(ctx, "n.good", value("x")); err != nil {
		t.Fatal(err)
	}
	watching, stop := context.WithCancel(ctx)
	var keys []string
	_ = b.Watch(watching, ">", bus.Handler[text]{Apply: func(e bus.Entry[text]) { keys = append(keys, e.Key) }, Synced: stop})
	if fmt.Sprint(keys) != "[n.good]" {
		t.Errorf("applied %v", keys)
	}
	if _, err := b.Get(ctx, "n.bad"); !fault.Is(err, fault.Internal) {
		t.Errorf("get: %v", err)
	}
	w := bus.NewWriter(b, bus.WriterOptions[text]{})
	running, end := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = w.Run(running) }()
	w.Remove("n.bad")
	if err := w.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	end()
	<-ended
	if l, err := b.List(ctx, ">"); err != nil || len(l) != 1 {
		t.Errorf("left %v: %v", l, err)
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
