package controller_test

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

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/events"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/volumed/internal/controller"
	"github.com/podplane/podplane/services/volumed/internal/plugin"
)

// disk is a disk whose operations end when the test says so.
type disk struct {
	mu        sync.Mutex
	hung      map[string]chan struct{} // by volume
	fail      map[string]error
	busy      int
	most      int
	left      []string
	setups    map[string]int // by UID
	teardowns map[string]int
	detached  bool
}

func newDisk() *disk {
	return &disk{hung: map[string]chan struct{}{}, fail: map[string]error{}, setups: map[string]int{}, teardowns: map[string]int{}}
}

func (d *disk) Setup(_ context.Context, p *plugin.Pod, volume string, _ map[string]string) (plugin.Mounted, error) {
	d.mu.Lock()
	d.setups[p.UID]++
	d.busy++
	d.most = max(d.most, d.busy)
	wait, err := d.hung[volume], d.fail[volume]
	d.mu.Unlock()
	if wait != nil {
		<-wait // like a system call, it does not look at the context
	}
	d.mu.Lock()
	d.busy--
	d.mu.Unlock()
	return plugin.Mounted{HostPath: "/v/" + volume}, err
}

func (d *disk) Teardown(_ context.Context, uid string, detach bool) plugin.Report {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.teardowns[uid]++
	d.detached = detach
	if err := d.fail["teardown"]; err != nil && !detach {
		return plugin.Report{Errors: map[string]error{"a": err}}
	}
	return plugin.Report{}
}

func (d *disk) Leftovers() ([]string, error) { return d.left, nil }

func (d *disk) count(m map[string]int, uid string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return m[uid]
}

// records is the bucket of volumes.
type records struct {
	mu   sync.Mutex
	last map[string]*podplanev1.VolumesRecord
	all  []string
}

func (r *records) SetContext(_ context.Context, key string, v *podplanev1.VolumesRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[key] = v
	r.all = append(r.all, key+" "+strings.TrimPrefix(v.GetPhase().String(), "VOLUME_PHASE_"))
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
	return fmt.Sprint(r.all)
}

func (r *records) phase(uid string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.TrimPrefix(r.last["node."+uid].GetPhase().String(), "VOLUME_PHASE_")
}

func (r *records) err(uid string, i int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last["node."+uid].GetVolumes()[i].GetError()
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
	s.text = append(s.text, ref.Name+" "+reason+" "+fmt.Sprintf(format, args...))
}

func (s *sink) has(part string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(strings.Join(s.text, "\n"), part)
}

type rig struct {
	*controller.Controller
	disk    *disk
	records *records
	events  *sink
	stop    func()
}

func start(t *testing.T, d *disk) *rig {
	t.Helper()
	r := &rig{disk: d, records: &records{last: map[string]*podplanev1.VolumesRecord{}}, events: &sink{}}
	r.Controller = controller.New(controller.Config{
		Node: "node", BootID: "boot", Disk: d, Writer: r.records, Events: r.events, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	}()
	r.stop = func() { cancel(); <-done }
	return r
}

func (r *rig) sync() {
	r.Synced(controller.SourcePods)
	r.Synced(controller.SourceStatus)
	synctest.Wait()
}

func pod(uid string, volumes ...string) *plugin.Pod {
	p := &plugin.Pod{UID: uid, Namespace: "ns", Name: "p-" + uid}
	for _, v := range volumes {
		p.Volumes = append(p.Volumes, corev1.Volume{Name: v, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	}
	return p
}

func TestLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newDisk())
		defer r.stop()
		r.PodSeen(pod("1", "a", "b"), nil)
		r.PodSeen(pod("2"), nil)
		r.Synced(controller.SourcePods)
		synctest.Wait()
		if r.disk.count(r.disk.setups, "1") != 0 {
			t.Error("volumes set up before the statuses were read")
		}
		r.sync()
		if got := r.records.phase("1"); got != "READY" {
			t.Errorf("phase %s", got)
		}
		r.Status("1", true)
		synctest.Wait()
		if got := r.records.phase("1"); got != "GONE" {
			t.Errorf("phase %s", got)
		}
		r.PodGone("1")
		r.PodGone("2")
		r.Status("1", false)
		synctest.Wait()
		if want, got := "[node.1 READY node.1 GONE node.1 removed]", r.records.history(); got != want {
			t.Errorf("records %s, want %s", got, want)
		}
		if n := r.disk.count(r.disk.setups, "1"); n != 2 {
			t.Errorf("%d set-ups", n)
		}
	})
}

func TestTerminatedPodIsNotSetUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newDisk())
		defer r.stop()
		r.PodSeen(pod("1", "a"), nil)
		r.Status("1", true)
		r.Status("2", true)
		r.PodSeen(pod("2", "a"), nil)
		r.sync()
		for _, uid := range []string{"1", "2"} {
			if got := r.records.phase(uid); got != "GONE" || r.disk.count(r.disk.setups, uid) != 0 {
				t.Errorf("pod %s: phase %s, %d set-ups", uid, got, r.disk.count(r.disk.setups, uid))
			}
		}
	})
}

func TestHungMountsHoldNobodyBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		hang := make(chan struct{})
		d.hung["nfs"] = hang
		r := start(t, d)
		defer r.stop()
		r.sync()
		const hung = 3 * controller.Parallel
		for i := range hung {
			r.PodSeen(pod(fmt.Sprint("h", i), "nfs"), nil)
		}
		r.PodSeen(pod("ok", "a"), nil)
		synctest.Wait()
		d.mu.Lock()
		most := d.most
		d.mu.Unlock()
		if most != controller.Parallel {
			t.Errorf("%d operations at once", most)
		}
		time.Sleep(7 * time.Second) // of the bubble: each batch of hung ones gives its slots back after 2 s
		synctest.Wait()
		if got := r.records.phase("ok"); got != "READY" {
			t.Errorf("a pod behind %d hung ones: %s", hung, got)
		}
		if got := r.records.err("h0", 0); !strings.Contains(got, "still being set up after 5s") {
			t.Errorf("error %q", got)
		}
		r.Status("h0", true) // it can't be torn down while it hangs
		synctest.Wait()
		if d.count(d.teardowns, "h0") != 0 {
			t.Error("torn down while an operation is under way")
		}
		close(hang)
		synctest.Wait()
		if got := r.records.phase("h0"); got != "GONE" {
			t.Errorf("phase %s", got)
		}
		if got := r.records.phase("h1"); got != "READY" {
			t.Errorf("phase %s", got)
		}
	})
}

func TestFailureIsToldAndRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		d.fail["a"] = errors.New("no space left on device")
		r := start(t, d)
		defer r.stop()
		r.sync()
		r.PodSeen(pod("1", "a"), nil)
		synctest.Wait()
		if r.records.phase("1") != "PENDING" || r.records.err("1", 0) != "no space left on device" {
			t.Errorf("%s %q", r.records.phase("1"), r.records.err("1", 0))
		}
		if !r.events.has(`p-1 FailedMount MountVolume.SetUp failed for volume "a" : no space left on device`) {
			t.Errorf("events %q", r.events.text)
		}
		d.mu.Lock()
		delete(d.fail, "a")
		d.mu.Unlock()
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if r.records.phase("1") != "READY" || r.records.err("1", 0) != "" {
			t.Errorf("%s %q", r.records.phase("1"), r.records.err("1", 0))
		}
	})
}

func TestMissingObjectAppears(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		d.fail["c"] = errors.New("not found")
		r := start(t, d)
		defer r.stop()
		r.sync()
		p := pod("1", "c")
		p.Volumes[0].VolumeSource = corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}
		r.PodSeen(p, nil)
		synctest.Wait()
		d.mu.Lock()
		delete(d.fail, "c")
		d.mu.Unlock()
		r.Object("ns.secret.other", 7)
		r.Object("ns.secret.s", 8)
		synctest.Wait() // no time has passed
		if got := r.records.phase("1"); got != "READY" {
			t.Errorf("phase %s", got)
		}
		if n := d.count(d.setups, "1"); n != 2 {
			t.Errorf("%d set-ups", n)
		}
		r.Object("ns.secret.s", 9)
		synctest.Wait()
		if n := d.count(d.setups, "1"); n != 3 {
			t.Errorf("%d set-ups after an update", n)
		}
	})
}

func TestLeftovers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		d.left = []string{"known", "plain", "unknown"}
		r := start(t, d)
		defer r.stop()
		r.PodSeen(pod("known", "a"), nil)
		r.PodSeen(pod("plain"), nil)
		r.sync()
		time.Sleep(time.Minute)
		synctest.Wait()
		for uid, want := range map[string]int{"known": 0, "plain": 0, "unknown": 1} {
			if n := d.count(d.teardowns, uid); n != want {
				t.Errorf("%s: %d teardowns", uid, n)
			}
		}
	})
}

func TestBusyMountsAreDetachedInTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		d.fail["teardown"] = errors.New("device or resource busy")
		r := start(t, d)
		defer r.stop()
		r.sync()
		r.PodSeen(pod("1", "a"), nil)
		synctest.Wait()
		r.Status("1", true)
		synctest.Wait()
		if r.records.phase("1") != "TEARING_DOWN" || r.records.err("1", 0) == "" || !r.events.has("FailedUnMount") {
			t.Errorf("%s %q %q", r.records.phase("1"), r.records.err("1", 0), r.events.text)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		d.mu.Lock()
		detached := d.detached
		d.mu.Unlock()
		if !detached || r.records.phase("1") != "GONE" {
			t.Errorf("detached %v, phase %s", detached, r.records.phase("1"))
		}
	})
}

func TestRestore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newDisk())
		defer r.stop()
		record := func(uid, boot string) *podplanev1.VolumesRecord {
			return &podplanev1.VolumesRecord{Node: "node", Uid: uid, Phase: podplanev1.VolumePhase_VOLUME_PHASE_READY, Volumes: []*podplanev1.VolumeState{{
				Name: "a", Plugin: plugin.EmptyDir, Phase: podplanev1.VolumePhase_VOLUME_PHASE_READY, HostPath: "/v/a", Attributes: map[string]string{"bootID": boot},
			}}}
		}
		r.Restore(record("same", "boot"))
		r.Restore(record("other", "earlier"))
		r.Restore(record("lost", "boot"))
		r.PodSeen(pod("same", "a"), nil)
		r.PodSeen(pod("other", "a"), nil)
		r.sync()
		if want, got := "[node.other PENDING node.other READY]", r.records.history(); got != want {
			t.Errorf("records %s, want %s", got, want)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := r.disk.count(r.disk.teardowns, "lost"); n != 1 {
			t.Errorf("%d teardowns of a pod without a record", n)
		}
		list, err := r.Records(t.Context(), func(_, _, uid string) bool { return uid == "same" })
		if err != nil || len(list) != 1 || list[0].GetPhase() != podplanev1.VolumePhase_VOLUME_PHASE_READY {
			t.Errorf("%v, %v", list, err)
		}
	})
}
