package bus_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/fault"
)

type text = *wrapperspb.StringValue

var texts = bus.BucketSpec[text]{
	Name: "texts", Owner: "owner", UIDToken: 1, MaxBytes: 64 << 20, MaxValueBytes: 1 << 20,
	New: func() text { return new(wrapperspb.StringValue) },
}

func TestSmoke(t *testing.T) {
	c := bustest.New(t).Connect("owner", "n")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	b, err := bus.Open(ctx, c, texts)
	if err != nil {
		t.Fatal(err)
	}
	rev, err := b.Create(ctx, "n.a", wrapperspb.String("1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Create(ctx, "n.a", wrapperspb.String("1")); !fault.Is(err, fault.AlreadyExists) {
		t.Fatal(err)
	}
	if _, err := b.Update(ctx, "n.a", wrapperspb.String("2"), rev+7); !fault.Is(err, fault.Conflict) {
		t.Fatal(err)
	}
	if _, err := b.Update(ctx, "n.a", wrapperspb.String("2"), rev); err != nil {
		t.Fatal(err)
	}
	e, err := b.Get(ctx, "n.a")
	if err != nil || e.Value.GetValue() != "2" {
		t.Fatal(e, err)
	}
	seen := make(chan bus.Entry[text], 10)
	synced := make(chan struct{})
	go b.Watch(ctx, ">", bus.Handler[text]{Apply: func(e bus.Entry[text]) { seen <- e }, Synced: func() { close(synced) }})
	<-synced
	if err := b.Delete(ctx, "n.a"); err != nil {
		t.Fatal(err)
	}
	if e := <-seen; e.Value.GetValue() != "2" {
		t.Fatal(e)
	}
	if e := <-seen; !e.Deleted {
		t.Fatal(e)
	}
	if _, err := b.Get(ctx, "n.a"); !fault.Is(err, fault.NotFound) {
		t.Fatal(err)
	}
	if l, err := b.List(ctx, "n.>"); err != nil || len(l) != 0 {
		t.Fatal(l, err)
	}
	if _, err := b.Create(ctx, "n.a", wrapperspb.String("3")); err != nil {
		t.Fatal(err)
	}
}
