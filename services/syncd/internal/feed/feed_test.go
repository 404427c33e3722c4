package feed_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/shard"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/feed"
	"github.com/podplane/podplane/services/syncd/internal/plan"
	"github.com/podplane/podplane/services/syncd/internal/worker"
)

const node = "node.example"

// workers writes down what it is told.
type workers struct {
	mu      sync.Mutex
	told    []string
	changed chan struct{}
}

func (w *workers) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, fmt.Sprintf(format, args...))
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *workers) VolumesChanged(uid string, rec *podplanev1.VolumesRecord) {
	w.note("volumes %s %s", uid, rec.GetPhase())
}

func (w *workers) ProbeChanged(uid string, key plan.ProbeKey, v *plan.Verdict) {
	w.note("probe %s %v %+v", uid, key, v)
}

func (w *workers) EvictionChanged(uid string, e *plan.Eviction) { w.note("eviction %s %+v", uid, e) }
func (w *workers) Hint(uid string, h worker.Hint)               { w.note("hint %s %+v", uid, h) }
func (w *workers) RuntimeBack()                                 { w.note("runtime back") }

// lacks says whether it was not told this yet.
func (w *workers) lacks(what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.Contains(w.told, what)
}

// wait waits until it was told all of these, in any order.
func (w *workers) wait(t *testing.T, want ...string) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		w.mu.Lock()
		left := slices.DeleteFunc(slices.Clone(want), func(s string) bool { return slices.Contains(w.told, s) })
		told := slices.Clone(w.told)
		w.mu.Unlock()
		if len(left) == 0 {
			return
		}
		select {
		case <-w.changed:
		case <-limit:
			t.Fatalf("not told: %q\ntold: %q", left, told)
		}
	}
}

func put[T proto.Message](t *testing.T, conn *bus.Conn, spec bus.BucketSpec[T], key string, v T) *bus.Bucket[T] {
	t.Helper()
	b, err := bus.Open(t.Context(), conn, spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(t.Context(), key, v); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestNews(t *testing.T) {
	b := bustest.New(t)
	other := b.Connect("", node)
	w := &workers{changed: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- feed.Run(ctx, b.Connect(bus.ServiceSyncd, node), node, w, slog.New(slog.DiscardHandler))
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	volumes := put(t, other, bus.Volumes, bus.PodKey(node, "u1"), &podplanev1.VolumesRecord{Phase: podplanev1.VolumePhase_VOLUME_PHASE_READY})
	w.wait(t, "volumes u1 VOLUME_PHASE_READY")
	if err := volumes.Delete(t.Context(), bus.PodKey(node, "u1")); err != nil {
		t.Fatal(err)
	}
	put(t, other, bus.Volumes, bus.PodKey("elsewhere", "u9"), &podplanev1.VolumesRecord{})
	put(t, other, bus.Probes, bus.ProbeKey(node, "u1", "c", "liveness"), &podplanev1.ProbeRecord{ContainerId: "id", Result: podplanev1.ProbeResult_PROBE_RESULT_FAILURE})
	put(t, other, bus.Evictions, bus.PodKey(node, "u1"), &podplanev1.EvictionRecord{Reason: "Evicted", Message: "m", GracePeriodSeconds: 3})
	conditions := put(t, other, bus.Conditions, bus.ConditionKey(node, bus.ConditionRuntimeReady), &podplanev1.ConditionRecord{Status: "False"})
	w.wait(t, "volumes u1 VOLUME_PHASE_UNSPECIFIED", "probe u1 {c 1} &{ContainerID:id Success:false Failure:true Output: InARow:0 At:0001-01-01 00:00:00 +0000 UTC Trace:}",
		"eviction u1 &{Reason:Evicted Message:m Grace:3s OrderedAt:0001-01-01 00:00:00 +0000 UTC Trace:}")
	// A watcher that begins late only sees what a key is last, so the runtime goes and comes until that is told.
	for w.lacks("runtime back") {
		for _, status := range []string{"False", "True"} {
			if _, err := conditions.Put(t.Context(), bus.ConditionKey(node, bus.ConditionRuntimeReady), &podplanev1.ConditionRecord{Status: status}); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-w.changed:
		case <-time.After(100 * time.Millisecond):
		}
	}

	stream, err := bus.OpenStream(t.Context(), other, bus.Lifecycle)
	if err != nil {
		t.Fatal(err)
	}
	publish := func(e *podplanev1.LifecycleEvent, kind string) {
		t.Helper()
		data, err := protojson.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := stream.Publish(t.Context(), bus.Message{Subject: bus.LifecycleSubject(node, "u1", kind), Data: data}); err != nil {
			t.Fatal(err)
		}
	}
	died := &podplanev1.LifecycleEvent{Uid: "u1", Type: podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_DIED, Container: "c", ContainerId: "id", SandboxId: "s"}
	stopped := &podplanev1.LifecycleEvent{Uid: "u1", Type: podplanev1.LifecycleType_LIFECYCLE_TYPE_SANDBOX_STOPPED, SandboxId: "s"}
	if _, _, err := stream.Publish(t.Context(), bus.Message{Subject: bus.LifecycleSubject(node, "u1", "X"), Data: []byte("nonsense")}); err != nil {
		t.Fatal(err)
	}
	// The reader only sees what comes after it began, so the first event is repeated until it is there.
	hinted := fmt.Sprintf("hint u1 %+v", worker.Hint{Type: worker.HintContainerDied, ID: "id", Container: "c"})
	for w.lacks(hinted) {
		publish(died, "ContainerDied")
		select {
		case <-w.changed:
		case <-time.After(100 * time.Millisecond):
		}
	}
	publish(stopped, "PodSandboxStopped")
	w.wait(t, fmt.Sprintf("hint u1 %+v", worker.Hint{Type: worker.HintSandboxStopped, ID: "s"}))
	if !w.lacks("volumes u9 VOLUME_PHASE_UNSPECIFIED") {
		t.Error("told of another node's pod")
	}
}

// echo remembers the revisions that it was told.
type echo struct {
	mu  sync.Mutex
	got map[string]uint64
}

func (e *echo) ApplyStatus(rec *podplanev1.StatusRecord, rev uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.got[rec.GetUid()] = rev
}

func TestStatusIsStored(t *testing.T) {
	b := bustest.New(t)
	bucket, err := bus.Open(t.Context(), b.Connect(bus.ServiceSyncd, node), bus.Status)
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{got: make(map[string]uint64)}
	s := feed.NewStatus(bucket, node, e, slog.New(slog.DiscardHandler))
	for _, uid := range []string{"u1", "u2"} {
		if err := s.Take(t.Context(), shard.Of(uid), func() bool { return true }); err != nil {
			t.Fatal(err)
		}
	}
	lost := "lost"
	for i := 0; shard.Of(lost) == shard.Of("u1") || shard.Of(lost) == shard.Of("u2"); i++ {
		lost = fmt.Sprintf("lost-%d", i)
	}
	s.Set(&podplanev1.StatusRecord{Uid: lost}) // of a shard that is not held
	s.Set(&podplanev1.StatusRecord{Uid: "u1", SandboxId: "old"})
	s.Set(&podplanev1.StatusRecord{Uid: "u1", SandboxId: "new"})
	s.Set(&podplanev1.StatusRecord{Uid: "u2"})
	s.Remove("u2")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil { // stores what is left
		t.Fatal(err)
	}
	got, err := bucket.Get(t.Context(), bus.PodKey(node, "u1"))
	if err != nil || got.Value.GetSandboxId() != "new" {
		t.Errorf("stored %v, %v", got.Value, err)
	}
	if e.got["u1"] != got.Revision {
		t.Errorf("echoed revision %d, stored %d", e.got["u1"], got.Revision)
	}
	if left, err := bucket.List(t.Context(), bus.NodePattern(node)); err != nil || len(left) != 1 {
		t.Errorf("%d records, %v", len(left), err)
	}
}
