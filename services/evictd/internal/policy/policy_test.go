package policy_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/evictd/internal/policy"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	mi         = 1 << 20
	transition = 5 * time.Minute
)

// round is what a round of decisions looks at.
type round struct {
	Observations []policy.Observation
	Thresholds   []policy.Threshold
	Pods         []policy.Pod
	Outstanding  policy.Outstanding
	OneFS        bool
	Transition   time.Duration
}

// decide is a whole round, as the manager does it: observe, then choose.
func decide(state policy.State, in round, now time.Time) (policy.State, []policy.Condition, *policy.Order) {
	next, conditions, crossed := policy.Observe(state, in.Observations, in.Thresholds, in.Transition, now)
	order, _ := policy.Choose(next, crossed, in.Pods, in.Outstanding, in.OneFS)
	return next, conditions, order
}

func thresholds(t testing.TB, text string) []policy.Threshold {
	t.Helper()
	list, err := policy.ParseThresholds(text)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestParseThresholds(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"", ""},
		{policy.DefaultHard, "memory.available<100Mi nodefs.available<10% nodefs.inodesFree<5% imagefs.available<15% imagefs.inodesFree<5%"},
		{"pid.available<1k, memory.available<1.5%", "memory.available<1.5% pid.available<1k"},
		{"nodefs.available<0%,memory.available<100%", ""},
	} {
		list, err := policy.ParseThresholds(test.text)
		if err != nil {
			t.Fatalf("%q: %v", test.text, err)
		}
		var got []string
		for _, th := range list {
			got = append(got, th.String())
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%q: got %v", test.text, got)
		}
	}
	for _, bad := range []string{
		"memory.available", "memory.available>100Mi", "memory.free<1Mi", "memory.available<-1Mi", "memory.available<0", "memory.available<101%",
		"memory.available<-1%", "memory.available<x%", "memory.available<NaN%", "memory.available<1Mi,memory.available<2Mi", "memory.available<1Mi,", "<1Mi",
	} {
		if _, err := policy.ParseThresholds(bad); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "threshold") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	percent := thresholds(t, "memory.available<10%")[0]
	if v := percent.Value(2000); v != 200 {
		t.Errorf("10%% of 2000 is %d", v)
	}
}

func FuzzParseThresholds(f *testing.F) {
	for _, s := range []string{policy.DefaultHard, "pid.available<1k", "memory.available<1e3Mi", "a<b<c", "memory.available<1%,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		list, err := policy.ParseThresholds(s)
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("kind %s", fault.KindOf(err))
			}
			return
		}
		parts := make([]string, 0, len(list))
		for _, th := range list {
			if v := th.Value(1 << 40); v < 0 {
				t.Fatalf("%s: value %d", th, v)
			}
			parts = append(parts, th.String())
		}
		again, err := policy.ParseThresholds(strings.Join(parts, ","))
		if err != nil || !slices.Equal(again, list) {
			t.Fatalf("%v parses as %v, %v", parts, again, err)
		}
	})
}

func memory(available int64, at time.Time) []policy.Observation {
	return []policy.Observation{{Signal: policy.MemoryAvailable, Available: available, Capacity: 1024 * mi, At: at}}
}

func find(conditions []policy.Condition, conditionType string) policy.Condition {
	i := slices.IndexFunc(conditions, func(c policy.Condition) bool { return c.Type == conditionType })
	return conditions[i]
}

// TestConditionLife: True at once, False only after the transition period without a crossed threshold.
func TestConditionLife(t *testing.T) {
	hard := thresholds(t, "memory.available<100Mi")
	var state policy.State
	for _, step := range []struct {
		after     time.Duration
		available int64
		want      string
		reason    string
	}{
		{0, 500 * mi, policy.False, "KubeletHasSufficientMemory"},
		{time.Second, 99 * mi, policy.True, "KubeletHasInsufficientMemory"},
		{2 * time.Second, 500 * mi, policy.True, "KubeletHasInsufficientMemory"},
		{4 * time.Minute, 50 * mi, policy.True, "KubeletHasInsufficientMemory"},
		{8 * time.Minute, 500 * mi, policy.True, "KubeletHasInsufficientMemory"},
		{9*time.Minute + time.Second, 500 * mi, policy.False, "KubeletHasSufficientMemory"},
		{10 * time.Minute, 100 * mi, policy.False, "KubeletHasSufficientMemory"},
	} {
		now := epoch.Add(step.after)
		next, conditions, crossed := policy.Observe(state, memory(step.available, now), hard, transition, now)
		c := find(conditions, policy.MemoryPressure)
		if c.Status != step.want || c.Reason != step.reason || len(conditions) != 3 {
			t.Errorf("at %s with %d: %+v", step.after, step.available, c)
		}
		if c.Observation["memory.available"] != policy.FormatBytes(step.available) {
			t.Errorf("observation %v", c.Observation)
		}
		if (len(crossed) == 1) != (step.available < 100*mi) {
			t.Errorf("at %s crossed: %v", step.after, crossed)
		}
		state = next
	}
}

func TestUnobservable(t *testing.T) {
	hard := thresholds(t, policy.DefaultHard+",pid.available<100")
	broken := errors.New("no such file")
	observations := []policy.Observation{
		{Signal: policy.MemoryAvailable, Err: broken},
		{Signal: policy.NodefsAvailable, Available: 50, Capacity: 100, At: epoch},
		{Signal: policy.ImagefsAvailable, Err: broken},
		{Signal: policy.PIDAvailable, Available: 1000, Capacity: 2000, At: epoch},
	}
	_, conditions, crossed := policy.Observe(policy.State{}, observations, hard, transition, epoch)
	want := map[string]string{policy.MemoryPressure: policy.Unknown, policy.DiskPressure: policy.False, policy.PIDPressure: policy.False}
	for _, c := range conditions {
		if c.Status != want[c.Type] {
			t.Errorf("%+v", c)
		}
	}
	if c := find(conditions, policy.MemoryPressure); !strings.Contains(c.Message, "no such file") {
		t.Errorf("message %q", c.Message)
	}
	if len(crossed) != 0 {
		t.Errorf("crossed %v", crossed)
	}
	_, conditions, _ = policy.Observe(policy.State{}, observations, nil, transition, epoch)
	if c := find(conditions, policy.MemoryPressure); c.Status != policy.False {
		t.Errorf("without a threshold: %+v", c)
	}
}

func uids(ranked []policy.Ranked) string {
	var list []string
	for _, r := range ranked {
		list = append(list, r.Pod.UID)
	}
	return strings.Join(list, " ")
}

func TestRank(t *testing.T) {
	pods := []policy.Pod{
		{UID: "within", Memory: 900, MemoryRequest: 1000, Processes: 5, Measured: true},
		{UID: "over-high", Priority: 100, Memory: 5000, MemoryRequest: 1000, Processes: 900, Measured: true},
		{UID: "over-much", Memory: 3000, MemoryRequest: 1000, Processes: 50, Measured: true},
		{UID: "over-little", Memory: 1100, MemoryRequest: 1000, Processes: 500, Measured: true},
		{UID: "best-effort", Memory: 1500, Processes: 10, Measured: true},
		{UID: "static", Static: true, Memory: 1 << 40, Measured: true},
		{UID: "system", Priority: policy.SystemCriticalPriority, Memory: 1 << 40, Measured: true},
		{UID: "ended", Memory: 1 << 40, Ended: true},
	}
	for _, test := range []struct {
		signal policy.Signal
		want   string
	}{
		{policy.MemoryAvailable, "over-much best-effort over-little over-high within static system"},
		{policy.PIDAvailable, "over-little over-much best-effort within over-high static system"},
	} {
		if got := uids(policy.Rank(test.signal, pods, true)); got != test.want {
			t.Errorf("%s: %s, want %s", test.signal, got, test.want)
		}
	}
	for _, r := range policy.Rank(policy.MemoryAvailable, pods, true) {
		if r.Reason == "" || r.Pod.Critical() != strings.Contains(r.Reason, "never evicted") {
			t.Errorf("%s: %q", r.Pod.UID, r.Reason)
		}
	}
}

func TestRankDisk(t *testing.T) {
	pods := []policy.Pod{
		{UID: "volumes", StorageRequest: 10, Disk: policy.DiskUsage{Volumes: 500, VolumeInodes: 1}},
		{UID: "logs", Disk: policy.DiskUsage{Logs: 400, LogInodes: 5}},
		{UID: "layer", Disk: policy.DiskUsage{Writable: 1000, WritableInodes: 3}},
	}
	for _, test := range []struct {
		signal policy.Signal
		oneFS  bool
		want   string
	}{
		{policy.NodefsAvailable, true, "layer volumes logs"},
		{policy.NodefsAvailable, false, "volumes logs layer"},
		{policy.ImagefsAvailable, false, "layer logs volumes"},
		{policy.ImagefsAvailable, true, "layer volumes logs"},
		{policy.NodefsInodesFree, false, "logs volumes layer"},
		{policy.ImagefsInodesFree, false, "layer logs volumes"},
		{policy.ImagefsInodesFree, true, "logs layer volumes"},
	} {
		if got := uids(policy.Rank(test.signal, pods, test.oneFS)); got != test.want {
			t.Errorf("%s, one file system %t: %s, want %s", test.signal, test.oneFS, got, test.want)
		}
	}
}

func TestChoose(t *testing.T) {
	hard := thresholds(t, "memory.available<100Mi,pid.available<1000")
	big := policy.Pod{UID: "big", Namespace: "default", Name: "big", Memory: 300 * mi, MemoryRequest: 100 * mi, Measured: true, Containers: []policy.ContainerUsage{
		{Name: "app", Memory: 290 * mi, MemoryRequest: 50 * mi}, {Name: "side", Memory: 10 * mi, MemoryRequest: 50 * mi},
	}}
	small := policy.Pod{UID: "small", Memory: 10 * mi, MemoryRequest: 20 * mi, Processes: 800, Measured: true}
	static := policy.Pod{UID: "static", Static: true, Memory: 900 * mi, Measured: true}
	now := epoch.Add(time.Minute)
	in := round{
		Observations: memory(50*mi, now), Thresholds: hard, Pods: []policy.Pod{small, static, big}, Transition: transition,
	}
	state, _, order := decide(policy.State{}, in, now)
	if order == nil || order.Pod.UID != "big" || order.Grace != time.Second || order.Usage != 300*mi || order.Request != 100*mi {
		t.Fatalf("order %+v", order)
	}
	const message = "The node was low on resource: memory. Threshold quantity: 102400Ki, available: 51200Ki. " +
		"Container app was using 296960Ki, request is 51200Ki, has larger consumption of memory."
	if order.Message != message {
		t.Errorf("message %q", order.Message)
	}
	if a := order.Annotations; a["starved_resource"] != "memory" || a["offending_containers"] != "app" || a["offending_containers_usage"] != "296960Ki" {
		t.Errorf("annotations %v", a)
	}

	blocked := in
	blocked.Outstanding = policy.Outstanding{Open: map[string]bool{"big": true}, Blocked: true}
	if _, _, order := decide(state, blocked, now); order != nil {
		t.Errorf("a second order while the first is open: %+v", order)
	}
	blocked.Outstanding.Blocked = false
	if _, _, order := decide(state, blocked, now); order == nil || order.Pod.UID != "small" {
		t.Errorf("the open order hangs, next: %+v", order)
	}
	stale := state
	stale.LastOrderEnd = now
	if _, _, order := decide(stale, in, now); order != nil {
		t.Errorf("an order on a measurement from before the last order's end: %+v", order)
	}
	in.Observations = []policy.Observation{{Signal: policy.PIDAvailable, Available: 10, Capacity: 4000, At: now}}
	if _, _, order := decide(state, in, now); order == nil || order.Pod.UID != "small" || !strings.Contains(order.Message, "800 processes") {
		t.Errorf("pids: %+v", order)
	}
	in.Pods = []policy.Pod{static}
	_, _, crossed := policy.Observe(state, in.Observations, hard, transition, now)
	if order, unmet := policy.Choose(state, crossed, in.Pods, policy.Outstanding{}, true); order != nil || unmet == nil {
		t.Errorf("with critical pods only: %+v, unmet %+v", order, unmet)
	}
}

// FuzzDecide checks what must hold for any input.
func FuzzDecide(f *testing.F) {
	f.Add(uint64(1), int64(50))
	f.Add(uint64(99), int64(0))
	f.Fuzz(func(t *testing.T, seed uint64, available int64) {
		rng := rand.New(rand.NewPCG(seed, 3))
		now := epoch.Add(time.Duration(rng.Int64N(int64(time.Hour))))
		state := policy.State{LastCrossed: map[string]time.Time{}, LastOrderEnd: epoch.Add(time.Duration(rng.Int64N(int64(time.Hour))))}
		if rng.IntN(2) == 0 {
			state.LastCrossed[policy.MemoryPressure] = epoch
		}
		in := round{Thresholds: thresholds(t, policy.DefaultHard+",pid.available<1000"), Transition: transition, OneFS: rng.IntN(2) == 0}
		for _, s := range policy.Signals {
			in.Observations = append(in.Observations, policy.Observation{Signal: s, Available: available + rng.Int64N(2000), Capacity: rng.Int64N(10000), At: now})
		}
		for i := range rng.IntN(20) {
			p := policy.Pod{UID: fmt.Sprint(i), Static: rng.IntN(4) == 0, Priority: rng.Int32(), Memory: rng.Int64N(100), Ended: rng.IntN(5) == 0}
			in.Pods = append(in.Pods, p)
		}
		in.Outstanding = policy.Outstanding{Open: map[string]bool{"3": true}, Blocked: rng.IntN(4) == 0}
		next, conditions, order := decide(state, in, now)
		checkRound(t, in, state, next, conditions, order, now)
		_, again, second := decide(state, in, now)
		if fmt.Sprint(again) != fmt.Sprint(conditions) || (order == nil) != (second == nil) || order != nil && order.Pod.UID != second.Pod.UID {
			t.Fatal("the same input gave two answers")
		}
	})
}

func checkRound(t *testing.T, in round, state, next policy.State, conditions []policy.Condition, order *policy.Order, now time.Time) {
	t.Helper()
	crossed := map[string]bool{}
	for _, th := range in.Thresholds {
		for _, o := range in.Observations {
			if o.Signal == th.Signal && o.Available < th.Value(o.Capacity) {
				crossed[policy.ConditionOf(th.Signal)] = true
			}
		}
	}
	for _, c := range conditions {
		last, ever := state.LastCrossed[c.Type]
		want := crossed[c.Type] || ever && now.Sub(last) < transition
		if (c.Status == policy.True) != want {
			t.Fatalf("%s is %s, want pressure %t", c.Type, c.Status, want)
		}
		if _, kept := next.LastCrossed[c.Type]; kept != want {
			t.Fatalf("%s: state keeps %t", c.Type, kept)
		}
	}
	if order == nil {
		return
	}
	p := order.Pod
	if p.Critical() || p.Ended || in.Outstanding.Blocked || in.Outstanding.Open[p.UID] || !crossed[policy.ConditionOf(order.Signal)] || !now.After(state.LastOrderEnd) {
		t.Fatalf("order %+v", order)
	}
}

func TestCollect(t *testing.T) {
	at := func(m int) time.Time { return epoch.Add(time.Duration(m) * time.Minute) }
	images := []policy.Image{
		{ID: "used", Size: 100, InUse: true, DetectedAt: at(0), LastUsed: at(0)},
		{ID: "pinned", Size: 100, Pinned: true, DetectedAt: at(0), LastUsed: at(0)},
		{ID: "young", Size: 100, DetectedAt: at(59), LastUsed: at(59)},
		{ID: "late", Size: 100, DetectedAt: at(0), LastUsed: at(30)},
		{ID: "early", Size: 100, DetectedAt: at(1), LastUsed: at(10)},
	}
	for _, test := range []struct {
		free int64
		want string
	}{{-1, "early late"}, {0, ""}, {1, "early"}, {100, "early"}, {101, "early late"}, {1000, "early late"}} {
		var got []string
		for _, i := range policy.Collect(images, test.free, 2*time.Minute, at(60)) {
			got = append(got, i.ID)
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("free %d: %v, want %s", test.free, got, test.want)
		}
	}
}

func TestToFree(t *testing.T) {
	for _, test := range []struct{ capacity, available, want int64 }{
		{1000, 500, 0}, {1000, 151, 0}, {1000, 150, 50}, {1000, 0, 200}, {0, 0, 0},
	} {
		if got := policy.ToFree(test.capacity, test.available, 85, 80); got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
	if got := policy.ToFree(1000, 0, 100, 80); got != 0 {
		t.Errorf("switched off: %d", got)
	}
}
