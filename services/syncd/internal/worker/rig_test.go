package worker_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/cri/crifake"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/internal/testkit"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/chain"
	"github.com/podplane/podplane/services/syncd/internal/decisions"
	"github.com/podplane/podplane/services/syncd/internal/images"
	"github.com/podplane/podplane/services/syncd/internal/plan"
	"github.com/podplane/podplane/services/syncd/internal/runtime"
	"github.com/podplane/podplane/services/syncd/internal/worker"
)

const node = "n1"

// world is everything around the workers: a runtime in memory, and what the bus would hold. It outlives the process under test.
type world struct {
	t    *testing.T
	cri  *crifake.Runtime
	dir  string
	logs string
	// cgroup is below which the pods' cgroups are.
	cgroup string

	mu       sync.Mutex
	pods     map[string]*v1.Pod
	statuses map[string]*podplanev1.StatusRecord
	history  map[string][]*podplanev1.StatusRecord
	events   []string
	maxDead  *int
	metrics  *worker.Metrics
	room     func(p *v1.Pod, held map[string]*v1.Pod) (reason, message string)
	objects  map[string]any
	current  *process
	// decided is the journal of decisions, in the order in which they were told.
	decided []chain.Decided
}

func newWorld(t *testing.T, options crifake.Options) *world {
	options.Node = node
	w := &world{
		t: t, cgroup: testkit.CgroupRoot(t), cri: crifake.New(options), dir: t.TempDir(), logs: t.TempDir(), pods: make(map[string]*v1.Pod),
		statuses: make(map[string]*podplanev1.StatusRecord), history: make(map[string][]*podplanev1.StatusRecord), objects: make(map[string]any),
	}
	w.cri.AddImage("app:1")
	return w
}

// process is one life of the service.
type process struct {
	m      *worker.Manager
	cancel context.CancelFunc
	ended  sync.WaitGroup
}

// RuntimeName is worker.Settings.
func (w *world) RuntimeName() string { return "containerd" }

func (w *world) Set(rec *podplanev1.StatusRecord) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.statuses[rec.GetUid()] = rec
	w.history[rec.GetUid()] = append(w.history[rec.GetUid()], rec)
}

func (w *world) forget(uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.statuses, uid)
}

// sink is one process's way to the bus: a dead process stores nothing more.
type sink struct {
	w    *world
	dead func() bool
}

func (s sink) Set(rec *podplanev1.StatusRecord) {
	if !s.dead() {
		s.w.Set(rec)
	}
}

func (s sink) Remove(uid string) {
	if !s.dead() {
		s.w.forget(uid)
	}
}

func (w *world) PodEvent(p *v1.Pod, container, _, reason, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, strings.TrimSpace(p.Name+"/"+container+" "+reason+" "+message))
}

// Decided is worker.Decisions.
func (w *world) Decided(p *v1.Pod, _ string, at time.Time, list []plan.Decision) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rec := decisions.Record(node, p, "", at, list)
	w.decided = append(w.decided, chain.Decided{Sequence: uint64(len(w.decided) + 1), Record: rec})
}

// why are the pod's chains as lines, from its decisions alone.
func (w *world) why(uid string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var in chain.Input
	for _, d := range w.decided {
		if d.Record.GetUid() == uid {
			in.Decisions = append(in.Decisions, d)
		}
	}
	chains, _ := chain.Compose(in)
	var lines []string
	for _, c := range chains {
		var parts []string
		for _, s := range c.GetSteps() {
			parts = append(parts, s.GetText())
		}
		lines = append(lines, strings.Join(parts, " -> "))
	}
	return lines
}

func (w *world) ConfigMap(namespace, name string) (*v1.ConfigMap, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m, ok := w.objects["configmap/"+namespace+"/"+name].(*v1.ConfigMap)
	return m, ok
}

func (w *world) Secret(namespace, name string) (*v1.Secret, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m, ok := w.objects["secret/"+namespace+"/"+name].(*v1.Secret)
	return m, ok
}

// Remove is worker.Records.
func (w *world) Remove(_ context.Context, uid string) error {
	w.mu.Lock()
	p := w.pods[uid]
	delete(w.pods, uid)
	delete(w.statuses, uid)
	now := w.current
	w.mu.Unlock()
	if p != nil && now != nil {
		now.m.PodChanged(worker.PodChange{UID: uid, Pod: p, Deleted: true})
	}
	return nil
}

// start begins a life of the service, with everything that the bus holds.
func (w *world) start() *process {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	p := &process{cancel: cancel}
	exec := runtime.New(runtime.Config{
		Node: node, Root: w.dir, PodLogDir: w.logs, HostIPs: []string{"192.0.2.1"}, Cgroups: runtime.Cgroups{Mount: w.dir + "/cgroup", Root: w.cgroup},
	}, w.cri, images.New(images.Config{}, w.cri, w, w), w, w)
	p.m = worker.New(worker.Config{Node: node, MaxDead: w.maxDead, HostIPs: []string{"192.0.2.1"}}, worker.Deps{
		Observer: w.cri, Starter: exec, Resizer: exec, Room: w.room, Ender: exec, Files: exec, Records: w, Settings: w, Sink: sink{w, func() bool { return ctx.Err() != nil }}, Events: w, Decisions: w, Ended: w.ended, Metrics: w.metrics,
	}, slog.New(slog.DiscardHandler))
	w.mu.Lock()
	w.current = p
	for uid, desired := range w.pods {
		p.m.PodChanged(worker.PodChange{UID: uid, Pod: desired, Status: w.statuses[uid]})
	}
	w.mu.Unlock()
	p.m.PodsSynced()
	p.ended.Go(func() { _ = p.m.Run(ctx) })
	p.ended.Go(func() { w.forwardEvents(ctx, p.m) })
	return p
}

// forwardEvents does what pleg does: it tells the workers what happens in the runtime, when the runtime is there.
func (w *world) forwardEvents(ctx context.Context, m *worker.Manager) {
	for ctx.Err() == nil {
		if stream, err := w.cri.Events(ctx); err == nil {
			w.forward(stream, m)
			stream.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (w *world) forward(stream cri.EventStream, m *worker.Manager) {
	for {
		e, err := stream.Recv()
		if err != nil {
			return
		}
		h := worker.Hint{ID: e.ID}
		if c := e.Container(); c != nil {
			h.Container = c.Name
		}
		switch {
		case e.IsSandbox() && e.Type == cri.EventStopped:
			h.Type = worker.HintSandboxStopped
		case e.IsSandbox() && e.Type == cri.EventStarted:
			h.Type = worker.HintSandboxStarted
		case e.IsSandbox():
			continue
		case e.Type == cri.EventStopped:
			h.Type = worker.HintContainerDied
		case e.Type == cri.EventStarted:
			h.Type = worker.HintContainerStarted
		default:
			continue
		}
		m.Hint(e.PodUID(), h)
	}
}

// kill ends the service as SIGKILL does, as far as that goes in one process: nothing of it is stored any more.
func (p *process) kill() {
	p.cancel()
	p.ended.Wait()
}

// wish stores a desired pod.
func (w *world) wish(p *v1.Pod) *v1.Pod {
	w.mu.Lock()
	w.pods[string(p.UID)] = p
	now := w.current
	w.mu.Unlock()
	if now != nil {
		now.m.PodChanged(worker.PodChange{UID: string(p.UID), Pod: p, Fresh: p.DeletionTimestamp == nil})
	}
	return p
}

// remove asks for the pod's deletion.
func (w *world) remove(uid string, grace int64) {
	w.mu.Lock()
	p := w.pods[uid].DeepCopy()
	w.mu.Unlock()
	end := metav1.NewTime(time.Now().Add(time.Duration(grace) * time.Second))
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &end, &grace
	w.wish(p)
}

func (w *world) exists(uid string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pods[uid] != nil
}

// ended is worker.Deps.Ended.
func (w *world) ended(uid string) bool {
	return !w.exists(uid) || w.record(uid).GetPhase() == podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED
}

func (w *world) record(uid string) *podplanev1.StatusRecord {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.statuses[uid]
}

func (w *world) status(uid string) v1.PodStatus {
	w.t.Helper()
	var s v1.PodStatus
	rec := w.record(uid)
	if rec == nil {
		return s
	}
	if err := json.Unmarshal(rec.GetStatus(), &s); err != nil {
		w.t.Fatalf("status of %s: %v", uid, err)
	}
	return s
}

func (w *world) runtimePod(uid string) *pod.RuntimePod {
	w.t.Helper()
	rp, err := w.cri.PodStatus(w.t.Context(), uid)
	if err != nil {
		w.t.Fatalf("pod status: %v", err)
	}
	return &rp
}

// list returns everything that the runtime has.
func (w *world) list() []pod.RuntimePod {
	w.t.Helper()
	list, err := w.cri.ListPods(w.t.Context(), cri.Filter{})
	if err != nil {
		w.t.Fatalf("list pods: %v", err)
	}
	return list
}

func (w *world) hasEvent(substring string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if strings.Contains(e, substring) {
			return true
		}
	}
	return false
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, options crifake.Options, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		f(newWorld(t, options))
	})
}

func newPod(name string, containers ...v1.Container) *v1.Pod {
	grace := int64(30)
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Generation: 1, CreationTimestamp: metav1.Now()},
		Spec:       v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace, Containers: containers},
	}
	return p
}

func container(name string) v1.Container {
	return v1.Container{
		Name: name, Image: "app:1", ImagePullPolicy: v1.PullIfNotPresent,
		TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: v1.TerminationMessageReadFile,
	}
}

func condition(s *v1.PodStatus, t v1.PodConditionType) v1.PodCondition {
	for _, c := range s.Conditions {
		if c.Type == t {
			return c
		}
	}
	return v1.PodCondition{}
}
