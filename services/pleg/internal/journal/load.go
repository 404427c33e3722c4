package journal

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/podplane/podplane/internal/bus"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/pleg/internal/diff"
)

// Record is what the journal says was published.
type Record struct {
	// Pods holds what is not known to be removed, by pod UID.
	Pods map[string]diff.Pod
	// Horizon is how far the journal reaches back. What occurred before may have been published and dropped since: it
	// must not be published again.
	Horizon time.Time
}

// Reader is what Load needs of a bus.Stream.
type Reader interface {
	Read(ctx context.Context, from bus.ReadFrom, f func(context.Context, bus.Message) error) error
	Info(ctx context.Context) (bus.StreamInfo, error)
}

// Load reads the node's events of the last maxAge and returns what they amount to.
func Load(ctx context.Context, stream Reader, node string, maxAge time.Duration, now time.Time, log *slog.Logger) (Record, error) {
	info, err := stream.Info(ctx)
	if err != nil {
		return Record{}, fmt.Errorf("load the journal: %w", err)
	}
	r := Record{Pods: make(map[string]diff.Pod), Horizon: now.Add(-maxAge)}
	if info.FirstSequence > 1 && info.Messages > 0 && info.FirstTime.After(r.Horizon) {
		r.Horizon = info.FirstTime
	}
	// Of most objects only the end counts: their messages are kept as they are and decoded when all is read.
	last := make(map[string]said)
	err = stream.Read(ctx, bus.ReadFrom{Since: now.Add(-maxAge), Filter: bus.LifecyclePattern(node)}, func(_ context.Context, m bus.Message) error {
		id := m.Header[headerSubject]
		t, ok := diff.ParseType(strings.TrimPrefix(m.Header[headerType], TypePrefix))
		if id == "" || !ok {
			log.WarnContext(ctx, "a message of the journal is not an event", "sequence", m.Sequence, "subject", m.Subject)
			return nil
		}
		s := last[id]
		if t == diff.ContainerRemoved || t == diff.SandboxRemoved {
			delete(last, id)
			return nil
		}
		s.lost = s.lost || t == diff.ContainerChanged
		s.phase, s.message = max(s.phase, phaseAfter(t)), m
		last[id] = s
		return nil
	})
	if err != nil {
		return Record{}, fmt.Errorf("load the journal: %w", err)
	}
	for id, s := range last {
		e, err := Decode(s.message)
		if err != nil {
			log.WarnContext(ctx, "a message of the journal can't be read", "sequence", s.message.Sequence, "error", err)
			continue
		}
		r.add(id, s, e)
	}
	return r, nil
}

type said struct {
	message bus.Message
	phase   diff.Phase
	lost    bool
}

func phaseAfter(t diff.Type) diff.Phase {
	switch t {
	case diff.ContainerStarted, diff.SandboxStarted:
		return diff.PhaseRunning
	case diff.ContainerDied, diff.SandboxStopped:
		return diff.PhaseExited
	case diff.ContainerRemoved, diff.SandboxRemoved:
		return diff.PhaseRemoved
	}
	return diff.PhaseCreated
}

func (r *Record) add(id string, s said, e *podplanev1.LifecycleEvent) {
	p, ok := r.Pods[e.GetUid()]
	if !ok {
		p = diff.Pod{Ref: diff.Ref{UID: e.GetUid(), Namespace: e.GetNamespace(), Name: e.GetName()}, Objects: make(map[string]diff.Object)}
		r.Pods[e.GetUid()] = p
	}
	p.Objects[id] = diff.Object{
		ID: id, Name: e.GetContainer(), SandboxID: e.GetSandboxId(), Attempt: e.GetAttempt(), Phase: s.phase, Lost: s.lost,
		ExitCode: e.GetExitCode(), CreatedAt: e.GetOccurredAt().AsTime(), Traceparent: e.GetTrace().GetTraceparent(),
	}
}
