package prober

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/cri/crifake"
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/internal/pod"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

const (
	node     = "node-a"
	childURL = "PROBER_TEST_URL"
	childDir = "PROBER_TEST_DIR"
	patience = 20 * time.Second

	ok  = podplanev1.ProbeResult_PROBE_RESULT_SUCCESS
	bad = podplanev1.ProbeResult_PROBE_RESULT_FAILURE
)

// TestMain runs prober itself when a test has started this binary as a child that it may kill.
func TestMain(m *testing.M) {
	if u := os.Getenv(childURL); u != "" {
		cfg := config(os.Getenv(childDir))
		cfg.NATSURL = u
		if err := daemon.Run(context.Background(), Service(), cfg, daemon.Options{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func config(dir string) Config {
	cfg := DefaultConfig()
	cfg.Node, cfg.Root, cfg.RunDir, cfg.Instance = node, dir, filepath.Join(dir, "run"), "test"
	cfg.CRIEndpoint = "unix://" + filepath.Join(dir, "none.sock")
	return cfg
}

// rig is a bus with what syncd would write there.
type rig struct {
	t      testing.TB
	dir    string
	server *embedded.Server
	conn   *bus.Conn
	pods   *bus.Bucket[*podplanev1.PodRecord]
	status *bus.Bucket[*podplanev1.StatusRecord]
	probes *bus.Bucket[*podplanev1.ProbeRecord]
	// registry, when not nil, gets prober's metrics.
	registry *prometheus.Registry
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir()}
	ctx := t.Context()
	var err error
	if r.server, err = embedded.Start(ctx, embedded.Options{StoreDir: filepath.Join(r.dir, "nats"), Port: -1}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.server.Shutdown(context.Background()) })
	r.reconnect()
	return r
}

// reconnect connects the test itself with the server that runs now.
func (r *rig) reconnect() {
	r.t.Helper()
	ctx := r.t.Context()
	conn, err := bus.ConnectEmbedded(ctx, r.server, bus.Config{Node: node, Instance: "test", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	r.conn = conn
	if err := bus.Provision(ctx, conn); err != nil {
		r.t.Fatal(err)
	}
	if r.pods, err = bus.Open(ctx, conn, bus.Pods); err != nil {
		r.t.Fatal(err)
	}
	if r.status, err = bus.Open(ctx, conn, bus.Status); err != nil {
		r.t.Fatal(err)
	}
	if r.probes, err = bus.Open(ctx, conn, bus.Probes); err != nil {
		r.t.Fatal(err)
	}
}

// run runs prober in this process with a runtime until the test ends.
func (r *rig) run(runtime cri.Execer) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s := Service()
	s.Run = func(ctx context.Context, _ Config, deps daemon.Deps) error { return run(ctx, runtime, deps) }
	go func() {
		done <- daemon.Run(ctx, s, config(r.dir), daemon.Options{InProcess: r.server, Log: slog.New(slog.DiscardHandler), Registry: r.registry})
	}()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("run prober: %v", err)
		}
	})
}

// child runs prober as a process of its own until the returned function kills it.
func (r *rig) child() (kill func()) {
	r.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childURL+"="+r.server.ClientURL(), childDir+"="+r.dir)
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	r.t.Cleanup(kill)
	return kill
}

func (r *rig) put(uid string, c corev1.Container) {
	r.t.Helper()
	c.Name = "c"
	data, err := json.Marshal(corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{c}}})
	if err != nil {
		r.t.Fatal(err)
	}
	rec := &podplanev1.PodRecord{Node: node, Uid: uid, Namespace: "ns", Name: "p-" + uid, Pod: data}
	if _, err := r.pods.Put(r.t.Context(), bus.PodKey(node, uid), rec); err != nil {
		r.t.Fatal(err)
	}
}

// running says that the pod's container runs as the instance id.
func (r *rig) running(uid, id string) {
	r.t.Helper()
	s := corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "127.0.0.1", ContainerStatuses: []corev1.ContainerStatus{{
		Name: "c", ContainerID: "containerd://" + id, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}}
	data, err := json.Marshal(s)
	if err != nil {
		r.t.Fatal(err)
	}
	rec := &podplanev1.StatusRecord{Node: node, Uid: uid, Phase: podplanev1.WorkerPhase_WORKER_PHASE_SYNCING, Status: data}
	if _, err := r.status.Put(r.t.Context(), bus.PodKey(node, uid), rec); err != nil {
		r.t.Fatal(err)
	}
}

// await follows a probe's record until match accepts it (nil: it is not there).
func (r *rig) await(uid, kind, what string, match func(*podplanev1.ProbeRecord) bool) *podplanev1.ProbeRecord {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	var last, found *podplanev1.ProbeRecord
	matched, exists := false, false
	look := func(v *podplanev1.ProbeRecord) {
		if last = v; !matched && match(v) {
			matched, found = true, v
			cancel()
		}
	}
	_ = r.probes.Watch(ctx, bus.ProbeKey(node, uid, "c", kind), bus.Handler[*podplanev1.ProbeRecord]{
		Apply: func(e bus.Entry[*podplanev1.ProbeRecord]) {
			exists = !e.Deleted
			look(e.Value)
		},
		Synced: func() {
			if !exists {
				look(nil)
			}
		},
	})
	if !matched {
		r.t.Fatalf("pod %s: waited for %s of %s, last seen %v", uid, what, kind, last)
	}
	return found
}

func on(id string, result podplanev1.ProbeResult) func(*podplanev1.ProbeRecord) bool {
	return func(v *podplanev1.ProbeRecord) bool { return v.GetContainerId() == id && v.GetResult() == result }
}

// app is an application that can be told to be ill.
type app struct {
	ill  atomic.Bool
	hits atomic.Int64
	port intstr.IntOrString
}

func newApp(t testing.TB) *app {
	t.Helper()
	a := &app{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		a.hits.Add(1)
		if a.ill.Load() {
			http.Error(w, "ill", http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(srv.Close)
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	a.port = intstr.FromInt32(int32(port))
	return a
}

func (a *app) probe() *corev1.Probe {
	return &corev1.Probe{
		PeriodSeconds: 1, FailureThreshold: 2, TimeoutSeconds: 5,
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/health", Port: a.port}},
	}
}

func TestFromStatusToVerdict(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run(nil)
	a := newApp(t)
	r.put("u1", corev1.Container{ReadinessProbe: a.probe(), LivenessProbe: a.probe()})
	r.running("u1", "c1")
	rec := r.await("u1", "readiness", "SUCCESS", on("c1", ok))
	if rec.GetName() != "p-u1" || rec.GetNamespace() != "ns" || rec.GetNode() != node || rec.GetInARow() != 1 {
		t.Errorf("record %v", rec)
	}
	r.await("u1", "liveness", "SUCCESS", on("c1", ok))
	a.ill.Store(true)
	rec = r.await("u1", "liveness", "FAILURE", on("c1", bad))
	if rec.GetOutput() != "HTTP probe failed with statuscode: 503" || rec.GetInARow() != 2 {
		t.Errorf("record %v", rec)
	}
	a.ill.Store(false)
	r.running("u1", "c2")
	r.await("u1", "liveness", "SUCCESS of the next container", on("c2", ok))
	if err := r.pods.Delete(t.Context(), bus.PodKey(node, "u1")); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"readiness", "liveness"} {
		r.await("u1", kind, "the record's end", func(v *podplanev1.ProbeRecord) bool { return v == nil })
	}
	r.awaitEvent("Unhealthy", "Liveness probe failed: HTTP probe failed with statuscode: 503")
}

func (r *rig) awaitEvent(reason, message string) {
	r.t.Helper()
	s, err := bus.OpenStream(r.t.Context(), r.conn, bus.Events)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	found := false
	_ = s.Read(ctx, bus.ReadFrom{Follow: true}, func(_ context.Context, m bus.Message) error {
		var e corev1.Event
		if err := json.Unmarshal(m.Data, &e); err == nil && e.Reason == reason && e.Message == message && e.InvolvedObject.FieldPath == "spec.containers{c}" {
			found = true
			cancel()
		}
		return nil
	})
	if !found {
		r.t.Errorf("no Event %s %q", reason, message)
	}
}

func TestExecByTheRuntime(t *testing.T) {
	t.Parallel()
	var code atomic.Int32
	runtime := crifake.New(crifake.Options{Node: node, AnyImage: true, Behavior: func(_ pod.Container, _ *cri.ContainerConfig) crifake.Behavior {
		return crifake.Behavior{Exec: func(_ context.Context, command []string) crifake.Exec {
			if strings.Join(command, " ") != "check me" {
				return crifake.Exec{ExitCode: 127}
			}
			return crifake.Exec{Stdout: "checked", ExitCode: code.Load()}
		}}
	}})
	id := startContainer(t, runtime)
	r := newRig(t)
	r.run(runtime)
	p := &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"check", "$(WHO)"}}}}
	r.put("u1", corev1.Container{ReadinessProbe: p, Env: []corev1.EnvVar{{Name: "WHO", Value: "me"}}})
	r.running("u1", id)
	r.await("u1", "readiness", "SUCCESS", on(id, ok))
	code.Store(3)
	if rec := r.await("u1", "readiness", "FAILURE", on(id, bad)); rec.GetOutput() != "checked" {
		t.Errorf("output %q", rec.GetOutput())
	}
}

func startContainer(t *testing.T, runtime *crifake.Runtime) string {
	t.Helper()
	ctx := t.Context()
	runtime.AddImage("img")
	sandbox := &cri.SandboxConfig{Namespace: "ns", Name: "p", UID: "u1"}
	sid, err := runtime.RunSandbox(ctx, sandbox)
	if err != nil {
		t.Fatal(err)
	}
	id, err := runtime.CreateContainer(ctx, sid, &cri.ContainerConfig{Name: "c", Image: cri.ImageSpec{Image: "img"}}, sandbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := runtime.StartContainer(ctx, id); err != nil {
		t.Fatal(err)
	}
	return id
}

// TestKilled kills prober while it probes: verdicts stay, and its next process neither flips nor repeats them.
func TestKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := newApp(t)
	kill := r.child()
	r.put("u1", corev1.Container{ReadinessProbe: a.probe()})
	r.running("u1", "c1")
	first := r.await("u1", "readiness", "SUCCESS", on("c1", ok))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var writes atomic.Int64
	synced := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		_ = r.probes.Watch(ctx, ">", bus.Handler[*podplanev1.ProbeRecord]{
			Apply:  func(bus.Entry[*podplanev1.ProbeRecord]) { writes.Add(1) },
			Synced: func() { close(synced) },
		})
	}()
	<-synced
	for range 4 {
		kill()
		kill = r.child()
		before := a.hits.Load()
		for deadline := time.Now().Add(patience); a.hits.Load() < before+2; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the next process does not probe")
			}
		}
	}
	a.ill.Store(true)
	rec := r.await("u1", "readiness", "FAILURE", on("c1", bad))
	if rec.GetInARow() != 2 {
		t.Errorf("record %v", rec)
	}
	cancel()
	<-watched
	if n := writes.Load(); n > 2 { // the one before, and the failure if it came in time
		t.Errorf("%d records after four restarts, the first one was %v", n, first)
	}
	kill()
}

// TestLatency: there is no timer between a container that runs and the verdict.
func TestLatency(t *testing.T) {
	r := newRig(t)
	r.run(nil)
	a := newApp(t)
	best := time.Hour
	for i := range 20 {
		uid := fmt.Sprint("lat", i)
		r.put(uid, corev1.Container{ReadinessProbe: &corev1.Probe{PeriodSeconds: 60, ProbeHandler: a.probe().ProbeHandler}})
		started := time.Now()
		r.running(uid, "c1")
		r.await(uid, "readiness", "SUCCESS", on("c1", ok))
		best = min(best, time.Since(started))
	}
	t.Logf("from the container's start to the verdict: %s at best", best)
	if best > 200*time.Millisecond {
		t.Errorf("from the container's start to the verdict: %s at best; a timer must be in the way", best)
	}
}
