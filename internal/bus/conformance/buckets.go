package conformance

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
)

func testBucketKinds(t *testing.T, s Subject) {
	ctx, b := within(t), open(t, s, "kinds")
	_, err := b.Get(ctx, "n.a")
	wantKind(t, err, fault.NotFound)
	_, err = b.Update(ctx, "n.a", text("x"), 5)
	wantKind(t, err, fault.Conflict)

	first := must(b.Create(ctx, "n.a", text("one")))(t)
	_, err = b.Create(ctx, "n.a", text("other"))
	wantKind(t, err, fault.AlreadyExists)
	second := must(b.Update(ctx, "n.a", text("two"), first))(t)
	if second <= first {
		t.Fatalf("revision %d after %d", second, first)
	}
	_, err = b.Update(ctx, "n.a", text("stale"), first)
	wantKind(t, err, fault.Conflict)
	wantKind(t, b.DeleteRevision(ctx, "n.a", first), fault.Conflict)

	e := must(b.Get(ctx, "n.a"))(t)
	if e.Value.GetValue() != "two" || e.Revision != second || e.Key != "n.a" || e.Deleted || e.Writer != "owner/i" {
		t.Fatalf("got %+v", e)
	}
	if age := time.Since(e.Created); age < -time.Minute || age > time.Minute {
		t.Fatalf("created %v ago", age)
	}
	if third := must(b.Put(ctx, "n.a", text("three")))(t); third <= second {
		t.Fatalf("revision %d after %d", third, second)
	}
	if err := b.Delete(ctx, "n.a"); err != nil {
		t.Fatal(err)
	}
	_, err = b.Get(ctx, "n.a")
	wantKind(t, err, fault.NotFound)
	if err := b.Delete(ctx, "n.never"); err != nil {
		t.Fatalf("delete of what is not there: %v", err)
	}
}

func testCreateAfterDelete(t *testing.T, s Subject) {
	ctx, b := within(t), open(t, s, "again")
	rev := must(b.Create(ctx, "n.a", text("one")))(t)
	if err := b.DeleteRevision(ctx, "n.a", rev); err != nil {
		t.Fatal(err)
	}
	next := must(b.Create(ctx, "n.a", text("two")))(t)
	if e := must(b.Get(ctx, "n.a"))(t); e.Revision != next || e.Value.GetValue() != "two" {
		t.Fatalf("got %+v", e)
	}
}

func testList(t *testing.T, s Subject) {
	ctx, b := within(t), open(t, s, "list")
	if l := must(b.List(ctx, ">"))(t); len(l) != 0 {
		t.Fatalf("an empty bucket lists %v", l)
	}
	for _, k := range []string{"n.a", "n.b.c", "m.a", "n.gone"} {
		must(b.Put(ctx, k, text("%s", k)))(t)
	}
	must(b.Put(ctx, "n.a", text("newer")))(t)
	if err := b.Delete(ctx, "n.gone"); err != nil {
		t.Fatal(err)
	}
	for pattern, want := range map[string]string{
		">": "n.b.c m.a n.a", "n.>": "n.b.c n.a", "*.a": "m.a n.a", "n.b.*": "n.b.c", "n.a": "n.a", "x.>": "",
	} {
		var keys []string
		for _, e := range must(b.List(ctx, pattern))(t) {
			keys = append(keys, e.Key)
		}
		if got := strings.Join(keys, " "); got != want {
			t.Errorf("list %s: %q, want %q", pattern, got, want)
		}
	}
	_, err := b.List(ctx, "n..a")
	wantKind(t, err, fault.Invalid)
}

func testKeys(t *testing.T, s Subject) {
	ctx, b := within(t), open(t, s, "keys")
	for _, k := range []string{"", ".", "a.", "a.*", "a.>", "a b", "a/b", "ä", "a\r\nb"} {
		_, err := b.Put(ctx, k, text("x"))
		wantKind(t, err, fault.Invalid)
		_, err = b.Get(ctx, k)
		wantKind(t, err, fault.Invalid)
		wantKind(t, b.Delete(ctx, k), fault.Invalid)
	}
	key := bus.Key("node.example.com", "a/b c", "ä", "")
	must(b.Put(ctx, key, text("odd")))(t)
	if e := must(b.Get(ctx, key))(t); e.Value.GetValue() != "odd" {
		t.Fatalf("got %+v", e)
	}
}

func testBucketFull(t *testing.T, s Subject) {
	ctx := within(t)
	spec := Texts("full")
	spec.MaxBytes = 64 << 10
	b := must(bus.Open(ctx, connect(t, s, owner), spec))(t)
	big := strings.Repeat("x", 12<<10)
	var err error
	n := 0
	for ; err == nil && n < 100; n++ {
		_, err = b.Create(ctx, bus.PodKey("n", string(rune('a'+n))), wrapperspb.String(big))
	}
	wantKind(t, err, fault.ResourceExhausted)
	// What is stored stays, and can be deleted to make room.
	if l := must(b.List(ctx, ">"))(t); len(l) != n-1 {
		t.Fatalf("%d entries, want %d", len(l), n-1)
	}
	if err := b.Delete(ctx, "n.a"); err != nil {
		t.Fatalf("delete in a full bucket: %v", err)
	}
	must(b.Create(ctx, "n.z", wrapperspb.String(big)))(t)
}

func testTooLarge(t *testing.T, s Subject) {
	ctx := within(t)
	spec := Texts("large")
	spec.MaxValueBytes = 1 << 10
	b := must(bus.Open(ctx, connect(t, s, owner), spec))(t)
	_, err := b.Put(ctx, "n.a", wrapperspb.String(strings.Repeat("x", 1<<10)))
	wantKind(t, err, fault.TooLarge)
	must(b.Put(ctx, "n.a", wrapperspb.String(strings.Repeat("x", 1000))))(t)
}

func testUnknownFields(t *testing.T, s Subject) {
	ctx, b := within(t), open(t, s, "unknown")
	v := text("known")
	extra := protowire.AppendTag(nil, 99, protowire.BytesType)
	extra = protowire.AppendString(extra, "from a newer release")
	v.ProtoReflect().SetUnknown(extra)
	must(b.Put(ctx, "n.a", v))(t)
	e := must(b.Get(ctx, "n.a"))(t)
	if !proto.Equal(e.Value, v) {
		t.Fatalf("got %v, want %v", e.Value, v)
	}
}

func testOneCreatorWins(t *testing.T, s Subject) {
	ctx, b := within(t), open(t, s, "race")
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			_, err := b.Create(ctx, "n.a", text("%d", i))
			switch {
			case err == nil:
				won.Add(1)
			case !fault.Is(err, fault.AlreadyExists):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Fatalf("%d created it", won.Load())
	}
}

func testOpenWaitsForOwner(t *testing.T, s Subject) {
	spec := Texts("awaited")
	reader := connect(t, s, "reader")
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := bus.Open(short, reader, spec)
	wantKind(t, err, fault.Unavailable)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "bucket awaited") || !strings.Contains(err.Error(), owner) {
		t.Fatalf("does not say what it waited for: %v", err)
	}
	opened := make(chan error, 1)
	ctx := within(t)
	go func() {
		_, err := bus.Open(ctx, reader, spec)
		opened <- err
	}()
	must(bus.Open(ctx, connect(t, s, owner), spec))(t)
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
}

func testOpenUpgrades(t *testing.T, s Subject) {
	ctx := within(t)
	spec := Texts("upgraded")
	spec.MaxValueBytes = 100
	old := must(bus.Open(ctx, connect(t, s, owner), spec))(t)
	must(old.Put(ctx, "n.a", text("kept")))(t)
	spec.MaxValueBytes = 100 << 10
	b := must(bus.Open(ctx, connect(t, s, owner), spec))(t)
	must(b.Put(ctx, "n.b", wrapperspb.String(strings.Repeat("x", 50<<10))))(t)
	if e := must(b.Get(ctx, "n.a"))(t); e.Value.GetValue() != "kept" {
		t.Fatalf("got %+v", e)
	}
}
