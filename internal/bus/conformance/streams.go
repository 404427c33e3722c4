package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
)

func journal(t *testing.T, s Subject, name string) *bus.Stream {
	t.Helper()
	return must(bus.OpenStream(within(t), connect(t, s, owner), Journal(name)))(t)
}

func publish(t *testing.T, j *bus.Stream, subject, data string) uint64 {
	t.Helper()
	seq, _, err := j.Publish(within(t), bus.Message{Subject: subject, Data: []byte(data)})
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

func testPublishOnce(t *testing.T, s Subject) {
	ctx, j := within(t), journal(t, s, "once")
	m := bus.Message{Subject: "once.a", ID: "event-1", Data: []byte("x")}
	first, dup, err := j.Publish(ctx, m)
	if err != nil || dup {
		t.Fatal(dup, err)
	}
	again, dup, err := j.Publish(ctx, m)
	if err != nil || !dup || again != first {
		t.Fatalf("sequence %d after %d, duplicate %v, %v", again, first, dup, err)
	}
	m.ID = "event-2"
	if seq, dup, err := j.Publish(ctx, m); err != nil || dup || seq <= first {
		t.Fatal(seq, dup, err)
	}
	info, err := j.Info(ctx)
	if err != nil || info.Messages != 2 || info.LastSequence-info.FirstSequence != 1 || info.Bytes == 0 || info.LastTime.Before(info.FirstTime) {
		t.Fatalf("%+v %v", info, err)
	}
	m.Data = make([]byte, 2<<20)
	_, _, err = j.Publish(ctx, m)
	wantKind(t, err, fault.TooLarge)
	_, _, err = j.Publish(ctx, bus.Message{Subject: "nobody.stores.this"})
	wantKind(t, err, fault.Unavailable)
}

func read(t *testing.T, j *bus.Stream, from bus.ReadFrom) string {
	t.Helper()
	var got []string
	var before uint64
	err := j.Read(within(t), from, func(_ context.Context, m bus.Message) error {
		if m.Sequence <= before {
			t.Errorf("sequence %d after %d", m.Sequence, before)
		}
		before = m.Sequence
		got = append(got, string(m.Data))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(got, " ")
}

func testRead(t *testing.T, s Subject) {
	j := journal(t, s, "read")
	if got := read(t, j, bus.ReadFrom{}); got != "" {
		t.Fatalf("an empty stream has %q", got)
	}
	publish(t, j, "read.a.x", "1")
	second := publish(t, j, "read.b.x", "2")
	info := must(j.Info(within(t)))(t)
	publish(t, j, "read.a.y", "3")
	for _, c := range []struct {
		from bus.ReadFrom
		want string
	}{
		{bus.ReadFrom{}, "1 2 3"},
		{bus.ReadFrom{Filter: "read.a.>"}, "1 3"},
		{bus.ReadFrom{Filter: "read.c.>"}, ""},
		{bus.ReadFrom{Sequence: second}, "2 3"},
		{bus.ReadFrom{Sequence: second, Filter: "read.a.>"}, "3"},
		{bus.ReadFrom{Sequence: second + 100}, ""},
		{bus.ReadFrom{Since: info.LastTime}, "2 3"},
		{bus.ReadFrom{Since: time.Now().Add(-time.Hour)}, "1 2 3"},
		{bus.ReadFrom{Since: time.Now().Add(time.Hour)}, ""},
		{bus.ReadFrom{New: true}, ""},
	} {
		if got := read(t, j, c.from); got != c.want {
			t.Errorf("read from %+v: %q, want %q", c.from, got, c.want)
		}
	}
	enough := errors.New("enough")
	n := 0
	err := j.Read(within(t), bus.ReadFrom{}, func(context.Context, bus.Message) error { n++; return enough })
	if !errors.Is(err, enough) || n != 1 {
		t.Fatalf("after %d messages: %v", n, err)
	}
	for i := range 600 { // more than a cursor asks for at once
		publish(t, j, "read.many", fmt.Sprint(i))
	}
	if got := strings.Fields(read(t, j, bus.ReadFrom{Filter: "read.many"})); len(got) != 600 || got[599] != "599" {
		t.Fatalf("%d messages", len(got))
	}
}

func testFollow(t *testing.T, s Subject) {
	j := journal(t, s, "follow")
	publish(t, j, "follow.a", "old")
	follow := func(from bus.ReadFrom) (got chan string, ended chan error) {
		got, ended = make(chan string, 100), make(chan error, 1)
		from.Follow = true
		ctx := within(t)
		go func() {
			ended <- j.Read(ctx, from, func(_ context.Context, m bus.Message) error {
				if string(m.Data) == "end" {
					return context.Canceled
				}
				got <- string(m.Data)
				return nil
			})
		}()
		return got, ended
	}
	all, allEnded := follow(bus.ReadFrom{})
	if v := <-all; v != "old" {
		t.Fatal(v)
	}
	publish(t, j, "follow.a", "live")
	if v := <-all; v != "live" {
		t.Fatal(v)
	}
	publish(t, j, "follow.a", "end")
	if err := <-allEnded; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}

	// A time that has not come yet leaves out what is stored before it.
	since := time.Now().Add(200 * time.Millisecond)
	later, laterEnded := follow(bus.ReadFrom{Since: since})
	late := 0
	var stored time.Time
	for ; stored.Before(since); late++ {
		publish(t, j, "follow.a", fmt.Sprint(late))
		stored = must(j.Info(within(t)))(t).LastTime
	}
	select {
	case v := <-later:
		if v != fmt.Sprint(late-1) || late < 2 {
			t.Fatalf("message %s of %d came first", v, late)
		}
	case err := <-laterEnded:
		t.Fatal(err)
	}
	publish(t, j, "follow.a", "end")
	if err := <-laterEnded; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func testStreamBounds(t *testing.T, s Subject) {
	ctx := within(t)
	spec := Journal("bounds")
	spec.MaxMsgs = 10
	j := must(bus.OpenStream(ctx, connect(t, s, owner), spec))(t)
	for i := range 25 {
		publish(t, j, "bounds.a", fmt.Sprint(i))
	}
	if got := read(t, j, bus.ReadFrom{}); got != "15 16 17 18 19 20 21 22 23 24" {
		t.Fatalf("kept %q", got)
	}
	if got := read(t, j, bus.ReadFrom{Sequence: 1}); !strings.HasPrefix(got, "15 ") {
		t.Fatalf("from a dropped sequence: %q", got)
	}
	// The owner's configuration overrides the declaration.
	c := s.Connect(t, bus.Config{Service: owner, StreamLimits: map[string]bus.StreamLimits{"bounds": {MaxBytes: 1 << 10}}})
	j = must(bus.OpenStream(ctx, c, spec))(t)
	for range 10 {
		publish(t, j, "bounds.a", strings.Repeat("x", 300))
	}
	if info := must(j.Info(ctx))(t); info.Bytes > 1<<10 || info.Messages == 0 {
		t.Fatalf("%+v", info)
	}
}
