package diff_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/pleg/internal/diff"
)

// world is a model of a runtime with one pod: what it had after each step, one step each 10 s.
type world struct {
	rng       *rand.Rand
	snapshots []pod.RuntimePod // after step i, at time 10*i
	removed   []string         // what step i removed
	settled   []int            // steps at which everything that is about to go is in its last phase
	ideal     map[string]bool  // IDs of all events that happened
}

func (w *world) step(change func(*pod.RuntimePod), removed string, events ...string) {
	var now pod.RuntimePod
	if n := len(w.snapshots); n > 0 {
		prev := w.snapshots[n-1]
		now = pod.RuntimePod{Sandboxes: slices.Clone(prev.Sandboxes), Containers: slices.Clone(prev.Containers)}
	}
	now.UID, now.Namespace, now.Name = "uid", "ns", "web"
	change(&now)
	now.Sort()
	w.snapshots, w.removed = append(w.snapshots, now), append(w.removed, removed)
	for _, e := range events {
		w.ideal[e] = true
	}
}

func (w *world) now() time.Time { return at(10 * len(w.snapshots)) }

// live lets the pod live: a sandbox, some containers that start, fail to start, die and restart, and an end.
func (w *world) live() {
	w.step(func(*pod.RuntimePod) {}, "")
	w.step(func(p *pod.RuntimePod) {
		p.Sandboxes = []pod.Sandbox{{ID: "s1", UID: "uid", Ready: true, CreatedAt: w.now(), IPs: []string{"10.0.0.1"}}}
	}, "", diff.EventID("s1", diff.SandboxStarted))
	next := 0
	for range 3 + w.rng.IntN(12) {
		w.act(&next)
	}
	for _, c := range w.last().Containers {
		if c.State == pod.ContainerRunning {
			w.exit(c.ID)
		}
	}
	w.step(func(p *pod.RuntimePod) { p.Sandboxes[0].Ready = false }, "", diff.EventID("s1", diff.SandboxStopped))
	w.settled = append(w.settled, len(w.snapshots)-1)
	for _, c := range w.last().Containers {
		w.remove(c.ID)
	}
	w.step(func(p *pod.RuntimePod) { p.Sandboxes = nil }, "s1", diff.EventID("s1", diff.SandboxRemoved))
}

func (w *world) last() *pod.RuntimePod { return &w.snapshots[len(w.snapshots)-1] }

func (w *world) act(next *int) {
	containers := w.last().Containers
	if len(containers) == 0 || w.rng.IntN(3) == 0 {
		*next++
		id := fmt.Sprintf("c%d", *next)
		c := pod.Container{ID: id, Name: "app", SandboxID: "s1", Attempt: uint32(*next), State: pod.ContainerCreated, CreatedAt: w.now()}
		w.step(func(p *pod.RuntimePod) { p.Containers = append(p.Containers, c) }, "", diff.EventID(id, diff.ContainerCreated))
		return
	}
	c := containers[w.rng.IntN(len(containers))]
	switch c.State {
	case pod.ContainerCreated:
		if w.rng.IntN(4) == 0 {
			w.exit(c.ID)
			return
		}
		w.step(func(p *pod.RuntimePod) {
			p.Container(c.ID).State, p.Container(c.ID).StartedAt = pod.ContainerRunning, w.now()
		}, "", diff.EventID(c.ID, diff.ContainerStarted))
	case pod.ContainerRunning:
		w.exit(c.ID)
	case pod.ContainerExited:
		w.settled = append(w.settled, len(w.snapshots)-1)
		w.remove(c.ID)
	}
}

func (w *world) exit(id string) {
	w.step(func(p *pod.RuntimePod) {
		c := p.Container(id)
		c.State, c.FinishedAt, c.ExitCode = pod.ContainerExited, w.now(), 1
	}, "", diff.EventID(id, diff.ContainerDied))
}

func (w *world) remove(id string) {
	w.step(func(p *pod.RuntimePod) {
		p.Containers = slices.DeleteFunc(p.Containers, func(c pod.Container) bool { return c.ID == id })
	}, id, diff.EventID(id, diff.ContainerRemoved))
}

// observations returns what pleg gets to see, in the order of arrival: the stream's events in order but late, with
// parts of the payload missing and some lost or repeated, and relists that take long. complete says that everything is
// seen in its last phase before it goes.
func (w *world) observations(complete bool) []diff.Observation {
	var all []diff.Observation
	for i := range w.snapshots {
		if w.rng.IntN(3) == 0 {
			continue // lost
		}
		obs := diff.Observation{Via: diff.ViaStream, At: at(10*i + 1 + w.rng.IntN(25)), RemovedID: w.removed[i], RemovedAt: at(10 * i), Pod: w.snapshots[i]}
		obs.Pod.Containers = slices.DeleteFunc(slices.Clone(obs.Pod.Containers), func(pod.Container) bool { return w.rng.IntN(4) == 0 })
		if w.rng.IntN(3) == 0 {
			obs.Pod.Sandboxes = nil
		}
		all = append(all, obs)
		if w.rng.IntN(5) == 0 {
			all = append(all, obs)
		}
	}
	relists := w.rng.IntN(6)
	for range relists {
		i := w.rng.IntN(len(w.snapshots))
		all = append(all, w.relist(i, w.rng.IntN(15), w.rng.IntN(40)))
	}
	if complete {
		for _, i := range w.settled {
			all = append(all, w.relist(i, 0, 9))
		}
	}
	slices.SortStableFunc(all, func(a, b diff.Observation) int { return a.At.Compare(b.At) })
	end := w.relist(len(w.snapshots)-1, 0, 9)
	end.Pod.ObservedAt, end.At = at(100_000), at(100_001)
	return append(all, end)
}

func (w *world) relist(step, early, late int) diff.Observation {
	obs := diff.Observation{Via: diff.ViaRelist, Complete: true, Pod: w.snapshots[step], At: at(10*step + late)}
	obs.Pod.ObservedAt = at(10*step - early)
	return obs
}

// replay applies the observations and returns the IDs of the events; it fails on a repeated event and on an object
// whose events are out of order.
func replay(t *testing.T, observations []diff.Observation) map[string]bool {
	t.Helper()
	got := make(map[string]bool)
	phases := make(map[string]diff.Phase)
	var record diff.Pod
	for _, obs := range observations {
		next, events, _ := diff.Diff(record, obs, time.Time{})
		for _, e := range events {
			if got[e.ID] {
				t.Fatalf("event %s of %s twice", e.Type, e.Object.ID)
			}
			got[e.ID] = true
			if e.Object.Phase <= phases[e.Object.ID] {
				t.Fatalf("event %s of %s: phase went from %s to %s", e.Type, e.Object.ID, phases[e.Object.ID], e.Object.Phase)
			}
			phases[e.Object.ID] = e.Object.Phase
		}
		for id, o := range record.Objects {
			if next.Objects[id].Phase < o.Phase {
				t.Fatalf("record of %s went from %s to %s", id, o.Phase, next.Objects[id].Phase)
			}
		}
		if again, more, _ := diff.Diff(next, obs, time.Time{}); len(more) != 0 || !maps.Equal(again.Objects, next.Objects) {
			t.Fatalf("the same observation again gave %v", more)
		}
		record = next
	}
	if record.Live() {
		t.Fatalf("the pod is gone, but the record still has %v", record.Objects)
	}
	return got
}

func checkSeed(t *testing.T, seed uint64) {
	t.Helper()
	w := &world{rng: rand.New(rand.NewPCG(seed, 1)), ideal: make(map[string]bool)}
	w.live()
	if got := replay(t, w.observations(true)); !maps.Equal(got, w.ideal) {
		t.Fatalf("seed %d: %d events, want %d", seed, len(got), len(w.ideal))
	}
	for id := range replay(t, w.observations(false)) {
		if !w.ideal[id] {
			t.Fatalf("seed %d: event %s never happened", seed, id)
		}
	}
}

// TestSameSet checks the package's promise: any interleaving of stream, relists, losses and late answers gives the same
// events, each once and in order.
func TestSameSet(t *testing.T) {
	for seed := range uint64(3000) {
		checkSeed(t, seed)
	}
}

func FuzzSameSet(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(checkSeed)
}

func TestBehind(t *testing.T) {
	w := &world{rng: rand.New(rand.NewPCG(7, 7)), ideal: make(map[string]bool)}
	w.live()
	var record diff.Pod
	for i := range w.snapshots {
		obs := w.relist(i, 0, 1)
		_, events, _ := diff.Diff(record, obs, time.Time{})
		listed := w.snapshots[i]
		if behind := record.Behind(&listed); behind != (len(events) > 0) {
			t.Fatalf("step %d: behind=%t with %d events", i, behind, len(events))
		}
		record, _, _ = diff.Diff(record, obs, time.Time{})
		if record.Behind(&listed) {
			t.Fatalf("step %d: still behind after the diff", i)
		}
	}
}

func TestForget(t *testing.T) {
	w := &world{rng: rand.New(rand.NewPCG(7, 7)), ideal: make(map[string]bool)}
	w.live()
	var record diff.Pod
	for _, obs := range w.observations(true) {
		record, _, _ = diff.Diff(record, obs, time.Time{})
	}
	if !record.Forget(at(50_000)) && len(record.Objects) > 0 {
		t.Fatal("objects left, but Forget said none")
	}
	if record.Forget(at(200_000)) {
		t.Fatalf("left: %v", record.Objects)
	}
}

func TestTypes(t *testing.T) {
	for ty := diff.ContainerCreated; ty <= diff.SandboxRemoved; ty++ {
		if got, ok := diff.ParseType(ty.String()); !ok || got != ty {
			t.Errorf("%s parses as %v, %t", ty, got, ok)
		}
	}
	if _, ok := diff.ParseType("Unknown"); ok {
		t.Error("Unknown parses")
	}
}
