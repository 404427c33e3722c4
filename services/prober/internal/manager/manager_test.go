package manager_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podplane/podplane/internal/events"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/prober/internal/manager"
	"github.com/podplane/podplane/services/prober/internal/probe"
	"github.com/podplane/podplane/services/prober/internal/verdict"
)

// container answers probes as the test says. Probes are told apart by their HTTP path.
type container struct {
	mu      sync.Mutex
	answers map[string]func(context.Context) probe.Result
	calls   map[string]int
	times   map[string][]time.Time
	busy    int
	most    int
}

func newContainer() *container {
	return &container{answers: map[string]func(context.Context) probe.Result{}, calls: map[string]int{}, times: map[string][]time.Time{}}
}

func (c *container) Probe(ctx context.Context, s *probe.Spec, _ probe.Target) probe.Result {
	c.mu.Lock()
	path := s.HTTP.Path
	c.calls[path]++
	c.times[path] = append(c.times[path], time.Now())
	c.busy++
	c.most = max(c.most, c.busy)
	answer := c.answers[path]
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.busy--
		c.mu.Unlock()
	}()
	if answer == nil {
		return probe.Result{Outcome: verdict.Success}
	}
	return answer(ctx)
}

func (c *container) set(path string, r probe.Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers[path] = func(context.Context) probe.Result { return r }
}

func (c *container) count(path string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[path]
}

// records is the bucket of probes.
type records struct {
	mu   sync.Mutex
	last map[string]*podplanev1.ProbeRecord
	all  []string
}

func (r *records) SetContext(_ context.Context, key string, v *podplanev1.ProbeRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[key] = v
	r.all = append(r.all, fmt.Sprintf("%s %s on %s", key, strings.TrimPrefix(v.GetResult().String(), "PROBE_RESULT_"), v.GetContainerId()))
}

func (r *records) Remove(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, key)
	r.all = append(r.all, key+" removed")
}

func (r *records) history() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := strings.Join(r.all, "; ")
	r.all = nil
	return h
}

// sink collects events.
type sink struct {
	mu   sync.Mutex
	text []string
}

func (s *sink) Event(ref events.ObjectRef, t, reason, format string, args ...any) {
	s.EventContext(context.Background(), ref, t, reason, format, args...)
}

func (s *sink) EventContext(_ context.Context, ref events.ObjectRef, _, reason, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, ref.FieldPath+" "+reason+" "+fmt.Sprintf(format, args...))
}

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.text, "; ")
}

type rig struct {
	*manager.Manager
	container *container
	records   *records
	events    *sink
}

// start runs a manager until the test's bubble ends.
func start(t *testing.T) *rig {
	t.Helper()
	r := &rig{container: newContainer(), records: &records{last: map[string]*podplanev1.ProbeRecord{}}, events: &sink{}}
	r.Manager = manager.New(manager.Config{
		Node: "n", Prober: r.container, Writer: r.records, Events: r.events, Log: slog.New(slog.DiscardHandler), Spread: func() float64 { return 0.5 },
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

// pod has a container c with probes of these kinds, each with its kind as the path.
func pod(uid string, kinds ...podplanev1.ProbeKind) *manager.Pod {
	p := &manager.Pod{UID: uid, Namespace: "ns", Name: "p" + uid}
	gated := false
	for _, k := range kinds {
		gated = gated || k == verdict.Startup
	}
	for _, k := range kinds {
		p.Probes = append(p.Probes, &manager.Probe{
			Container: "c", FieldPath: "spec.containers{c}", Gated: gated,
			Params: verdict.Params{Kind: k, Period: 10 * time.Second, FailureThreshold: 2},
			Spec:   &probe.Spec{HTTP: &probe.HTTP{Path: manager.KindName(k)}, Timeout: time.Second},
		})
	}
	return p
}

func running(id string, started bool) *manager.Status {
	return &manager.Status{PodIP: "10.0.0.1", Containers: map[string]manager.ContainerStatus{
		"c": {ID: id, Running: true, Started: started, StartedAt: time.Now()},
	}}
}

func TestFirstVerdictAtOnceThenOnlyChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.PodSeen(pod("1", verdict.Readiness, verdict.Liveness))
		r.Synced()
		synctest.Wait()
		if r.container.count("readiness") != 0 {
			t.Error("probed before a container runs")
		}
		r.StatusSeen("1", running("c1", true))
		synctest.Wait() // no time has passed
		if got := r.records.history(); !strings.Contains(got, "n.1.c.readiness SUCCESS on c1") || !strings.Contains(got, "n.1.c.liveness SUCCESS on c1") {
			t.Errorf("records %q", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := r.records.history(); got != "" || r.container.count("readiness") < 5 {
			t.Errorf("records %q after %d probes", got, r.container.count("readiness"))
		}
		r.container.set("readiness", probe.Result{Outcome: verdict.Failure, Output: "HTTP probe failed with statuscode: 500"})
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := r.records.history(); got != "n.1.c.readiness FAILURE on c1" {
			t.Errorf("records %q", got)
		}
		if got := r.events.String(); !strings.Contains(got, "spec.containers{c} Unhealthy Readiness probe failed: HTTP probe failed with statuscode: 500") {
			t.Errorf("events %q", got)
		}
		r.PodGone("1")
		synctest.Wait()
		n := r.container.count("readiness")
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := r.records.history(); !strings.Contains(got, "n.1.c.readiness removed") || !strings.Contains(got, "n.1.c.liveness removed") {
			t.Errorf("records %q", got)
		}
		if r.container.count("readiness") != n {
			t.Error("a pod that is gone is probed")
		}
	})
}

func TestStartupOpensTheGateAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.container.set("startup", probe.Result{Outcome: verdict.Failure})
		r.PodSeen(pod("1", verdict.Startup, verdict.Liveness, verdict.Readiness))
		r.StatusSeen("1", running("c1", false))
		time.Sleep(time.Second)
		synctest.Wait()
		if r.container.count("liveness")+r.container.count("readiness") != 0 {
			t.Error("probed before the startup probe has succeeded")
		}
		r.container.set("startup", probe.Result{Outcome: verdict.Success})
		time.Sleep(9 * time.Second)
		synctest.Wait()
		got := r.records.history()
		for _, want := range []string{"startup SUCCESS", "liveness SUCCESS", "readiness SUCCESS"} {
			if !strings.Contains(got, want) {
				t.Errorf("records %q: want %s without waiting for the status", got, want)
			}
		}
		n := r.container.count("startup")
		r.StatusSeen("1", running("c1", true))
		time.Sleep(time.Minute)
		synctest.Wait()
		if r.container.count("startup") != n {
			t.Error("the startup probe goes on after its success")
		}
	})
}

func TestLivenessHoldsUntilAnotherContainer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.container.set("liveness", probe.Result{Outcome: verdict.Failure})
		r.PodSeen(pod("1", verdict.Liveness))
		r.StatusSeen("1", running("c1", true))
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := r.records.history(); got != "n.1.c.liveness FAILURE on c1" || r.container.count("liveness") != 2 {
			t.Errorf("records %q after %d probes", got, r.container.count("liveness"))
		}
		r.StatusSeen("1", running("c2", true))
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := r.records.history(); got != "n.1.c.liveness FAILURE on c2" {
			t.Errorf("records %q", got)
		}
	})
}

func TestRestartKeepsVerdicts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		rec := func(id string) *podplanev1.ProbeRecord {
			return &podplanev1.ProbeRecord{ContainerId: id, Result: verdict.Success}
		}
		r.Restore("n.1.c.readiness", rec("c1"))
		r.Restore("n.2.c.readiness", rec("old"))
		r.Restore("n.9.c.readiness", rec("c9"))
		for _, uid := range []string{"1", "2"} {
			r.PodSeen(pod(uid, verdict.Readiness))
		}
		r.Synced()
		synctest.Wait()
		if got := r.records.history(); got != "n.9.c.readiness removed" {
			t.Errorf("records %q", got)
		}
		r.container.set("readiness", probe.Result{Outcome: verdict.Failure})
		old := running("c1", true)
		r.StatusSeen("1", old)
		r.StatusSeen("2", running("new", true))
		time.Sleep(6 * time.Second) // one failure each is below the threshold
		synctest.Wait()
		if got := r.records.history(); got != "" {
			t.Errorf("records %q after one failure", got)
		}
		list, err := r.Records(t.Context(), func(_, _, uid string) bool { return uid == "1" })
		if err != nil || len(list) != 1 || list[0].GetResult() != verdict.Success {
			t.Errorf("%v, %v", list, err)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if got := r.records.history(); !strings.Contains(got, "n.1.c.readiness FAILURE on c1") || !strings.Contains(got, "n.2.c.readiness FAILURE on new") {
			t.Errorf("records %q", got)
		}
	})
}

func TestErrorsCountForNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.container.set("liveness", probe.Result{Outcome: verdict.Unknown, Err: errors.New("runtime away")})
		r.PodSeen(pod("1", verdict.Liveness))
		r.StatusSeen("1", running("c1", true))
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := r.records.history(); got != "" {
			t.Errorf("records %q", got)
		}
		if got := r.events.String(); !strings.Contains(got, "Liveness probe errored and resulted in unknown state: runtime away") {
			t.Errorf("events %q", got)
		}
	})
}

func TestOwnLatenessIsRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		late := probe.Result{Outcome: verdict.Failure, TimedOut: true, Overrun: 700 * time.Millisecond}
		calls := 0
		r.container.mu.Lock()
		r.container.answers["liveness"] = func(context.Context) probe.Result {
			if calls++; calls == 1 {
				return late
			}
			return probe.Result{Outcome: verdict.Success}
		}
		r.container.mu.Unlock()
		p := pod("1", verdict.Liveness)
		p.Probes[0].Params.FailureThreshold = 1
		r.PodSeen(p)
		r.StatusSeen("1", running("c1", true))
		synctest.Wait()
		if got := r.records.history(); got != "n.1.c.liveness SUCCESS on c1" {
			t.Errorf("records %q", got)
		}
		// One that only the container is to blame for counts at once.
		r.container.set("liveness", probe.Result{Outcome: verdict.Failure, TimedOut: true})
		n := r.container.count("liveness")
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if got := r.records.history(); got != "n.1.c.liveness FAILURE on c1" || r.container.count("liveness") != n+1 {
			t.Errorf("records %q after %d probes", got, r.container.count("liveness")-n)
		}
	})
}

func TestHungProbesHoldNobodyBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.container.mu.Lock()
		r.container.answers["liveness"] = func(ctx context.Context) probe.Result {
			<-ctx.Done()
			return probe.Result{Outcome: verdict.Unknown, Err: ctx.Err()}
		}
		r.container.mu.Unlock()
		for i := range 300 { // more commands than there is room for
			p := pod(fmt.Sprint("h", i), verdict.Liveness)
			p.Probes[0].Spec.Exec = []string{"hang"}
			r.PodSeen(p)
			r.StatusSeen(p.UID, running("c", true))
		}
		r.PodSeen(pod("ok", verdict.Readiness))
		r.StatusSeen("ok", running("c", true))
		synctest.Wait()
		if got := r.records.history(); got != "n.ok.c.readiness SUCCESS on c" {
			t.Errorf("records %q", got)
		}
		if n := r.container.count("liveness"); n != manager.MaxExec {
			t.Errorf("%d commands at once", n)
		}
		r.PodGone("h0") // ends its probe, and another one gets its room
		synctest.Wait()
		if n := r.container.count("liveness"); n < manager.MaxExec {
			t.Errorf("%d commands", n)
		}
	})
}

func TestEndingPod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.PodSeen(pod("1", verdict.Liveness, verdict.Readiness))
		r.StatusSeen("1", running("c1", true))
		time.Sleep(time.Minute)
		synctest.Wait()
		p := pod("1", verdict.Liveness, verdict.Readiness)
		p.Ending = true
		r.PodSeen(p)
		synctest.Wait()
		live, ready := r.container.count("liveness"), r.container.count("readiness")
		time.Sleep(time.Minute)
		synctest.Wait()
		if r.container.count("liveness") != live || r.container.count("readiness") == ready {
			t.Error("liveness must end and readiness go on in a pod that is to go")
		}
		s := running("c1", true)
		s.Over = true
		r.StatusSeen("1", s)
		synctest.Wait()
		ready = r.container.count("readiness")
		time.Sleep(time.Minute)
		synctest.Wait()
		if r.container.count("readiness") != ready {
			t.Error("a pod that is over is probed")
		}
	})
}

func TestSpread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		began := time.Now()
		r.PodSeen(pod("1", verdict.Readiness))
		r.StatusSeen("1", running("c1", true))
		time.Sleep(time.Minute)
		synctest.Wait()
		r.container.mu.Lock()
		defer r.container.mu.Unlock()
		var got []string
		for _, at := range r.container.times["readiness"][:4] {
			got = append(got, at.Sub(began).String())
		}
		if want := "0s 11.25s 21.25s 31.25s"; strings.Join(got, " ") != want {
			t.Errorf("probed after %v, want %s", got, want)
		}
	})
}
