// Package api serves pleg's gRPC: it reads the journal for others. It decides nothing and keeps nothing; a reader that is
// slow is held up by its own stream only.
package api

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/pleg/internal/journal"
)

// Reader reads the journal: a bus.Stream.
type Reader interface {
	Read(ctx context.Context, from bus.ReadFrom, f func(context.Context, bus.Message) error) error
}

// Lifecycle implements podplanev1.LifecycleServiceServer.
type Lifecycle struct {
	podplanev1.UnimplementedLifecycleServiceServer
	journal func() Reader
	log     *slog.Logger
}

// NewLifecycle makes the server of the journal, which may be nil until the bus has been reached.
func NewLifecycle(open func() Reader, log *slog.Logger) *Lifecycle {
	return &Lifecycle{journal: open, log: log}
}

// ListLifecycle answers the events of the journal, oldest first.
func (l *Lifecycle) ListLifecycle(req *podplanev1.ListLifecycleRequest, out grpc.ServerStreamingServer[podplanev1.ListLifecycleResponse]) error {
	since, err := ParseSince(req.GetSince(), time.Now())
	if err != nil {
		return err
	}
	stream := l.journal()
	if stream == nil {
		return fault.WithRetryAfter(fault.New(fault.Unavailable, "the journal is not open yet: waiting for the bus"), time.Second)
	}
	from := bus.ReadFrom{Filter: filter(req), Follow: req.GetFollow()}
	if after := req.GetAfterSequence(); after > 0 {
		from.Sequence = after + 1
	} else {
		from.Since = since
	}
	return stream.Read(out.Context(), from, func(ctx context.Context, m bus.Message) error {
		if m.Time.Before(since) {
			return nil
		}
		e, err := journal.Decode(m)
		if err != nil {
			l.log.WarnContext(ctx, "a message of the journal can't be read", "sequence", m.Sequence, "error", err)
			return nil
		}
		if req.GetNamespace() != "" && req.GetNamespace() != e.GetNamespace() || req.GetName() != "" && req.GetName() != e.GetName() {
			return nil
		}
		return out.Send(&podplanev1.ListLifecycleResponse{Event: e})
	})
}

// filter gives the subjects that hold what is asked for. All nodes write one journal.
func filter(req *podplanev1.ListLifecycleRequest) string {
	switch node := req.GetNode(); {
	case node == "":
		return bus.LifecycleEverywhere(req.GetUid())
	case req.GetUid() != "":
		return bus.LifecyclePodPattern(node, req.GetUid())
	default:
		return bus.LifecyclePattern(node)
	}
}

// ParseSince reads an RFC 3339 time, or a duration back from now. Empty is the zero time.
func ParseSince(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return time.Time{}, fault.New(fault.BadRequest, "since: want an RFC 3339 time (2026-01-02T15:04:05Z) or a duration back from now (10m)")
	}
	return now.Add(-d), nil
}
