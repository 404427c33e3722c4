// Package conformance is the contract of internal/bus as tests. It runs against
// a server in the test's process and against one over TCP, with the same result.
package conformance

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
)

// Subject is a bus to test: a server without buckets and streams.
type Subject interface {
	// Connect connects to it; the connection ends with the test.
	Connect(t *testing.T, cfg bus.Config) *bus.Conn
}

// Text is the record type of the tests.
type Text = *wrapperspb.StringValue

const (
	owner   = "owner"
	patient = 30 * time.Second
)

// Texts declares a bucket of texts.
func Texts(name string) bus.BucketSpec[Text] {
	return bus.BucketSpec[Text]{
		Name: name, Owner: owner, UIDToken: 1, MaxBytes: 64 << 20, MaxValueBytes: 4 << 20,
		New: func() Text { return new(wrapperspb.StringValue) },
	}
}

// Journal declares a stream; its subjects begin with its name.
func Journal(name string) bus.StreamSpec {
	return bus.StreamSpec{
		Name: name, Owners: []string{owner}, Subjects: []string{name + ".>"},
		MaxAge: time.Hour, MaxBytes: 16 << 20, MaxMessageBytes: 1 << 20, Duplicates: time.Minute,
	}
}

// Run runs the whole contract.
func Run(t *testing.T, s Subject) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Subject)
	}{
		{"BucketKinds", testBucketKinds},
		{"BucketCreateAfterDelete", testCreateAfterDelete},
		{"BucketList", testList},
		{"BucketKeys", testKeys},
		{"BucketFull", testBucketFull},
		{"BucketTooLarge", testTooLarge},
		{"BucketUnknownFields", testUnknownFields},
		{"BucketOneCreatorWins", testOneCreatorWins},
		{"OpenWaitsForOwner", testOpenWaitsForOwner},
		{"OpenUpgrades", testOpenUpgrades},
		{"WatchPresentThenChanges", testWatchPresentThenChanges},
		{"WatchOrder", testWatchOrder},
		{"WatchLargeValues", testWatchLargeValues},
		{"WatchSlowHandler", testWatchSlowHandler},
		{"WatchExpiry", testWatchExpiry},
		{"WatchEnds", testWatchEnds},
		{"Trace", testTrace},
		{"StreamPublishOnce", testPublishOnce},
		{"StreamRead", testRead},
		{"StreamFollow", testFollow},
		{"StreamBounds", testStreamBounds},
		{"WriterNewestWins", testWriterNewestWins},
		{"WriterSkipsEqual", testWriterSkipsEqual},
		{"WriterRemove", testWriterRemove},
		{"WriterGivesUp", testWriterGivesUp},
		{"WriterDrains", testWriterDrains},
		{"Registration", testRegistration},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, s) })
	}
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	t.Cleanup(cancel)
	return ctx
}

func connect(t *testing.T, s Subject, service string) *bus.Conn {
	t.Helper()
	return s.Connect(t, bus.Config{Service: service, Node: "n", Instance: "i"})
}

func open(t *testing.T, s Subject, name string) *bus.Bucket[Text] {
	t.Helper()
	b, err := bus.Open(within(t), connect(t, s, owner), Texts(name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func text(format string, args ...any) Text { return wrapperspb.String(fmt.Sprintf(format, args...)) }

func must[V any](v V, err error) func(*testing.T) V {
	return func(t *testing.T) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func wantKind(t *testing.T, err error, k fault.Kind) {
	t.Helper()
	if !fault.Is(err, k) {
		t.Fatalf("kind %v, want %v: %v", fault.KindOf(err), k, err)
	}
}

// seen gathers what a watcher applies.
type seen struct {
	entries chan bus.Entry[Text]
	synced  chan struct{}
	ended   chan error
	stop    context.CancelFunc
}

func watch(t *testing.T, b *bus.Bucket[Text], pattern string) *seen {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	w := &seen{entries: make(chan bus.Entry[Text], 1024), synced: make(chan struct{}), ended: make(chan error, 1), stop: stop}
	go func() {
		w.ended <- b.Watch(ctx, pattern, bus.Handler[Text]{
			Apply: func(e bus.Entry[Text]) {
				select {
				case w.entries <- e:
				case <-ctx.Done():
				}
			},
			Synced: func() { close(w.synced) },
		})
	}()
	t.Cleanup(stop)
	return w
}

func (w *seen) next(t *testing.T) bus.Entry[Text] {
	t.Helper()
	select {
	case e := <-w.entries:
		return e
	case err := <-w.ended:
		t.Fatalf("watch ended: %v", err)
	case <-time.After(patient):
		t.Fatal("nothing came")
	}
	panic("unreachable")
}

func (w *seen) waitSynced(t *testing.T) {
	t.Helper()
	select {
	case <-w.synced:
	case err := <-w.ended:
		t.Fatalf("watch ended: %v", err)
	case <-time.After(patient):
		t.Fatal("not synced")
	}
}
