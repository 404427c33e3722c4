package bus_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/conformance"
	"github.com/podplane/podplane/internal/bus/embedded"
)

func benchBucket(b *testing.B, o embedded.Options) *bus.Bucket[text] {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), patient)
	defer cancel()
	s, err := embedded.Start(ctx, o)
	if err != nil {
		b.Fatal(err)
	}
	c, err := bus.Connect(ctx, bus.Config{URL: s.ClientURL(), Service: owner})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			b.Error(err)
		}
		if err := s.Shutdown(ctx); err != nil {
			b.Error(err)
		}
	})
	bucket, err := bus.Open(ctx, c, conformance.Texts("bench"))
	if err != nil {
		b.Fatal(err)
	}
	return bucket
}

func each(b *testing.B, f func(*testing.B, *bus.Bucket[text])) {
	b.Run("Encrypted", func(b *testing.B) {
		f(b, benchBucket(b, embedded.Options{StoreDir: b.TempDir(), KeyFile: filepath.Join(b.TempDir(), "key")}))
	})
	b.Run("SyncAlways", func(b *testing.B) { f(b, benchBucket(b, embedded.Options{StoreDir: b.TempDir()})) })
	b.Run("SyncPeriodic", func(b *testing.B) {
		f(b, benchBucket(b, embedded.Options{StoreDir: b.TempDir(), SyncPeriodic: true}))
	})
	b.Run("InMemory", func(b *testing.B) { f(b, benchBucket(b, embedded.Options{InMemory: true})) })
}

// BenchmarkPut stores 4 KiB records.
func BenchmarkPut(b *testing.B) {
	each(b, func(b *testing.B, bucket *bus.Bucket[text]) {
		v := wrapperspb.String(strings.Repeat("x", 4<<10))
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if _, err := bucket.Put(b.Context(), fmt.Sprintf("n.%d", i%100), v); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkWatch measures from the call of Put until a watcher has the record.
func BenchmarkWatch(b *testing.B) {
	each(b, func(b *testing.B, bucket *bus.Bucket[text]) {
		ctx, stop := context.WithCancel(b.Context())
		seen, synced, ended := make(chan uint64, 1), make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			_ = bucket.Watch(ctx, ">", bus.Handler[text]{
				Apply: func(e bus.Entry[text]) { seen <- e.Revision }, Synced: func() { close(synced) },
			})
		}()
		<-synced
		v := wrapperspb.String(strings.Repeat("x", 4<<10))
		for i := 0; b.Loop(); i++ {
			if _, err := bucket.Put(ctx, fmt.Sprintf("n.%d", i%100), v); err != nil {
				b.Fatal(err)
			}
			select {
			case <-seen:
			case <-time.After(patient):
				b.Fatal("nothing came")
			}
		}
		stop()
		<-ended
	})
}

// BenchmarkList lists 110 records of 4 KiB.
func BenchmarkList(b *testing.B) {
	each(b, func(b *testing.B, bucket *bus.Bucket[text]) {
		v := wrapperspb.String(strings.Repeat("x", 4<<10))
		for i := range 110 {
			if _, err := bucket.Put(b.Context(), fmt.Sprintf("n.%d", i), v); err != nil {
				b.Fatal(err)
			}
		}
		for b.Loop() {
			if l, err := bucket.List(b.Context(), ">"); err != nil || len(l) != 110 {
				b.Fatal(len(l), err)
			}
		}
	})
}
