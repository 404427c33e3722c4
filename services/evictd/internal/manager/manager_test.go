package manager_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/podplane/podplane/internal/events"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/evictd/internal/feed"
	"github.com/podplane/podplane/services/evictd/internal/manager"
	"github.com/podplane/podplane/services/evictd/internal/policy"
)

const mi = 1 << 20

// node is a model of everything around the manager.
type node struct {
	mu        sync.Mutex
	start     time.Time
	available map[policy.Signal]int64
	broken    map[policy.Signal]error
	oneFS     bool
	mounted   bool // pods' volumes are not torn down
	reads     int
	pods      map[string]feed.Pod
	unsynced  bool
	collects  int
	collect   func() error
	images    int64 // bytes that removing images frees on imagefs
	removals  int
	orders    map[string]*podplanev1.EvictionRecord
	log       []string
	beats     map[string][]time.Duration
	status    map[string]string
}

func (n *node) say(format string, args ...any) {
	n.log = append(n.log, fmt.Sprintf("%s ", time.Since(n.start).Truncate(time.Second))+fmt.Sprintf(format, args...))
}

func (n *node) Read() []policy.Observation {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reads++
	var list []policy.Observation
	for _, s := range policy.Signals {
		list = append(list, policy.Observation{Signal: s, Available: n.available[s], Capacity: 10240 * mi, At: time.Now(), Err: n.broken[s]})
	}
	return list
}

func (n *node) OneFS() bool { return n.oneFS }

func (n *node) List() []feed.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []feed.Pod
	for _, p := range n.pods {
		list = append(list, p)
	}
	return list
}

func (n *node) Get(uid string) (feed.Pod, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, ok := n.pods[uid]
	return p, ok
}

func (n *node) Synced() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.unsynced
}

func (n *node) Collect(_ context.Context, pods []feed.Pod, _ bool) ([]policy.Pod, error) {
	n.mu.Lock()
	f := n.collect
	n.collects++
	n.mu.Unlock()
	var list []policy.Pod
	for _, p := range pods {
		list = append(list, p.Pod)
	}
	if f != nil {
		return list, f()
	}
	return list, nil
}

func (n *node) DeleteUnused(context.Context) (int64, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.removals++
	n.available[policy.ImagefsAvailable] += n.images
	if n.oneFS {
		n.available[policy.NodefsAvailable] += n.images
	}
	n.say("images removed")
	return n.images, nil
}

func (n *node) SetCondition(c *podplanev1.ConditionRecord) {
	n.mu.Lock()
	defer n.mu.Unlock()
	beats := n.beats[c.GetType()]
	n.beats[c.GetType()] = append(beats, time.Since(n.start))
	if n.status[c.GetType()] != c.GetStatus() {
		n.status[c.GetType()] = c.GetStatus()
		n.say("%s=%s", c.GetType(), c.GetStatus())
	}
}

func (n *node) SetOrder(_ context.Context, o *podplanev1.EvictionRecord) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.orders[o.GetUid()] = o
	n.say("evict %s", o.GetUid())
}

func (n *node) RemoveOrder(uid string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.orders, uid)
	n.say("obeyed %s", uid)
}

func (n *node) AnnotatedEvent(_ context.Context, _ map[string]string, ref events.ObjectRef, _, reason, messageFmt string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.say("%s %s: "+messageFmt, append([]any{ref.Kind, reason}, args...)...)
}

func (n *node) set(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// lines returns what happened since the last call.
func (n *node) lines() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	lines := n.log
	n.log = nil
	return lines
}

func (n *node) expect(t *testing.T, want ...string) {
	t.Helper()
	got := n.lines()
	if len(got) != len(want) {
		t.Fatalf("happened:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Fatalf("happened:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
		}
	}
}

func pod(uid string, memory int64) feed.Pod {
	return feed.Pod{Pod: policy.Pod{UID: uid, Namespace: "default", Name: uid, Memory: memory, Measured: true}, Phase: podplanev1.WorkerPhase_WORKER_PHASE_SYNCING}
}

func (n *node) phase(uid string, phase podplanev1.WorkerPhase) {
	n.set(func() {
		p := n.pods[uid]
		p.Phase, p.Ended = phase, phase == podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED
		p.Clean = p.Ended && !n.mounted
		n.pods[uid] = p
	})
}

// bubble runs a manager in virtual time; prepare may change the node and the options before.
func bubble(t *testing.T, prepare func(*node, *manager.Options), f func(*testing.T, *node, *manager.Manager)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := &node{
			start: time.Now(), available: map[policy.Signal]int64{}, broken: map[policy.Signal]error{}, oneFS: true,
			pods: map[string]feed.Pod{}, orders: map[string]*podplanev1.EvictionRecord{}, beats: map[string][]time.Duration{}, status: map[string]string{},
		}
		for _, s := range policy.Signals {
			n.available[s] = 5120 * mi
		}
		thresholds, err := policy.ParseThresholds("memory.available<100Mi,nodefs.available<10%,imagefs.available<10%,pid.available<1000")
		if err != nil {
			t.Fatal(err)
		}
		opts := manager.Options{Node: "n", Thresholds: thresholds, Transition: 5 * time.Minute, Log: logger(t)}
		if prepare != nil {
			prepare(n, &opts)
		}
		m := manager.New(manager.Deps{Sensors: n, Pods: n, Usage: n, Reclaimer: n, Records: n, Events: n}, opts)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		synctest.Wait()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		f(t, n, m)
	})
}

func sleep(d time.Duration) { time.Sleep(d); synctest.Wait() }

func TestAtRest(t *testing.T) {
	bubble(t, nil, func(t *testing.T, n *node, m *manager.Manager) {
		sleep(10 * time.Minute)
		n.expect(t, "MemoryPressure=False", "DiskPressure=False", "PIDPressure=False")
		for ty, beats := range n.beats {
			for i := 1; i < len(beats); i++ {
				if gap := beats[i] - beats[i-1]; gap > 10*time.Second {
					t.Errorf("%s was not written for %s", ty, gap)
				}
			}
			if len(beats) > 62 {
				t.Errorf("%s written %d times in 10 minutes", ty, len(beats))
			}
		}
		if n.reads > 62 {
			t.Errorf("measured %d times in 10 minutes at rest", n.reads)
		}
		conditions, signals := m.Conditions()
		if len(conditions) != 3 || len(signals) != 6 || signals[0].GetThreshold() != "100Mi" || signals[0].GetThresholdValue() != 100*mi {
			t.Errorf("%v %v", conditions, signals)
		}
	})
}

// TestOneAtATime: under memory pressure pods go one after the other, each only after the one before has ended and a new
// measurement still demands it.
func TestOneAtATime(t *testing.T) {
	bubble(t, func(n *node, _ *manager.Options) {
		n.pods["big"], n.pods["mid"], n.pods["small"] = pod("big", 300), pod("mid", 200), pod("small", 100)
	}, func(t *testing.T, n *node, m *manager.Manager) {
		sleep(time.Second)
		n.lines()
		n.set(func() { n.available[policy.MemoryAvailable] = 50 * mi })
		m.MemoryStalls()
		synctest.Wait()
		n.expect(t, "MemoryPressure=True", "Node NodeHasInsufficientMemory", "Node EvictionThresholdMet: Attempting to reclaim memory",
			"evict big", "Pod Evicted: The node was low on resource: memory.")
		order := n.orders["big"]
		if order.GetGracePeriodSeconds() != 1 || order.GetSignal() != "memory.available" || order.GetThreshold() != "100Mi" || order.GetReason() != "Evicted" {
			t.Errorf("order %v", order)
		}
		n.phase("big", podplanev1.WorkerPhase_WORKER_PHASE_TERMINATING)
		m.PodsChanged()
		sleep(20 * time.Second)
		n.expect(t)
		n.phase("big", podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED)
		m.PodsChanged()
		sleep(1300 * time.Millisecond)
		n.expect(t, "obeyed big", "evict mid", "Pod Evicted")
		n.set(func() {
			delete(n.pods, "mid")
			n.available[policy.MemoryAvailable] = 4000 * mi
		})
		m.PodsChanged()
		sleep(time.Minute)
		n.expect(t, "obeyed mid")
		sleep(5 * time.Minute)
		n.expect(t, "MemoryPressure=False", "Node NodeHasSufficientMemory")
		if len(m.Orders()) != 0 {
			t.Errorf("orders left: %v", m.Orders())
		}
	})
}

// TestStuckPod: a pod that has been terminating for half a minute holds up no other; one that syncd never touched does.
func TestStuckPod(t *testing.T) {
	bubble(t, func(n *node, _ *manager.Options) {
		n.pods["a"], n.pods["b"] = pod("a", 300), pod("b", 200)
		n.available[policy.MemoryAvailable] = 50 * mi
	}, func(t *testing.T, n *node, m *manager.Manager) {
		sleep(10 * time.Minute)
		if len(n.orders) != 1 || n.orders["a"] == nil {
			t.Fatalf("orders while syncd is away: %v", n.orders)
		}
		n.lines()
		n.phase("a", podplanev1.WorkerPhase_WORKER_PHASE_TERMINATING)
		m.PodsChanged()
		sleep(time.Second)
		n.expect(t, "evict b", "Pod Evicted")
		if len(m.Orders()) != 2 {
			t.Errorf("orders: %v", m.Orders())
		}
	})
}

// TestVolumesAreWaitedFor: what a pod's volumes took is not free before they are torn down, so no other pod goes until then, or until that
// takes too long.
func TestVolumesAreWaitedFor(t *testing.T) {
	prepare := func(n *node, _ *manager.Options) {
		n.pods["a"], n.pods["b"], n.mounted = pod("a", 300), pod("b", 200), true
		n.available[policy.MemoryAvailable] = 50 * mi
	}
	evicted := func(t *testing.T, n *node, m *manager.Manager) {
		sleep(5 * time.Second)
		n.phase("a", podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED)
		m.PodsChanged()
		sleep(20 * time.Second)
		if len(n.orders) != 1 || n.orders["a"] == nil {
			t.Fatalf("orders while volumes are torn down: %v", n.orders)
		}
		n.lines()
	}
	bubble(t, prepare, func(t *testing.T, n *node, m *manager.Manager) {
		evicted(t, n, m)
		n.set(func() { n.mounted, n.available[policy.MemoryAvailable] = false, 4000*mi })
		n.phase("a", podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED)
		m.PodsChanged()
		sleep(time.Minute)
		n.expect(t, "obeyed a")
	})
	bubble(t, prepare, func(t *testing.T, n *node, m *manager.Manager) {
		evicted(t, n, m)
		sleep(15 * time.Second)
		n.expect(t, "obeyed a", "evict b", "Pod Evicted")
	})
}

// TestImagesFirst: disk pressure removes images before any pod, and when that helps no pod goes.
func TestImagesFirst(t *testing.T) {
	bubble(t, func(n *node, _ *manager.Options) {
		n.pods["a"] = pod("a", 1)
		n.available[policy.NodefsAvailable], n.available[policy.ImagefsAvailable] = 100*mi, 100*mi
		n.images = 5000 * mi
	}, func(t *testing.T, n *node, _ *manager.Manager) {
		sleep(time.Minute)
		n.expect(t, "MemoryPressure=False", "DiskPressure=True", "NodeHasDiskPressure", "PIDPressure=False", "EvictionThresholdMet", "EvictionThresholdMet", "images removed")
	})
	bubble(t, func(n *node, _ *manager.Options) {
		n.pods["a"] = pod("a", 1)
		n.available[policy.NodefsAvailable], n.available[policy.ImagefsAvailable] = 100*mi, 100*mi
	}, func(t *testing.T, n *node, _ *manager.Manager) {
		sleep(2 * time.Second)
		lines := n.lines()
		if i := slices.IndexFunc(lines, func(s string) bool { return strings.Contains(s, "images removed") }); i < 0 || !strings.Contains(lines[len(lines)-2], "evict a") {
			t.Errorf("%v", lines)
		}
	})
	bubble(t, func(n *node, _ *manager.Options) {
		n.pods["a"], n.oneFS = pod("a", 1), false
		n.available[policy.NodefsAvailable] = 100 * mi
	}, func(t *testing.T, n *node, _ *manager.Manager) {
		sleep(2 * time.Second)
		if n.removals != 0 || n.orders["a"] == nil {
			t.Errorf("with images elsewhere: %d removals, orders %v", n.removals, n.orders)
		}
	})
}

// TestRelievedWhileMeasured: what was true before the pods were measured does not count.
func TestRelievedWhileMeasured(t *testing.T) {
	bubble(t, func(n *node, _ *manager.Options) {
		n.pods["a"] = pod("a", 1)
		n.available[policy.MemoryAvailable] = 50 * mi
		n.collect = func() error {
			n.set(func() { n.available[policy.MemoryAvailable] = 4000 * mi })
			return nil
		}
	}, func(t *testing.T, n *node, _ *manager.Manager) {
		sleep(time.Minute)
		if len(n.orders) != 0 || n.collects != 1 {
			t.Errorf("orders %v after %d collections", n.orders, n.collects)
		}
	})
}

// TestNobodyCanGo: pods are not measured over and over when none of them can go.
func TestNobodyCanGo(t *testing.T) {
	bubble(t, func(n *node, _ *manager.Options) {
		critical := pod("a", 1)
		critical.Static = true
		n.pods["a"] = critical
		n.available[policy.MemoryAvailable] = 50 * mi
	}, func(t *testing.T, n *node, _ *manager.Manager) {
		sleep(time.Minute)
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.orders) != 0 || n.collects < 5 || n.collects > 7 {
			t.Errorf("%d measurements of pods, orders %v", n.collects, n.orders)
		}
	})
}

// TestWithoutStatistics: a runtime that does not answer does not stop the eviction.
func TestWithoutStatistics(t *testing.T) {
	bubble(t, func(n *node, _ *manager.Options) {
		n.pods["a"] = pod("a", 0)
		n.available[policy.MemoryAvailable] = 50 * mi
		n.collect = func() error { return errors.New("no answer") }
	}, func(t *testing.T, n *node, _ *manager.Manager) {
		sleep(time.Second)
		if n.orders["a"] == nil {
			t.Error("no order")
		}
	})
}

// TestGoesOn: orders and conditions of an earlier process count; nothing is concluded from pods that are not known yet.
func TestGoesOn(t *testing.T) {
	var old *podplanev1.ConditionRecord
	bubble(t, func(n *node, opts *manager.Options) {
		n.unsynced = true
		n.pods["next"] = pod("next", 1)
		n.available[policy.MemoryAvailable] = 50 * mi
		opts.Orders = []*podplanev1.EvictionRecord{{Uid: "gone", OrderedAt: timestamppb.Now()}}
		old = &podplanev1.ConditionRecord{
			Type: policy.DiskPressure, Status: policy.True, Heartbeat: timestamppb.New(time.Now().Add(-4 * time.Minute)), Transition: timestamppb.New(time.Now().Add(-time.Hour)),
		}
		opts.Conditions = []*podplanev1.ConditionRecord{old}
	}, func(t *testing.T, n *node, m *manager.Manager) {
		sleep(10 * time.Second)
		if len(m.Orders()) != 1 || len(n.orders) != 0 {
			t.Errorf("before the pods are known: %v, new %v", m.Orders(), n.orders)
		}
		conditions, _ := m.Conditions()
		i := slices.IndexFunc(conditions, func(c *podplanev1.ConditionRecord) bool { return c.GetType() == policy.DiskPressure })
		if c := conditions[i]; c.GetStatus() != policy.True || !c.GetTransition().AsTime().Equal(old.GetTransition().AsTime()) {
			t.Errorf("condition of the earlier process: %v", c)
		}
		n.set(func() { n.unsynced = false })
		m.PodsChanged()
		sleep(time.Second)
		if n.orders["next"] == nil {
			t.Errorf("orders: %v", n.orders)
		}
	})
}

func TestCloserLooks(t *testing.T) {
	bubble(t, nil, func(t *testing.T, n *node, m *manager.Manager) {
		count := func(d time.Duration) int {
			n.set(func() { n.reads = 0 })
			sleep(d)
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.reads
		}
		if c := count(time.Minute); c > 7 {
			t.Errorf("%d looks a minute at rest", c)
		}
		n.set(func() { n.available[policy.MemoryAvailable] = 900 * mi })
		sleep(10 * time.Second)
		if c := count(time.Minute); c < 59 || c > 61 {
			t.Errorf("%d looks a minute when memory is short", c)
		}
		n.set(func() { n.available[policy.MemoryAvailable] = 150 * mi })
		sleep(time.Second)
		if c := count(10 * time.Second); c < 39 || c > 41 {
			t.Errorf("%d looks in 10 s close to the threshold", c)
		}
		n.set(func() { n.available[policy.MemoryAvailable] = 5120 * mi })
		sleep(20 * time.Second)
		m.MemoryStalls()
		if c := count(9 * time.Second); c < 35 {
			t.Errorf("%d looks in 9 s after the kernel's word", c)
		}
	})
}

func TestSaidOnce(t *testing.T) {
	bubble(t, func(n *node, _ *manager.Options) {
		n.broken[policy.ImagefsAvailable] = errors.New("no image file system")
	}, func(t *testing.T, n *node, _ *manager.Manager) {
		sleep(time.Minute)
		n.set(func() { n.broken = map[policy.Signal]error{} })
		sleep(time.Minute)
		lines := logged()
		var said []string
		for _, l := range lines {
			if strings.Contains(l, "measured") {
				said = append(said, l)
			}
		}
		if len(said) != 2 {
			t.Errorf("said: %v", said)
		}
	})
}
