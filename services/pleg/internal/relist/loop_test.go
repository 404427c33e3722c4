package relist_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/cri/crifake"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/pleg/internal/diff"
	"github.com/podplane/podplane/services/pleg/internal/relist"
)

// sink records what was published.
type sink struct {
	start  time.Time
	mu     sync.Mutex
	events []diff.Event
	times  []time.Duration
	full   bool
}

func (s *sink) Room() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.full
}

func (s *sink) setFull(full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = full
}

// seen returns the events so far and when each was published.
func (s *sink) seen() ([]diff.Event, []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events, s.times
}

func (s *sink) Publish(events []diff.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range events {
		s.events = append(s.events, e)
		s.times = append(s.times, time.Since(s.start))
	}
}

func (s *sink) empty() bool {
	events, _ := s.seen()
	return len(events) == 0
}

// lines returns "type object" of the events since the last call.
func (s *sink) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := make([]string, 0, len(s.events))
	for _, e := range s.events {
		lines = append(lines, e.Type.String()+" "+e.Object.ID)
	}
	s.events, s.times = nil, nil
	return lines
}

func (s *sink) expect(t *testing.T, want ...string) {
	t.Helper()
	if got := s.lines(); !slices.Equal(got, want) {
		t.Fatalf("events:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

type fixture struct {
	*crifake.Runtime
	t   *testing.T
	out *sink

	mu    sync.Mutex
	stuck []relist.Stuck
	down  []error
}

func (f *fixture) stuckPods() []relist.Stuck {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stuck
}

// lastDown is what was said last about the stream.
func (f *fixture) lastDown() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.down[len(f.down)-1]
}

// pod runs a sandbox and returns the config that its containers need.
func (f *fixture) pod(uid string) (string, *cri.SandboxConfig) {
	f.t.Helper()
	config := &cri.SandboxConfig{Name: "web-" + uid, Namespace: "default", UID: uid}
	id, err := f.RunSandbox(f.t.Context(), config)
	f.must(err)
	return id, config
}

func (f *fixture) container(sandbox string, config *cri.SandboxConfig, attempt uint32) string {
	f.t.Helper()
	id, err := f.CreateContainer(f.t.Context(), sandbox, &cri.ContainerConfig{Name: "app", Attempt: attempt, Image: cri.ImageSpec{Image: "app"}}, config)
	f.must(err)
	return id
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// run runs a loop in virtual time beside the test.
func run(t *testing.T, f func(*testing.T, *fixture), wrap func(relist.Runtime) relist.Runtime) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rt := crifake.New(crifake.Options{Node: "n"})
		rt.AddImage("app")
		x := &fixture{Runtime: rt, t: t, out: &sink{start: time.Now()}}
		var seen relist.Runtime = rt
		if wrap != nil {
			seen = wrap(rt)
		}
		stop := x.start(seen, nil)
		f(t, x)
		stop()
	})
}

func (f *fixture) start(rt relist.Runtime, published map[string]diff.Pod) (stop func()) {
	l := relist.New(rt, f.out, published, time.Time{}, relist.Options{
		OnStuck: func(s []relist.Stuck) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.stuck = s
		},
		OnStream: func(err error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.down = append(f.down, err)
		},
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.t.Context()))
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	sleep(3 * time.Second)
	return func() {
		cancel()
		f.must(<-done)
	}
}

func sleep(d time.Duration) { time.Sleep(d); synctest.Wait() }

func TestFromTheStreamAtOnce(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.ForgetCalls()
		sandbox, config := f.pod("a")
		c := f.container(sandbox, config, 0)
		f.must(f.StartContainer(t.Context(), c))
		f.Exit(c, 3, "Error")
		synctest.Wait()
		events, times := f.out.seen()
		for i, e := range events {
			if times[i] != 3*time.Second || e.Via != diff.ViaStream {
				t.Errorf("%s %s after %s via %s", e.Type, e.Object.ID, times[i], e.Via)
			}
		}
		died := events[len(events)-1]
		if died.Object.ExitCode != 3 || !died.ExitKnown || died.Pod != (diff.Ref{UID: "a", Namespace: "default", Name: "web-a"}) {
			t.Errorf("last event %+v", died)
		}
		f.out.expect(t, "PodSandboxStarted "+sandbox, "ContainerCreated "+c, "ContainerStarted "+c, "ContainerDied "+c)
		f.must(f.RemoveSandbox(t.Context(), sandbox))
		synctest.Wait()
		f.out.expect(t, "PodSandboxStopped "+sandbox, "ContainerRemoved "+c, "PodSandboxRemoved "+sandbox)
		if calls := f.Calls("container_status", "podsandbox_status", "list_containers"); len(calls) != 0 {
			t.Errorf("the payload told all, and still the runtime was asked: %v", calls)
		}
	}, nil)
}

// TestSlowList: the stream opens while the first relist is still under way; the relists that follow keep their pace.
func TestSlowList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{Runtime: crifake.New(crifake.Options{Node: "n"}), t: t, out: &sink{start: time.Now()}}
		f.Delay("list_podsandbox", "", 500*time.Millisecond)
		stop := f.start(f.Runtime, nil)
		sleep(5 * time.Minute)
		if n := len(f.Calls("list_podsandbox")); n < 8 || n > 14 {
			t.Errorf("%d relists in 5 minutes", n)
		}
		stop()
	})
}

// TestLostByTheStream: what the stream loses is found by the relist each minute, and what is lost next in a second or two.
func TestLostByTheStream(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.DropEvents(true)
		sleep(10 * time.Minute)
		sandbox, config := f.pod("a")
		c := f.container(sandbox, config, 0)
		f.must(f.StartContainer(t.Context(), c))
		var waited time.Duration
		for ; f.out.empty() && waited < 61*time.Second; waited += 100 * time.Millisecond {
			sleep(100 * time.Millisecond)
		}
		if waited < 2*time.Second {
			t.Errorf("found after %s: the relist beside a stream is too frequent", waited)
		}
		f.out.expect(t, "PodSandboxStarted "+sandbox, "ContainerCreated "+c, "ContainerStarted "+c)
		f.Exit(c, 1, "Error")
		sleep(2100 * time.Millisecond)
		f.out.expect(t, "ContainerDied "+c)
		sleep(10 * time.Minute)
		f.ForgetCalls()
		sleep(10 * time.Minute)
		if n := len(f.Calls("list_podsandbox")); n < 9 || n > 11 {
			t.Errorf("%d relists in 10 minutes at rest", n)
		}
	}, nil)
}

func TestWithoutAStream(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.Fail("get_container_events", "", 0, fault.New(fault.Unimplemented, "no events"))
		f.BreakStreams(nil)
		sleep(2 * time.Minute)
		sandbox, config := f.pod("a")
		c := f.container(sandbox, config, 0)
		f.must(f.StartContainer(t.Context(), c))
		sleep(1100 * time.Millisecond)
		f.out.expect(t, "PodSandboxStarted "+sandbox, "ContainerCreated "+c, "ContainerStarted "+c)
		f.Exit(c, 1, "Error")
		sleep(1100 * time.Millisecond)
		f.out.expect(t, "ContainerDied "+c)
	}, nil)
}

// TestHungPod: a pod whose status hangs is named within 5 s and holds nobody up.
func TestHungPod(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.DropEvents(true) // so that everything needs an inspection
		a, configA := f.pod("a")
		b, configB := f.pod("b")
		hung, fine := f.container(a, configA, 0), f.container(b, configB, 0)
		release := f.Hang("container_status", hung)
		for waited := 0; len(f.stuckPods()) == 0 && waited < 700; waited++ {
			sleep(100 * time.Millisecond)
		}
		if len(f.stuckPods()) != 1 || f.stuckPods()[0].Pod.UID != "a" || time.Since(f.stuckPods()[0].Since) > 5*time.Second {
			t.Errorf("stuck: %+v at %s", f.stuckPods(), time.Now())
		}
		f.out.expect(t, "PodSandboxStarted "+b, "ContainerCreated "+fine)
		f.DropEvents(false)
		f.must(f.StartContainer(t.Context(), fine))
		synctest.Wait()
		f.out.expect(t, "ContainerStarted "+fine)
		sleep(time.Minute)
		f.out.expect(t, "PodSandboxStarted "+a)
		if len(f.stuckPods()) != 1 {
			t.Errorf("stuck after a minute: %+v", f.stuckPods())
		}
		release()
		sleep(11 * time.Second)
		if len(f.stuckPods()) != 0 {
			t.Errorf("still stuck: %+v", f.stuckPods())
		}
		f.out.expect(t, "ContainerCreated "+hung)
	}, nil)
}

// TestPartOfAPodHangs: an inspection that times out for one container still tells of the others.
func TestPartOfAPodHangs(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.DropEvents(true)
		sandbox, config := f.pod("a")
		c1, c2 := f.container(sandbox, config, 0), f.container(sandbox, config, 1)
		f.Fail("container_status", c1, 0, fault.New(fault.DeadlineExceeded, "hangs"))
		sleep(62 * time.Second)
		f.out.expect(t, "PodSandboxStarted "+sandbox, "ContainerCreated "+c2)
		if len(f.stuckPods()) != 1 || f.stuckPods()[0].Err == nil || !strings.Contains(f.stuckPods()[0].Err.Error(), c1) {
			t.Errorf("stuck: %+v", f.stuckPods())
		}
	}, nil)
}

// TestRuntimeAway: no answer is no event, and the exit code of what died meanwhile is found.
func TestRuntimeAway(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		sandbox, config := f.pod("a")
		c := f.container(sandbox, config, 0)
		f.must(f.StartContainer(t.Context(), c))
		synctest.Wait()
		f.out.lines()
		f.SetDown(true)
		sleep(time.Minute)
		f.Exit(c, 9, "Error")
		sleep(time.Minute)
		f.out.expect(t)
		if last := f.lastDown(); !fault.Is(last, fault.Unavailable) {
			t.Errorf("the stream's end was told as %v", last)
		}
		f.SetDown(false)
		sleep(6 * time.Second)
		if f.lastDown() != nil {
			t.Errorf("the stream's return was not told: %v", f.lastDown())
		}
		if events, _ := f.out.seen(); events[0].Object.ExitCode != 9 {
			t.Errorf("exit code %d", events[0].Object.ExitCode)
		}
		f.out.expect(t, "ContainerDied "+c)
	}, nil)
}

// TestNoRoom: what finds no room is not forgotten.
func TestNoRoom(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.out.setFull(true)
		sandbox, config := f.pod("a")
		c := f.container(sandbox, config, 0)
		sleep(time.Minute)
		f.out.expect(t)
		f.out.setFull(false)
		sleep(11 * time.Second)
		f.out.expect(t, "PodSandboxStarted "+sandbox, "ContainerCreated "+c)
	}, nil)
}

// TestGoesOnFromTheRecord: a new loop that knows what was published publishes the rest.
func TestGoesOnFromTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{Runtime: crifake.New(crifake.Options{Node: "n"}), t: t, out: &sink{start: time.Now()}}
		f.AddImage("app")
		sandbox, config := f.pod("a")
		c := f.container(sandbox, config, 0)
		stop := f.start(f.Runtime, nil)
		events, _ := f.out.seen()
		record := diff.Pod{Ref: events[0].Pod, Objects: map[string]diff.Object{}}
		for _, e := range events {
			record.Objects[e.Object.ID] = e.Object
		}
		f.out.lines()
		stop()
		f.must(f.StartContainer(t.Context(), c))
		gone := diff.Pod{Ref: diff.Ref{UID: "b"}, Objects: map[string]diff.Object{"old": {ID: "old", SandboxID: "old", Phase: diff.PhaseExited}}}
		stop = f.start(f.Runtime, map[string]diff.Pod{"a": record, "b": gone})
		got := f.out.lines()
		slices.Sort(got)
		if want := []string{"ContainerStarted " + c, "PodSandboxRemoved old"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		stop()
	})
}

// stripped is a runtime whose events say nothing but that something happened, as containerd 2.0's do.
type stripped struct{ relist.Runtime }

func (s stripped) Events(ctx context.Context) (cri.EventStream, error) {
	inner, err := s.Runtime.Events(ctx)
	return strippedStream{inner}, err
}

type strippedStream struct{ cri.EventStream }

func (s strippedStream) Recv() (cri.Event, error) {
	e, err := s.EventStream.Recv()
	e.Containers = nil
	if e.Type == cri.EventCreated || e.Type == cri.EventDeleted {
		e.Sandbox = nil
	}
	return e, err
}

func TestEventsWithoutPayload(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		sandbox, config := f.pod("a")
		synctest.Wait()
		c := f.container(sandbox, config, 0)
		sleep(1100 * time.Millisecond) // nothing names the pod: the next relist does
		f.out.expect(t, "PodSandboxStarted "+sandbox, "ContainerCreated "+c)
		before := time.Since(f.out.start)
		f.must(f.StartContainer(t.Context(), c))
		synctest.Wait()
		f.Exit(c, 1, "Error")
		synctest.Wait()
		f.must(f.RemoveContainer(t.Context(), c))
		synctest.Wait()
		if after := time.Since(f.out.start); after != before {
			t.Errorf("took %s", after-before)
		}
		f.out.expect(t, "ContainerStarted "+c, "ContainerDied "+c, "ContainerRemoved "+c)
	}, func(rt relist.Runtime) relist.Runtime { return stripped{rt} })
}

// TestSoak lives through random lives of pods, with a runtime that goes away, streams that break and lose events. Every
// event comes once. Whatever ends is left in the runtime long enough to be seen, as syncd does.
func TestSoak(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			run(t, func(_ *testing.T, f *fixture) { soak(f, rand.New(rand.NewPCG(seed, 2))) }, nil)
		})
	}
}

func soak(f *fixture, rng *rand.Rand) {
	want := map[string]bool{}
	type live struct {
		sandbox string
		config  *cri.SandboxConfig
		attempt uint32
		running string
		dead    []string
	}
	var pods []*live
	for step := range 150 {
		switch n := rng.IntN(12); {
		case n == 0:
			f.DropEvents(rng.IntN(2) == 0)
		case n == 1:
			f.BreakStreams(nil)
		case n == 2:
			f.SetDown(true)
			sleep(time.Duration(rng.IntN(5000)) * time.Millisecond)
			f.SetDown(false)
		case n < 5 || len(pods) == 0:
			p := &live{}
			p.sandbox, p.config = f.pod(fmt.Sprint("p", step))
			want["PodSandboxStarted "+p.sandbox] = true
			pods = append(pods, p)
		default:
			p := pods[rng.IntN(len(pods))]
			if p.running == "" {
				p.running = f.container(p.sandbox, p.config, p.attempt)
				p.attempt++
				f.must(f.StartContainer(f.t.Context(), p.running))
				want["ContainerCreated "+p.running], want["ContainerStarted "+p.running] = true, true
				break
			}
			f.Exit(p.running, 1, "Error")
			want["ContainerDied "+p.running] = true
			p.dead, p.running = append(p.dead, p.running), ""
		}
		sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
	}
	f.DropEvents(false)
	sleep(2 * time.Minute)
	for _, p := range pods {
		f.must(f.RemoveSandbox(f.t.Context(), p.sandbox))
		want["PodSandboxStopped "+p.sandbox], want["PodSandboxRemoved "+p.sandbox] = true, true
		for _, c := range append(p.dead, p.running) {
			if c != "" {
				want["ContainerRemoved "+c], want["ContainerDied "+c] = true, true
			}
		}
	}
	sleep(2 * time.Minute)
	got := map[string]bool{}
	for _, line := range f.out.lines() {
		if got[line] {
			f.t.Errorf("twice: %s", line)
		}
		got[line] = true
	}
	if !maps.Equal(got, want) {
		for line := range want {
			if !got[line] {
				f.t.Errorf("missing: %s", line)
			}
		}
		for line := range got {
			if !want[line] {
				f.t.Errorf("never happened: %s", line)
			}
		}
	}
}
