package bus_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

const anInstance = "test"

// newField is a field that only a newer Podplane knows.
const newField = 1999

// fromTheFuture is a record with a field that this version does not know.
func fromTheFuture(t *testing.T, name string) *podplanev1.PodRecord {
	t.Helper()
	data, err := proto.Marshal(&podplanev1.PodRecord{Schema: 2, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	data = protowire.AppendTag(data, newField, protowire.BytesType)
	data = protowire.AppendString(data, "kept")
	r := new(podplanev1.PodRecord)
	if err := proto.Unmarshal(data, r); err != nil {
		t.Fatal(err)
	}
	return r
}

func opened(t *testing.T, ctx context.Context, c *bus.Conn, spec bus.BucketSpec[*podplanev1.PodRecord]) *bus.Bucket[*podplanev1.PodRecord] {
	t.Helper()
	b, err := bus.Open(ctx, c, spec)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestOlderBesideNewer has two versions work on the same records where the older one may: it undoes nothing and loses nothing.
func TestOlderBesideNewer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	server := bustest.NewEmpty(t)
	older, newer := server.Connect(bus.ServiceSyncd, here), server.Connect(bus.ServiceSyncd, here)
	bus.Pretend(newer, 2, 1)
	before := opened(t, ctx, older, bus.Pods)
	if _, err := before.Put(ctx, "n.old", &podplanev1.PodRecord{Name: "old"}); err != nil {
		t.Fatal(err)
	}
	larger := bus.Pods
	larger.MaxBytes *= 2
	theirs := opened(t, ctx, newer, larger)
	ours := opened(t, ctx, older, bus.Pods)
	cfg, err := bus.ConfigOf(ctx, older, bus.Pods)
	if err != nil || cfg.MaxBytes != larger.MaxBytes || cfg.Metadata["podplane.io/schema"] != "2" {
		t.Errorf("the older one undid what the newer one declared: %d bytes, %v, %v", cfg.MaxBytes, cfg.Metadata, err)
	}
	if e, err := theirs.Get(ctx, "n.old"); err != nil || e.Value.GetName() != "old" {
		t.Errorf("the newer one reads %v %v", e, err)
	}
	if _, err := theirs.Put(ctx, "n.new", fromTheFuture(t, "new")); err != nil {
		t.Fatal(err)
	}
	e, err := ours.Get(ctx, "n.new")
	if err != nil {
		t.Fatal(err)
	}
	e.Value.Name = "changed"
	if _, err := ours.Update(ctx, "n.new", e.Value, e.Revision); err != nil {
		t.Fatal(err)
	}
	again, err := theirs.Get(ctx, "n.new")
	if err != nil || again.Value.GetName() != "changed" {
		t.Fatalf("%v %v", again, err)
	}
	want := fromTheFuture(t, "changed")
	if !proto.Equal(again.Value, want) {
		t.Errorf("the older one lost what it does not know: %v, want %v", again.Value, want)
	}
}

// TestNewerWithoutOlder has a version that older ones do not understand: it does not start beside them, and they do not start, or go on, beside it.
func TestNewerWithoutOlder(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	server := bustest.New(t)
	older, newer := server.Connect(bus.ServiceSyncd, here), server.Connect(bus.ServiceSyncd, here)
	bus.Pretend(newer, 3, 2)
	registration, err := older.Register(ctx, &podplanev1.ServiceRecord{Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	ours := opened(t, ctx, older, bus.Pods)
	if _, err := bus.Open(ctx, newer, bus.Pods); !fault.Is(err, fault.FailedPrecondition) || !contains(err, "syncd/"+anInstance, "version v1", "schema 3") {
		t.Errorf("the newer one starts beside the older one: %v", err)
	}
	if err := registration.Close(ctx); err != nil {
		t.Fatal(err)
	}
	// The older one hangs, say: it is not registered, and it watches.
	watched := make(chan error, 1)
	synced := make(chan struct{})
	go func() {
		watched <- ours.Watch(ctx, ">", bus.Handler[*podplanev1.PodRecord]{Apply: func(bus.Entry[*podplanev1.PodRecord]) {}, Synced: func() { close(synced) }})
	}()
	select {
	case <-synced:
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
	theirs := opened(t, ctx, newer, bus.Pods)
	if _, err := theirs.Put(ctx, "n.new", fromTheFuture(t, "new")); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-watched:
		if !fault.Is(err, fault.FailedPrecondition) || !contains(err, "schema 2 at least", "this one has schema 1") {
			t.Errorf("the older one's watch ended with %v", err)
		}
	case <-time.After(patient):
		t.Error("the older one goes on with records that it does not understand")
	}
	if _, err := ours.List(ctx, ">"); !fault.Is(err, fault.FailedPrecondition) {
		t.Errorf("the older one lists them: %v", err)
	}
	if _, err := ours.Get(ctx, "n.new"); !fault.Is(err, fault.FailedPrecondition) {
		t.Errorf("the older one gets one: %v", err)
	}
	for name, c := range map[string]*bus.Conn{"owner": server.Connect(bus.ServiceSyncd, here), "reader": server.Connect(bus.ServicePleg, here)} {
		if _, err := bus.Open(ctx, c, bus.Pods); !fault.Is(err, fault.FailedPrecondition) || !contains(err, "schema 3", "schema 2 at least") {
			t.Errorf("an older %s starts beside the newer one: %v", name, err)
		}
	}
	newest := server.Connect(bus.ServiceSyncd, here)
	bus.Pretend(newest, 4, 2)
	if b := opened(t, ctx, newest, bus.Pods); b != nil {
		if e, err := b.Get(ctx, "n.new"); err != nil || e.Value.GetName() != "new" {
			t.Errorf("the newest one reads %v %v", e, err)
		}
	}
}

// TestNewerMessages ends a reader of a stream at the first message that it would misunderstand.
func TestNewerMessages(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	server := bustest.New(t)
	older, newer := server.Connect(bus.ServicePleg, here), server.Connect(bus.ServicePleg, here)
	ours, err := bus.OpenStream(ctx, older, bus.Lifecycle)
	if err != nil {
		t.Fatal(err)
	}
	subject := bus.LifecycleSubject(here, "uid", "ContainerDied")
	if _, _, err := ours.Publish(ctx, bus.Message{Subject: subject, Data: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	bus.Pretend(newer, 2, 2)
	theirs, err := bus.OpenStream(ctx, newer, bus.Lifecycle)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := theirs.Publish(ctx, bus.Message{Subject: subject, Data: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	read := 0
	count := func(_ context.Context, m bus.Message) error {
		read++
		if len(m.Header) != 0 {
			t.Errorf("headers of the bus' own are given: %v", m.Header)
		}
		return nil
	}
	if err := ours.Read(ctx, bus.ReadFrom{Follow: true}, count); !fault.Is(err, fault.FailedPrecondition) || read != 1 {
		t.Errorf("the older one read %d messages and ended with %v", read, err)
	}
	if err := theirs.Read(ctx, bus.ReadFrom{}, count); err != nil || read != 3 {
		t.Errorf("the newer one read %d messages: %v", read-1, err)
	}
}

// contains says whether an error names all of these.
func contains(err error, parts ...string) bool {
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			return false
		}
	}
	return true
}
