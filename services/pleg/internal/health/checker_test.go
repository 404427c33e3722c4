package health_test

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

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/pleg/internal/health"
)

// runtime answers what it is told to.
type runtime struct {
	mu     sync.Mutex
	status cri.Status
	err    error
	hang   bool
	checks int
}

func (r *runtime) Status(ctx context.Context) (cri.Status, error) {
	r.mu.Lock()
	r.checks++
	status, err, hang := r.status, r.err, r.hang
	r.mu.Unlock()
	if hang {
		<-ctx.Done()
		return cri.Status{}, ctx.Err()
	}
	return status, err
}

func (r *runtime) set(f func(*runtime)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r)
}

func ready(runtimeReady, networkReady bool) cri.Status {
	return cri.Status{Conditions: []cri.Condition{
		{Type: cri.ConditionRuntimeReady, Status: runtimeReady},
		{Type: cri.ConditionNetworkReady, Status: networkReady, Reason: map[bool]string{false: "NetworkPluginNotReady"}[networkReady], Message: "cni"},
	}}
}

// conditions keeps what was written: the newest, and a line per change of status.
type conditions struct {
	start   time.Time
	mu      sync.Mutex
	newest  map[string]*podplanev1.ConditionRecord
	changes []string
	beats   map[string][]time.Duration
}

func (c *conditions) Set(key string, r *podplanev1.ConditionRecord) {
	if want := bus.ConditionKey("n", r.GetType()); key != want {
		panic("written to " + key)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.newest[r.GetType()]; old.GetStatus() != r.GetStatus() {
		c.changes = append(c.changes, fmt.Sprintf("%s %s=%s %s", time.Since(c.start), r.GetType(), r.GetStatus(), r.GetReason()))
	}
	c.newest[r.GetType()] = r
	c.beats[r.GetType()] = append(c.beats[r.GetType()], time.Since(c.start))
}

func (c *conditions) get(conditionType string) *podplanev1.ConditionRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest[conditionType]
}

func (c *conditions) changed() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.changes)
}

func (c *conditions) written(conditionType string) []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.beats[conditionType])
}

// bubble runs a checker in virtual time.
func bubble(t *testing.T, rt *runtime, opts health.Options, f func(*health.Checker, *conditions)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		out := &conditions{start: time.Now(), newest: map[string]*podplanev1.ConditionRecord{}, beats: map[string][]time.Duration{}}
		opts.Node = "n"
		c := health.New(rt, out, opts)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		f(c, out)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func sleep(d time.Duration) { time.Sleep(d); synctest.Wait() }

func TestHeartbeat(t *testing.T) {
	bubble(t, &runtime{status: ready(true, true)}, health.Options{}, func(_ *health.Checker, out *conditions) {
		sleep(time.Minute)
		for _, ty := range []string{bus.ConditionRuntimeReady, bus.ConditionNetworkReady} {
			beats := out.written(ty)
			if len(beats) < 6 || len(beats) > 13 || beats[0] != 0 {
				t.Errorf("%s written at %v", ty, beats)
			}
			for i := 1; i < len(beats); i++ {
				if gap := beats[i] - beats[i-1]; gap > 10*time.Second {
					t.Errorf("%s not written for %s", ty, gap)
				}
			}
			r := out.get(ty)
			if r.GetStatus() != health.True || !r.GetTransition().AsTime().Equal(out.start) {
				t.Errorf("record %v", r)
			}
		}
	})
}

func TestRuntimeStopsAndReturns(t *testing.T) {
	rt := &runtime{status: ready(true, true)}
	bubble(t, rt, health.Options{}, func(c *health.Checker, out *conditions) {
		sleep(7 * time.Second)
		rt.set(func(r *runtime) { r.err = fault.New(fault.Unavailable, "connection refused") })
		c.StreamChanged(errors.New("stream broke"))
		synctest.Wait()
		if r := out.get(bus.ConditionRuntimeReady); r.GetStatus() != health.False || !strings.Contains(r.GetMessage(), "connection refused") {
			t.Errorf("right after the stream broke: %v", r)
		}
		sleep(20 * time.Second)
		rt.set(func(r *runtime) { r.err = nil })
		c.StreamChanged(nil)
		synctest.Wait()
		want := []string{
			"0s RuntimeReady=True RuntimeIsReady", "0s NetworkReady=True NetworkIsReady",
			"7s RuntimeReady=False RuntimeUnreachable", "7s NetworkReady=Unknown RuntimeUnreachable",
			"27s RuntimeReady=True RuntimeIsReady", "27s NetworkReady=True NetworkIsReady",
		}
		if !slices.Equal(out.changed(), want) {
			t.Errorf("changes:\n%s", strings.Join(out.changed(), "\n"))
		}
	})
}

// TestOneFailureIsNotEnough: a single failed check beside a working stream does not flip the condition, two do.
func TestOneFailureIsNotEnough(t *testing.T) {
	rt := &runtime{status: ready(true, true)}
	bubble(t, rt, health.Options{}, func(_ *health.Checker, out *conditions) {
		sleep(4 * time.Second)
		rt.set(func(r *runtime) { r.err = fault.New(fault.Unavailable, "hiccup") })
		sleep(1100 * time.Millisecond)
		rt.set(func(r *runtime) { r.err = nil })
		sleep(time.Minute)
		if len(out.changed()) != 2 {
			t.Errorf("changes after one failure: %v", out.changed())
		}
		rt.set(func(r *runtime) { r.err = fault.New(fault.Unavailable, "away") })
		n := len(out.changed())
		sleep(6 * time.Second)
		if len(out.changed()) != n+2 {
			t.Errorf("changes after two failures: %v", out.changed())
		}
	})
}

func TestNoAnswer(t *testing.T) {
	rt := &runtime{status: ready(true, true)}
	bubble(t, rt, health.Options{Timeout: 30 * time.Second}, func(_ *health.Checker, out *conditions) {
		sleep(time.Second)
		rt.set(func(r *runtime) { r.hang = true })
		sleep(29 * time.Second)
		if r := out.get(bus.ConditionRuntimeReady); r.GetStatus() != health.True {
			t.Fatalf("after 29 s without an answer: %v", r)
		}
		sleep(15 * time.Second)
		if r := out.get(bus.ConditionRuntimeReady); r.GetStatus() != health.False || r.GetReason() != health.ReasonNoAnswer {
			t.Fatalf("after 44 s without an answer: %v", r)
		}
	})
}

// TestAnotherAnswerCounts: a runtime that leaves the checks unanswered and answers others is there.
func TestAnotherAnswerCounts(t *testing.T) {
	rt := &runtime{status: ready(true, true)}
	bubble(t, rt, health.Options{Timeout: 30 * time.Second}, func(c *health.Checker, out *conditions) {
		sleep(time.Second)
		rt.set(func(r *runtime) { r.hang = true })
		for range 10 {
			sleep(20 * time.Second)
			c.Answered(time.Now())
			if r := out.get(bus.ConditionRuntimeReady); r.GetStatus() != health.True {
				t.Fatalf("not ready, although it answers: %v", r)
			}
		}
		sleep(45 * time.Second)
		if r := out.get(bus.ConditionRuntimeReady); r.GetStatus() != health.False || r.GetReason() != health.ReasonNoAnswer {
			t.Fatalf("after 45 s without any answer: %v", r)
		}
	})
}

// TestNothingBeforeFirstObservation: a runtime that never answered is only judged after two failures or the timeout.
func TestNothingBeforeFirstObservation(t *testing.T) {
	rt := &runtime{hang: true}
	bubble(t, rt, health.Options{Timeout: 20 * time.Second}, func(_ *health.Checker, out *conditions) {
		sleep(9 * time.Second)
		if r := out.get(bus.ConditionRuntimeReady); r != nil {
			t.Fatalf("written before anything is known: %v", r)
		}
		sleep(15 * time.Second)
		if r := out.get(bus.ConditionRuntimeReady); r.GetStatus() != health.False {
			t.Fatalf("after the timeout: %v", r)
		}
	})
}

func TestNotReadyByTheRuntimesWord(t *testing.T) {
	bubble(t, &runtime{status: ready(true, false)}, health.Options{}, func(_ *health.Checker, out *conditions) {
		r := out.get(bus.ConditionNetworkReady)
		if r.GetStatus() != health.False || r.GetReason() != "NetworkPluginNotReady" || r.GetMessage() != "cni" {
			t.Errorf("network: %v", r)
		}
	})
}

func TestNoteAndTransition(t *testing.T) {
	rt := &runtime{status: ready(true, true)}
	old := &podplanev1.ConditionRecord{Type: bus.ConditionRuntimeReady, Status: health.True, Reason: health.ReasonReady}
	synctest.Test(t, func(t *testing.T) {
		old.Transition = nil
		out := &conditions{start: time.Now(), newest: map[string]*podplanev1.ConditionRecord{}, beats: map[string][]time.Duration{}}
		c := health.New(rt, out, health.Options{Node: "n", Previous: map[string]*podplanev1.ConditionRecord{bus.ConditionRuntimeReady: old}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		first := out.get(bus.ConditionRuntimeReady).GetTransition()
		sleep(time.Second)
		c.SetNote("no answer for default/web")
		synctest.Wait()
		r := out.get(bus.ConditionRuntimeReady)
		if r.GetMessage() != "no answer for default/web" || r.GetStatus() != health.True || !r.GetTransition().AsTime().Equal(first.AsTime()) {
			t.Errorf("with a note: %v", r)
		}
		c.SetNote("")
		synctest.Wait()
		if r := out.get(bus.ConditionRuntimeReady); r.GetMessage() != "" {
			t.Errorf("without a note: %v", r)
		}
		cancel()
		<-done
	})
}
