// Package feed carries news from the bus to the workers and the workers' status to the bus. It decides nothing.
//
// What it reads: volumes (volumed), probes (prober), evictions (evictd), the condition RuntimeReady and the stream of lifecycle events (pleg). What it
// writes: the bucket status, newest wins, kept while the bus is away and sent when it is back. Events are hints: those that happen while nobody reads
// are lost without harm. A part whose bucket does not exist yet (its owner has never run here) is waited for and holds nothing else up.
package feed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/podplane/podplane/internal/bus"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/plan"
	"github.com/podplane/podplane/services/syncd/internal/worker"
)

// Workers takes the news. A worker.Manager does.
type Workers interface {
	VolumesChanged(uid string, rec *podplanev1.VolumesRecord)
	ProbeChanged(uid string, key plan.ProbeKey, v *plan.Verdict)
	EvictionChanged(uid string, e *plan.Eviction)
	Hint(uid string, h worker.Hint)
	RuntimeBack()
}

// Run carries news to the workers until ctx ends.
func Run(ctx context.Context, conn *bus.Conn, node string, workers Workers, log *slog.Logger) error {
	g, ctx := errgroup.WithContext(ctx)
	pattern := bus.NodePattern(node)
	r := reader{workers: workers, log: log, boot: bootID()}
	g.Go(func() error { return watch(ctx, conn, bus.Volumes, pattern, r.volumes) })
	g.Go(func() error { return watch(ctx, conn, bus.Probes, pattern, r.probe) })
	g.Go(func() error { return watch(ctx, conn, bus.Evictions, pattern, r.eviction) })
	g.Go(func() error {
		return watch(ctx, conn, bus.Conditions, bus.ConditionKey(node, bus.ConditionRuntimeReady), r.condition())
	})
	g.Go(func() error { return r.lifecycle(ctx, conn, node) })
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func watch[T proto.Message](ctx context.Context, conn *bus.Conn, spec bus.BucketSpec[T], pattern string, apply func(bus.Entry[T])) error {
	b, err := bus.Open(ctx, conn, spec)
	if err != nil {
		return fmt.Errorf("open the bucket %s: %w", spec.Name, err)
	}
	return b.Watch(ctx, pattern, bus.Handler[T]{Apply: apply})
}

type reader struct {
	workers Workers
	log     *slog.Logger
	boot    string
}

// keyParts splits a key that has so many parts.
func (r reader) keyParts(key string, n int) ([]string, bool) {
	parts, err := bus.SplitKey(key)
	if err != nil || len(parts) != n {
		r.log.Warn("a record with a key of another form is ignored", slog.String("key", key))
		return nil, false
	}
	return parts, true
}

func (r reader) volumes(e bus.Entry[*podplanev1.VolumesRecord]) {
	parts, ok := r.keyParts(e.Key, 2)
	switch {
	case !ok:
	case e.Deleted || stale(e.Value, r.boot):
		r.workers.VolumesChanged(parts[1], nil)
	default:
		r.workers.VolumesChanged(parts[1], e.Value)
	}
}

var probeKinds = map[string]plan.ProbeKind{"startup": plan.Startup, "liveness": plan.Liveness, "readiness": plan.Readiness}

func (r reader) probe(e bus.Entry[*podplanev1.ProbeRecord]) {
	parts, ok := r.keyParts(e.Key, 4)
	if !ok {
		return
	}
	kind, ok := probeKinds[parts[3]]
	if !ok {
		return
	}
	key := plan.ProbeKey{Container: parts[2], Kind: kind}
	if e.Deleted {
		r.workers.ProbeChanged(parts[1], key, nil)
		return
	}
	result := e.Value.GetResult()
	r.workers.ProbeChanged(parts[1], key, &plan.Verdict{
		ContainerID: e.Value.GetContainerId(), Output: e.Value.GetOutput(),
		Success: result == podplanev1.ProbeResult_PROBE_RESULT_SUCCESS, Failure: result == podplanev1.ProbeResult_PROBE_RESULT_FAILURE,
		InARow: e.Value.GetInARow(), At: timeOf(e.Value.GetObservedAt()), Trace: e.Value.GetTrace().GetTraceparent(),
	})
}

// timeOf is the zero time where a record has none.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func (r reader) eviction(e bus.Entry[*podplanev1.EvictionRecord]) {
	parts, ok := r.keyParts(e.Key, 2)
	switch {
	case !ok:
	case e.Deleted:
		r.workers.EvictionChanged(parts[1], nil)
	default:
		r.workers.EvictionChanged(parts[1], &plan.Eviction{
			Reason: e.Value.GetReason(), Message: e.Value.GetMessage(), Grace: time.Duration(e.Value.GetGracePeriodSeconds()) * time.Second,
			OrderedAt: timeOf(e.Value.GetOrderedAt()), Trace: e.Value.GetTrace().GetTraceparent(),
		})
	}
}

// condition tells the workers when the runtime is back.
func (r reader) condition() func(bus.Entry[*podplanev1.ConditionRecord]) {
	down := false
	return func(e bus.Entry[*podplanev1.ConditionRecord]) {
		up := !e.Deleted && e.Value.GetStatus() == "True"
		if up && down {
			r.workers.RuntimeBack()
		}
		down = !up
	}
}

// lifecycle turns the events from now on into hints.
func (r reader) lifecycle(ctx context.Context, conn *bus.Conn, node string) error {
	s, err := bus.OpenStream(ctx, conn, bus.Lifecycle)
	if err != nil {
		return fmt.Errorf("open the stream of lifecycle events: %w", err)
	}
	return s.Read(ctx, bus.ReadFrom{New: true, Follow: true, Filter: bus.LifecyclePattern(node)}, func(_ context.Context, m bus.Message) error {
		e := new(podplanev1.LifecycleEvent)
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(m.Data, e); err != nil {
			r.log.Warn("a lifecycle event that can't be read is ignored", slog.String("subject", m.Subject), slog.Any("error", err))
			return nil
		}
		r.workers.Hint(e.GetUid(), hint(e))
		return nil
	})
}

func hint(e *podplanev1.LifecycleEvent) worker.Hint {
	h := worker.Hint{ID: e.GetContainerId(), Container: e.GetContainer()}
	if h.Container == "" {
		h.ID = e.GetSandboxId()
	}
	switch e.GetType() {
	case podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_CREATED:
		h.Type = worker.HintContainerCreated
	case podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_STARTED:
		h.Type = worker.HintContainerStarted
	case podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_DIED:
		h.Type = worker.HintContainerDied
	case podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_REMOVED:
		h.Type = worker.HintContainerRemoved
	case podplanev1.LifecycleType_LIFECYCLE_TYPE_SANDBOX_STARTED:
		h.Type = worker.HintSandboxStarted
	case podplanev1.LifecycleType_LIFECYCLE_TYPE_SANDBOX_STOPPED:
		h.Type = worker.HintSandboxStopped
	case podplanev1.LifecycleType_LIFECYCLE_TYPE_SANDBOX_REMOVED:
		h.Type = worker.HintSandboxRemoved
	}
	return h
}
