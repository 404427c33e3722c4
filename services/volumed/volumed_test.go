package volumed_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/volumed"
)

const (
	node       = "node-a"
	childURL   = "VOLUMED_TEST_URL"
	childRoot  = "VOLUMED_TEST_ROOT"
	convergeIn = 20 * time.Second
)

// TestMain runs volumed itself when a test has started this binary as a child that it may kill.
func TestMain(m *testing.M) {
	if url := os.Getenv(childURL); url != "" {
		cfg := config(os.Getenv(childRoot))
		cfg.NATSURL = url
		if err := daemon.Run(context.Background(), volumed.Service(), cfg, daemon.Options{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func config(root string) volumed.Config {
	cfg := volumed.DefaultConfig()
	cfg.Node, cfg.Root, cfg.RunDir, cfg.Instance = node, root, filepath.Join(root, "run"), "test"
	cfg.ShutdownTimeout = 10 * time.Second
	return cfg
}

// rig is a bus with what syncd would write there, and a root directory.
type rig struct {
	t       *testing.T
	server  *embedded.Server
	root    string
	pods    *bus.Bucket[*podplanev1.PodRecord]
	status  *bus.Bucket[*podplanev1.StatusRecord]
	objects *bus.Bucket[*podplanev1.ObjectRecord]
	volumes *bus.Bucket[*podplanev1.VolumesRecord]
	conn    *bus.Conn
}

func newRig(t *testing.T) *rig {
	t.Helper()
	root, err := os.MkdirTemp("", "volumed")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, m := range mountsBelow(t, root) {
			_ = unix.Unmount(m, unix.MNT_DETACH)
		}
		_ = os.RemoveAll(root)
	})
	ctx := t.Context()
	s, err := embedded.Start(ctx, embedded.Options{StoreDir: filepath.Join(root, "nats"), Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	c, err := bus.ConnectEmbedded(ctx, s, bus.Config{Node: node, Instance: "test", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.Provision(ctx, c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close(context.Background())
		_ = s.Shutdown(context.Background())
	})
	r := &rig{t: t, server: s, root: filepath.Join(root, "root"), conn: c}
	r.pods, r.status = open(t, c, bus.Pods), open(t, c, bus.Status)
	r.objects, r.volumes = open(t, c, bus.Objects), open(t, c, bus.Volumes)
	return r
}

func open[T proto.Message](t *testing.T, c *bus.Conn, spec bus.BucketSpec[T]) *bus.Bucket[T] {
	t.Helper()
	b, err := bus.Open(t.Context(), c, spec)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// run runs volumed in this process until the returned function is called.
func (r *rig) run() (stop func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		o := daemon.Options{InProcess: r.server, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
		done <- daemon.Run(ctx, volumed.Service(), config(r.root), o)
	}()
	return func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("run volumed: %v", err)
		}
	}
}

func (r *rig) put(uid string, volumes ...corev1.Volume) {
	r.t.Helper()
	p := corev1.Pod{Spec: corev1.PodSpec{Volumes: volumes}}
	data, err := json.Marshal(p)
	if err != nil {
		r.t.Fatal(err)
	}
	rec := &podplanev1.PodRecord{Node: node, Uid: uid, Namespace: "ns", Name: "p-" + uid, Pod: data}
	if _, err := r.pods.Put(r.t.Context(), bus.PodKey(node, uid), rec); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) object(kind, name string, o any) {
	r.t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		r.t.Fatal(err)
	}
	rec := &podplanev1.ObjectRecord{Kind: kind, Namespace: "ns", Name: name, Object: data}
	if _, err := r.objects.Put(r.t.Context(), bus.ObjectKey("ns", kind, name), rec); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) terminate(uid string) {
	r.t.Helper()
	rec := &podplanev1.StatusRecord{Uid: uid, Phase: podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED}
	if _, err := r.status.Put(r.t.Context(), bus.PodKey(node, uid), rec); err != nil {
		r.t.Fatal(err)
	}
}

// await follows the pod's record until ok accepts it (nil: it is deleted).
func (r *rig) await(uid string, what string, ok func(*podplanev1.VolumesRecord) bool) *podplanev1.VolumesRecord {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), convergeIn)
	defer cancel()
	var last, found *podplanev1.VolumesRecord
	look := func(v *podplanev1.VolumesRecord) {
		last = v
		if ok(v) {
			found = v
			cancel()
		}
	}
	exists := false
	matched := false
	_ = r.volumes.Watch(ctx, bus.PodKey(node, uid), bus.Handler[*podplanev1.VolumesRecord]{
		Apply: func(e bus.Entry[*podplanev1.VolumesRecord]) {
			exists = !e.Deleted
			look(e.Value)
			matched = matched || ok(e.Value)
		},
		Synced: func() {
			if !exists && ok(nil) {
				matched = true
				cancel()
			}
		},
	})
	if !matched {
		r.t.Fatalf("pod %s: waited for %s, last seen %v", uid, what, last)
	}
	return found
}

func phase(p podplanev1.VolumePhase) func(*podplanev1.VolumesRecord) bool {
	return func(v *podplanev1.VolumesRecord) bool { return v.GetPhase() == p }
}

func (r *rig) awaitReady(uid string) *podplanev1.VolumesRecord {
	r.t.Helper()
	return r.await(uid, "READY", phase(podplanev1.VolumePhase_VOLUME_PHASE_READY))
}

func (r *rig) awaitGone(uid string) {
	r.t.Helper()
	r.await(uid, "GONE", phase(podplanev1.VolumePhase_VOLUME_PHASE_GONE))
}

func mountsBelow(t *testing.T, dir string) []string {
	t.Helper()
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		t.Fatal(err)
	}
	var points []string
	for _, m := range infos {
		points = append(points, m.Mountpoint)
	}
	return points
}

func emptyDir(name string, medium corev1.StorageMedium) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}}}
}

func configMap(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}}
}

func secret(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}}
}

func hostPath(r *podplanev1.VolumesRecord, volume string) string {
	for _, v := range r.GetVolumes() {
		if v.GetName() == volume {
			return v.GetHostPath()
		}
	}
	return ""
}

func awaitFile(t *testing.T, path, want string) {
	t.Helper()
	deadline := time.Now().Add(convergeIn)
	for {
		b, err := os.ReadFile(path)
		if err == nil && string(b) == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %q, %v; want %q", path, b, err, want)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestFromRecordToTeardown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stop := r.run()
	defer func() { stop() }()
	const token = "hunter2-do-not-tell"
	r.put("u1", emptyDir("data", ""), emptyDir("mem", "Memory"), configMap("conf"), secret("cred"))
	rec := r.await("u1", "the missing configmap", func(v *podplanev1.VolumesRecord) bool {
		return strings.Contains(v.String(), `configmap \"conf\" not found in namespace \"ns\"`)
	})
	if rec.GetPhase() != podplanev1.VolumePhase_VOLUME_PHASE_PENDING {
		t.Errorf("phase %s", rec.GetPhase())
	}
	r.object("configmap", "conf", corev1.ConfigMap{Data: map[string]string{"a": "1"}})
	r.object("secret", "cred", corev1.Secret{Data: map[string][]byte{"t": []byte(token)}})
	rec = r.awaitReady("u1")
	awaitFile(t, hostPath(rec, "cred")+"/t", token)
	r.object("configmap", "conf", corev1.ConfigMap{Data: map[string]string{"a": "2"}})
	awaitFile(t, hostPath(rec, "conf")+"/a", "2")
	if n := len(mountsBelow(t, r.root)); n != 2 {
		t.Errorf("%d mounts", n)
	}
	mine := filepath.Join(hostPath(rec, "mem"), "mine")
	if err := os.WriteFile(mine, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}

	// Another process takes over; what changed in between arrives.
	stop()
	r.object("configmap", "conf", corev1.ConfigMap{Data: map[string]string{"a": "3"}})
	stop = r.run()
	awaitFile(t, hostPath(rec, "conf")+"/a", "3")
	awaitFile(t, mine, "x")
	if n := len(mountsBelow(t, r.root)); n != 2 {
		t.Errorf("%d mounts after the restart", n)
	}
	if again := r.awaitReady("u1"); !rec.GetUpdatedAt().AsTime().Equal(again.GetUpdatedAt().AsTime()) {
		t.Error("the restart wrote the record again")
	}

	r.terminate("u1")
	r.awaitGone("u1")
	if m := mountsBelow(t, r.root); len(m) != 0 {
		t.Errorf("left mounted: %v", m)
	}
	if err := r.pods.Delete(t.Context(), bus.PodKey(node, "u1")); err != nil {
		t.Fatal(err)
	}
	r.await("u1", "the record's end", func(v *podplanev1.VolumesRecord) bool { return v == nil })
	if left, err := os.ReadDir(filepath.Join(r.root, "pods")); err != nil || len(left) != 0 {
		t.Errorf("left on disk: %v, %v", left, err)
	}
	r.noSecret(token)
}

// noSecret looks for a secret's content in everything that volumed published.
func (r *rig) noSecret(token string) {
	r.t.Helper()
	s, err := bus.OpenStream(r.t.Context(), r.conn, bus.Events)
	if err != nil {
		r.t.Fatal(err)
	}
	seen := 0
	err = s.Read(r.t.Context(), bus.ReadFrom{}, func(_ context.Context, m bus.Message) error {
		seen++
		if strings.Contains(string(m.Data), token) {
			r.t.Errorf("an event tells a secret: %s", m.Data)
		}
		return nil
	})
	if err != nil || seen == 0 {
		r.t.Errorf("%d events, %v", seen, err)
	}
	list, err := r.volumes.List(r.t.Context(), ">")
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range list {
		if strings.Contains(e.Value.String(), token) {
			r.t.Errorf("a record tells a secret: %s", e.Value)
		}
	}
}

// TestKilledAnywhere kills volumed at random moments while pods come and go: nothing is mounted twice, nothing that is
// in use is lost, and nothing is left.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const seed = 4711
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, seed))
	r.object("secret", "cred", corev1.Secret{Data: map[string][]byte{"t": []byte("x")}})
	r.object("configmap", "conf", corev1.ConfigMap{Data: map[string]string{"a": "1"}})
	r.put("keep", emptyDir("data", ""), emptyDir("mem", "Memory"), secret("cred"))
	kill := r.child()
	rec := r.awaitReady("keep")
	var marks []string
	for _, v := range []string{"data", "mem"} {
		marks = append(marks, filepath.Join(hostPath(rec, v), "mark"))
		if err := os.WriteFile(marks[len(marks)-1], []byte(v), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for round := range 12 {
		for i := range 5 {
			r.put(fmt.Sprintf("r%d-%d", round, i), emptyDir("d", ""), emptyDir("m", "Memory"), secret("cred"), configMap("conf"))
			if round > 0 {
				r.terminate(fmt.Sprintf("r%d-%d", round-1, i))
			}
		}
		if round > 1 {
			for i := range 5 {
				uid := fmt.Sprintf("r%d-%d", round-2, i)
				r.awaitGone(uid)
				if err := r.pods.Delete(t.Context(), bus.PodKey(node, uid)); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(time.Duration(random.IntN(120)) * time.Millisecond) // the random moment
		kill()
		kill = r.child()
	}
	for i := range 5 {
		rec := r.awaitReady(fmt.Sprintf("r11-%d", i))
		awaitFile(t, hostPath(rec, "cred")+"/t", "x")
		awaitFile(t, hostPath(rec, "conf")+"/a", "1")
	}
	for i, v := range []string{"data", "mem"} {
		awaitFile(t, marks[i], v)
	}
	for round := 10; round < 12; round++ {
		for i := range 5 {
			uid := fmt.Sprintf("r%d-%d", round, i)
			r.terminate(uid)
			r.awaitGone(uid)
		}
	}
	if m := mountsBelow(t, r.root); len(m) != 2 {
		t.Errorf("mounted: %v, want the two of the pod that stays", m)
	}
	left, err := os.ReadDir(filepath.Join(r.root, "pods"))
	if err != nil || len(left) != 1 {
		t.Errorf("left on disk: %v, %v", left, err)
	}
	kill()
}

// child runs volumed as a process of its own until the returned function kills it.
func (r *rig) child() (kill func()) {
	r.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childURL+"="+r.server.ClientURL(), childRoot+"="+r.root)
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	killed := false
	kill = func() {
		if killed {
			return
		}
		killed = true
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	r.t.Cleanup(kill)
	return kill
}

// TestLatency: there is no timer between a pod's record and READY.
func TestLatency(t *testing.T) {
	r := newRig(t)
	stop := r.run()
	defer stop()
	r.put("first", emptyDir("d", ""))
	r.awaitReady("first")
	ctx, cancel := context.WithTimeout(t.Context(), convergeIn)
	defer cancel()
	ready := make(chan time.Time, 1)
	synced := make(chan struct{})
	go func() {
		_ = r.volumes.Watch(ctx, ">", bus.Handler[*podplanev1.VolumesRecord]{
			Apply: func(e bus.Entry[*podplanev1.VolumesRecord]) {
				if strings.HasPrefix(e.Value.GetUid(), "lat") && e.Value.GetPhase() == podplanev1.VolumePhase_VOLUME_PHASE_READY {
					ready <- time.Now()
				}
			},
			Synced: func() { close(synced) },
		})
	}()
	<-synced
	best := time.Hour
	for i := range 50 {
		r.put(fmt.Sprint("lat", i), emptyDir("d", ""))
		started := time.Now()
		select {
		case at := <-ready:
			best = min(best, at.Sub(started))
		case <-ctx.Done():
			t.Fatal(fault.New(fault.DeadlineExceeded, "not READY"))
		}
	}
	t.Logf("from the stored record to READY: %s at best", best)
	if best > 50*time.Millisecond {
		t.Errorf("from the stored record to READY: %s at best; a timer must be in the way", best)
	}
}
