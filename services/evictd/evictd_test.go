package evictd

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/cri/crifake"
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/evictd/internal/policy"
)

const node = "node-a"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a bus with syncd's side of it, a runtime, and a host whose memory the test decides.
type world struct {
	t      *testing.T
	bus    *bustest.Bus
	rt     *crifake.Runtime
	dir    string
	pods   *bus.Bucket[*podplanev1.PodRecord]
	status *bus.Bucket[*podplanev1.StatusRecord]
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, bus: bustest.New(t), rt: crifake.New(crifake.Options{Node: node}), dir: t.TempDir()}
	w.rt.AddImage("app")
	w.rt.SetUsage(func(c pod.Container) cri.ContainerStats {
		workingSet := uint64(len(c.PodName)) << 20
		return cri.ContainerStats{Memory: &cri.MemoryUsage{At: time.Now(), WorkingSet: &workingSet}}
	})
	syncd := w.bus.Connect(bus.ServiceSyncd, node)
	var err error
	if w.pods, err = bus.Open(t.Context(), syncd, bus.Pods); err != nil {
		t.Fatal(err)
	}
	if w.status, err = bus.Open(t.Context(), syncd, bus.Status); err != nil {
		t.Fatal(err)
	}
	w.file("proc/loadavg", "0 0 0 1/100 1\n")
	w.file("proc/sys/kernel/pid_max", "32768\n")
	w.memory("4000000")
	return w
}

func (w *world) file(name, content string) {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	// In one step, so that nobody reads half a file.
	if err := os.WriteFile(path+".new", []byte(content), 0o644); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		w.t.Fatal(err)
	}
}

// memory sets what is free, in KiB of 8 GB.
func (w *world) memory(free string) {
	w.file("proc/meminfo", "MemTotal: 8000000 kB\nMemFree: "+free+" kB\nInactive(file): 0 kB\n")
}

// pod runs a pod; a longer name uses more memory.
func (w *world) pod(uid, name string) {
	w.t.Helper()
	config := &cri.SandboxConfig{Name: name, Namespace: "default", UID: uid}
	sandbox, err := w.rt.RunSandbox(w.t.Context(), config)
	if err != nil {
		w.t.Fatal(err)
	}
	id, err := w.rt.CreateContainer(w.t.Context(), sandbox, &cri.ContainerConfig{Name: "app", Image: cri.ImageSpec{Image: "app"}}, config)
	if err == nil {
		err = w.rt.StartContainer(w.t.Context(), id)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	manifest, err := json.Marshal(corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}}})
	if err != nil {
		w.t.Fatal(err)
	}
	r := &podplanev1.PodRecord{Node: node, Uid: uid, Namespace: "default", Name: name, Source: podplanev1.Source_SOURCE_API, Pod: manifest}
	if _, err := w.pods.Put(w.t.Context(), bus.PodKey(node, uid), r); err != nil {
		w.t.Fatal(err)
	}
	w.phase(uid, podplanev1.WorkerPhase_WORKER_PHASE_SYNCING)
}

func (w *world) phase(uid string, phase podplanev1.WorkerPhase) {
	w.t.Helper()
	if _, err := w.status.Put(w.t.Context(), bus.PodKey(node, uid), &podplanev1.StatusRecord{Node: node, Uid: uid, Phase: phase}); err != nil {
		w.t.Fatal(err)
	}
}

// start runs the service until stop is called.
func (w *world) start() (stop func()) {
	w.t.Helper()
	cfg := DefaultConfig()
	cfg.Node, cfg.Instance = node, "one"
	cfg.Root, cfg.PodLogDir = filepath.Join(w.dir, "root"), filepath.Join(w.dir, "logs")
	cfg.ProcRoot, cfg.CgroupRoot = filepath.Join(w.dir, "proc"), filepath.Join(w.dir, "cgroup")
	cfg.EvictionHard = "memory.available<1Gi"
	served := make(chan struct{})
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	service := daemon.Service[Config]{
		Name: bus.ServiceEvictd, Defaults: DefaultConfig,
		Run: func(ctx context.Context, cfg Config, deps daemon.Deps) error {
			return run(ctx, cfg, deps, runtimes{w.rt, w.rt.For("")})
		},
	}
	go func() {
		done <- daemon.Run(ctx, service, cfg, daemon.Options{
			InProcess: w.bus.Server(), Log: slog.New(slog.DiscardHandler), Addresses: func(string, string) { close(served) },
		})
	}()
	select {
	case <-served:
	case err := <-done:
		w.t.Fatalf("ended before it served: %v", err)
	case <-time.After(20 * time.Second):
		w.t.Fatal("does not serve")
	}
	return func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	}
}

// await watches the node's entries of a bucket until one satisfies ok.
func await[T interface{ GetNode() string }](t *testing.T, watch func(context.Context, func(key string, v T, deleted bool)) error, what string, ok func(key string, v T, deleted bool) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	found := false
	err := watch(ctx, func(key string, v T, deleted bool) {
		if ok(key, v, deleted) {
			found = true
			cancel()
		}
	})
	if !found {
		t.Fatalf("never: %s: %v", what, err)
	}
}

func (w *world) awaitOrder(what string, ok func(key string, o *podplanev1.EvictionRecord, deleted bool) bool) {
	w.t.Helper()
	evictions, err := bus.Open(w.t.Context(), w.bus.Connect(bus.ServiceSyncd, node), bus.Evictions)
	if err != nil {
		w.t.Fatal(err)
	}
	await(w.t, func(ctx context.Context, f func(string, *podplanev1.EvictionRecord, bool)) error {
		return evictions.Watch(ctx, bus.NodePattern(node), bus.Handler[*podplanev1.EvictionRecord]{
			Apply: func(e bus.Entry[*podplanev1.EvictionRecord]) { f(e.Key, e.Value, e.Deleted) },
		})
	}, what, ok)
}

func (w *world) awaitCondition(conditionType, status string) {
	w.t.Helper()
	conditions, err := bus.Open(w.t.Context(), w.bus.Connect(bus.ServiceSyncd, node), bus.Conditions)
	if err != nil {
		w.t.Fatal(err)
	}
	await(w.t, func(ctx context.Context, f func(string, *podplanev1.ConditionRecord, bool)) error {
		return conditions.Watch(ctx, bus.NodePattern(node), bus.Handler[*podplanev1.ConditionRecord]{
			Apply: func(e bus.Entry[*podplanev1.ConditionRecord]) { f(e.Key, e.Value, e.Deleted) },
		})
	}, conditionType+"="+status, func(_ string, c *podplanev1.ConditionRecord, _ bool) bool {
		return c.GetType() == conditionType && c.GetStatus() == status
	})
}

// awaitEvent reads the stream of Events until one has the reason.
func (w *world) awaitEvent(reason string) corev1.Event {
	w.t.Helper()
	stream, err := bus.OpenStream(w.t.Context(), w.bus.Connect(bus.ServiceSyncd, node), bus.Events)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	var found corev1.Event
	enough := errors.New("found")
	err = stream.Read(ctx, bus.ReadFrom{Follow: true}, func(_ context.Context, m bus.Message) error {
		var e corev1.Event
		if err := json.Unmarshal(m.Data, &e); err != nil {
			return err
		}
		if e.Reason == reason {
			found = e
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		w.t.Fatalf("no Event %s: %v", reason, err)
	}
	return found
}

// TestEviction goes through an eviction with a replacement of evictd in the middle of it.
func TestEviction(t *testing.T) {
	w := newWorld(t)
	w.pod("u1", "small")
	w.pod("u2", "much-larger")
	stop := w.start()
	w.awaitCondition(policy.MemoryPressure, policy.False)
	w.memory("900000") // below 1 GiB; the next look is at most 10 s away
	w.awaitOrder("the larger pod is ordered to go", func(key string, o *podplanev1.EvictionRecord, deleted bool) bool {
		if !deleted && key == bus.PodKey(node, "u1") {
			t.Errorf("the smaller pod is to go: %v", o)
		}
		return !deleted && key == bus.PodKey(node, "u2") && o.GetSignal() == "memory.available" && o.GetGracePeriodSeconds() == 1
	})
	w.awaitCondition(policy.MemoryPressure, policy.True)
	w.awaitEvent("EvictionThresholdMet")
	if e := w.awaitEvent("Evicted"); e.InvolvedObject.Name != "much-larger" || e.Annotations["starved_resource"] != "memory" || e.Annotations["offending_containers"] != "app" {
		t.Errorf("event %+v", e)
	}
	stop()
	stop = w.start()
	defer func() { stop() }()
	w.memory("4000000")
	w.awaitOrder("the order is still there", func(key string, _ *podplanev1.EvictionRecord, deleted bool) bool {
		return key == bus.PodKey(node, "u2") && !deleted
	})
	w.phase("u2", podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED)
	deadline, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	evictions, err := bus.Open(t.Context(), w.bus.Connect(bus.ServiceSyncd, node), bus.Evictions)
	if err != nil {
		t.Fatal(err)
	}
	err = evictions.Watch(deadline, bus.NodePattern(node), bus.Handler[*podplanev1.EvictionRecord]{
		Apply: func(e bus.Entry[*podplanev1.EvictionRecord]) {
			if e.Deleted {
				cancel()
			}
		},
		Synced: func() {
			if _, err := evictions.Get(deadline, bus.PodKey(node, "u2")); fault.Is(err, fault.NotFound) {
				cancel()
			}
		},
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the order of an ended pod stays: %v", err)
	}
}

func TestConfig(t *testing.T) {
	cfg := DefaultConfig()
	if list := cfg.Validate(nil); len(list) != 0 {
		t.Errorf("defaults: %v", list)
	}
	cfg.EvictionHard, cfg.EvictionPressureTransition, cfg.ImageGCHigh, cfg.ImageGCLow, cfg.ImageMinAge, cfg.ImageGCPeriod = "x", -1, 101, 102, -1, 1
	cfg.PodLogDir, cfg.ProcRoot, cfg.CgroupRoot = "a", "b", "c"
	if list := cfg.Validate(nil); len(list) != 9 {
		t.Errorf("want each of the nine named: %v", list)
	}
}
