package feed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/shard"
	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// Echo learns of a status as soon as it is stored, before the watch tells.
type Echo interface {
	ApplyStatus(rec *podplanev1.StatusRecord, rev uint64)
}

// Status stores the workers' status records. It implements worker.StatusSink.
type Status struct {
	writer *bus.Writer[*podplanev1.StatusRecord]
	echo   Echo
	node   string

	mu   sync.Mutex
	last map[string]*podplanev1.StatusRecord // by key: what was set last
}

// NewStatus makes a sink; Run does the work.
func NewStatus(b *bus.Bucket[*podplanev1.StatusRecord], node string, echo Echo, log *slog.Logger) *Status {
	s := &Status{echo: echo, node: node, last: make(map[string]*podplanev1.StatusRecord)}
	s.writer = bus.NewWriter(b, bus.WriterOptions[*podplanev1.StatusRecord]{
		Fences:   bus.NewFences(b, ShardOf),
		OnStored: s.stored,
		OnError: func(key string, err error, retry bool) {
			log.Warn("a pod's status can't be stored", slog.String("key", key), slog.Bool("retry", retry), slog.Any("error", err))
		},
	})
	return s
}

// ShardOf gives the shard of a record's key.
func ShardOf(key string) int {
	parts, err := bus.SplitKey(key)
	if err != nil || len(parts) != 2 {
		return -1
	}
	return shard.Of(parts[1])
}

// Take raises a shard's fence.
func (s *Status) Take(ctx context.Context, n int, still func() bool) error {
	return s.writer.Take(ctx, n, still)
}

// Give lowers a shard's fence and forgets what was not stored.
func (s *Status) Give(n int) {
	s.writer.Give(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.last {
		if ShardOf(key) == n {
			delete(s.last, key)
		}
	}
}

// Flush waits until all is stored.
func (s *Status) Flush(ctx context.Context) error { return s.writer.Flush(ctx) }

// Set stores the record soon.
func (s *Status) Set(rec *podplanev1.StatusRecord) {
	key := bus.PodKey(s.node, rec.GetUid())
	s.mu.Lock()
	s.last[key] = rec
	s.mu.Unlock()
	s.writer.SetContext(telemetry.ContextWithRecord(context.Background(), rec), key, rec)
}

// Remove deletes the pod's record.
func (s *Status) Remove(uid string) {
	key := bus.PodKey(s.node, uid)
	s.mu.Lock()
	delete(s.last, key)
	s.mu.Unlock()
	s.writer.Remove(key)
}

func (s *Status) stored(key string, rev uint64) {
	s.mu.Lock()
	rec := s.last[key]
	s.mu.Unlock()
	if rec != nil {
		s.echo.ApplyStatus(rec, rev)
	}
}

// Run stores what is set until ctx ends, then what is left.
func (s *Status) Run(ctx context.Context) error {
	if err := s.writer.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("store the pods' status: %w", err)
	}
	return nil
}
