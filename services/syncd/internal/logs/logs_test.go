package logs_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/logs"
)

// statuses is what the store would tell.
type statuses struct {
	mu      sync.Mutex
	status  v1.PodStatus
	changed chan struct{}
}

func (s *statuses) Status(string) (*podplanev1.StatusRecord, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw, err := json.Marshal(s.status)
	if err != nil {
		panic(err)
	}
	return &podplanev1.StatusRecord{Status: raw, Phase: podplanev1.WorkerPhase_WORKER_PHASE_SYNCING}, true
}

func (s *statuses) Changes(context.Context, string) <-chan struct{} { return s.changed }

func (s *statuses) set(c v1.ContainerStatus) {
	s.mu.Lock()
	c.Name = "a"
	s.status.ContainerStatuses = []v1.ContainerStatus{c}
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

var (
	running    = v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	terminated = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}
	waiting    = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
)

func pod() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u1"},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "a"}}},
	}
}

type rig struct {
	t        *testing.T
	dir      string // of the container
	statuses *statuses
	reader   *logs.Reader
}

func newRig(t *testing.T) *rig {
	t.Helper()
	root := t.TempDir()
	r := &rig{t: t, dir: filepath.Join(root, "default_web_u1", "a"), statuses: &statuses{changed: make(chan struct{}, 1)}}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r.statuses.set(v1.ContainerStatus{State: running})
	r.reader = logs.New(root, r.statuses, slog.New(slog.DiscardHandler))
	return r
}

func (r *rig) write(name, content string) {
	r.t.Helper()
	f, err := os.OpenFile(filepath.Join(r.dir, name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := f.WriteString(content); err != nil {
		r.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) read(req *podplanev1.PodLogRequest) (string, error) {
	r.t.Helper()
	var b strings.Builder
	err := r.reader.Stream(r.t.Context(), pod(), req, func(data []byte) error { b.Write(data); return nil })
	return b.String(), err
}

func at(second int) string { return fmt.Sprintf("2026-01-02T03:04:%02d.123456789Z", second) }

func line(second int, tag, text string) string {
	return at(second) + " stdout " + tag + " " + text + "\n"
}

func TestStream(t *testing.T) {
	r := newRig(t)
	r.write("0.log", line(1, "F", "one")+line(2, "P", "tw")+line(2, "P", "o-")+line(2, "F", "2")+"not a log line\n"+
		at(3)+" stderr F:extra three\n"+line(4, "F", "")+line(5, "F", "five")+at(6)+" stdout F unfini")
	whole := "one\ntwo-2\nthree\n\nfive\n"
	for _, c := range []struct {
		name string
		req  *podplanev1.PodLogRequest
		want string
	}{
		{"all", &podplanev1.PodLogRequest{}, whole},
		{"by name", &podplanev1.PodLogRequest{Container: "a"}, whole},
		{"tail 0", &podplanev1.PodLogRequest{TailLines: proto.Int64(0)}, ""},
		{"tail beyond", &podplanev1.PodLogRequest{TailLines: proto.Int64(100)}, whole},
		{"since", &podplanev1.PodLogRequest{SinceTime: "2026-01-02T03:04:03Z"}, "three\n\nfive\n"},
		{"since now", &podplanev1.PodLogRequest{SinceSeconds: proto.Int64(5)}, ""},
		{"since ever", &podplanev1.PodLogRequest{SinceSeconds: proto.Int64(1 << 60)}, whole},
		{"limit", &podplanev1.PodLogRequest{LimitBytes: proto.Int64(6)}, "one\ntw"},
		{"timestamps", &podplanev1.PodLogRequest{Timestamps: true, LimitBytes: proto.Int64(77)}, at(1) + " one\n" + at(2) + " two-2\n" + at(3)[:5]},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := r.read(c.req)
			if err != nil || got != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestTail(t *testing.T) {
	r := newRig(t)
	r.write("0.log", line(1, "F", "one")+line(2, "P", "tw")+line(2, "P", "o-")+line(2, "F", "2")+line(3, "F", "three"))
	for n, want := range map[int64]string{1: "three\n", 2: "two-2\nthree\n", 3: "one\ntwo-2\nthree\n"} {
		if got, err := r.read(&podplanev1.PodLogRequest{TailLines: &n}); err != nil || got != want {
			t.Errorf("%d: got %q, %v, want %q", n, got, err, want)
		}
	}
}

func TestTailOfALargeFile(t *testing.T) {
	r := newRig(t)
	var b strings.Builder
	var want []string
	for i := range 3000 {
		text := fmt.Sprintf("%d-%s", i, strings.Repeat("x", i%700))
		if i == 2990 {
			text = strings.Repeat("y", 200<<10) // longer than any buffer
		}
		b.WriteString(line(i%60, "F", text))
		want = append(want, text)
	}
	r.write("0.log", b.String())
	for _, n := range []int64{1, 9, 10, 11, 500, 2999, 3000, 4000} {
		got, err := r.read(&podplanev1.PodLogRequest{TailLines: &n})
		if err != nil {
			t.Fatal(err)
		}
		if w := strings.Join(want[max(0, 3000-int(n)):], "\n") + "\n"; got != w {
			t.Errorf("%d lines: got %d bytes, want %d", n, len(got), len(w))
		}
	}
}

func TestWhichInstance(t *testing.T) {
	r := newRig(t)
	for i := range 3 {
		r.write(fmt.Sprintf("%d.log", i), line(1, "F", fmt.Sprint("instance ", i)))
	}
	for _, c := range []struct {
		name     string
		status   v1.ContainerStatus
		previous bool
		want     string
		words    string
	}{
		{name: "running", status: v1.ContainerStatus{State: running, RestartCount: 2}, want: "instance 2\n"},
		{name: "before the running one", status: v1.ContainerStatus{State: running, LastTerminationState: terminated, RestartCount: 2}, previous: true, want: "instance 1\n"},
		{name: "ended", status: v1.ContainerStatus{State: terminated, RestartCount: 1}, want: "instance 1\n"},
		{name: "between two", status: v1.ContainerStatus{State: waiting, LastTerminationState: terminated, RestartCount: 1}, want: "instance 1\n"},
		{name: "the last one between two", status: v1.ContainerStatus{State: waiting, LastTerminationState: terminated, RestartCount: 1}, previous: true, want: "instance 1\n"},
		{name: "no previous", status: v1.ContainerStatus{State: running}, previous: true, words: `previous terminated container "a" in pod "web" not found`},
		{name: "not started", status: v1.ContainerStatus{State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}}, words: `container "a" in pod "web" is waiting to start: ContainerCreating`},
		{name: "no image", status: v1.ContainerStatus{State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}, words: "trying and failing to pull image"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.statuses.set(c.status)
			got, err := r.read(&podplanev1.PodLogRequest{Previous: c.previous})
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if c.words != "" && (!fault.Is(err, fault.BadRequest) || !strings.Contains(err.Error(), c.words)) {
				t.Errorf("got %v, want %s", err, c.words)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	r := newRig(t)
	several := pod()
	several.Spec.Containers = append(several.Spec.Containers, v1.Container{Name: "b"})
	several.Spec.InitContainers = []v1.Container{{Name: "i"}}
	for _, c := range []struct {
		pod   *v1.Pod
		req   *podplanev1.PodLogRequest
		kind  fault.Kind
		words string
	}{
		{several, &podplanev1.PodLogRequest{}, fault.BadRequest, "a container name must be specified for pod web, choose one of: [a b] or one of the init containers: [i]"},
		{pod(), &podplanev1.PodLogRequest{Container: "../../x"}, fault.BadRequest, "container ../../x is not valid for pod web"},
		{pod(), &podplanev1.PodLogRequest{TailLines: proto.Int64(-1)}, fault.Invalid, "tailLines"},
		{pod(), &podplanev1.PodLogRequest{LimitBytes: proto.Int64(0)}, fault.Invalid, "limitBytes"},
		{pod(), &podplanev1.PodLogRequest{SinceSeconds: proto.Int64(0)}, fault.Invalid, "sinceSeconds"},
		{pod(), &podplanev1.PodLogRequest{SinceTime: "yesterday"}, fault.Invalid, "sinceTime"},
		{pod(), &podplanev1.PodLogRequest{SinceTime: "2026-01-02T03:04:05Z", SinceSeconds: proto.Int64(1)}, fault.Invalid, "at most one"},
		{pod(), &podplanev1.PodLogRequest{}, fault.NotFound, "is not there"},
	} {
		err := r.reader.Stream(t.Context(), c.pod, c.req, func([]byte) error { return errors.New("must not send") })
		if !fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%v: got %v: %v", c.req, fault.KindOf(err), err)
		}
	}
}

func TestALinkOutOfTheDirectoryIsNotFollowed(t *testing.T) {
	r := newRig(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(line(1, "F", "secret")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(r.dir, "0.log")); err != nil {
		t.Fatal(err)
	}
	if got, err := r.read(&podplanev1.PodLogRequest{}); err == nil || got != "" {
		t.Errorf("got %q, %v", got, err)
	}
}

// following is a log that is being followed.
type following struct {
	t    *testing.T
	data chan string
	err  chan error
}

func (r *rig) follow(req *podplanev1.PodLogRequest) *following {
	req.Follow = true
	f := &following{t: r.t, data: make(chan string, 64), err: make(chan error, 1)}
	go func() {
		f.err <- r.reader.Stream(r.t.Context(), pod(), req, func(data []byte) error { f.data <- string(data); return nil })
	}()
	return f
}

// expect collects what comes until it is what is wanted.
func (f *following) expect(want string) {
	f.t.Helper()
	got := ""
	deadline := time.After(10 * time.Second)
	for got != want {
		select {
		case d := <-f.data:
			got += d
		case err := <-f.err:
			f.t.Fatalf("it ended with %v after %q, want %q", err, got, want)
		case <-deadline:
			f.t.Fatalf("got %q, want %q", got, want)
		}
	}
}

func (f *following) ends() {
	f.t.Helper()
	select {
	case err := <-f.err:
		if err != nil {
			f.t.Error(err)
		}
	case <-time.After(10 * time.Second):
		f.t.Fatal("it does not end")
	}
}

func TestFollowOverRotationToTheEnd(t *testing.T) {
	r := newRig(t)
	r.write("0.log", line(1, "F", "old")+line(2, "F", "one"))
	f := r.follow(&podplanev1.PodLogRequest{TailLines: proto.Int64(1)})
	f.expect("one\n")
	r.write("0.log", line(3, "F", "two")+at(4)+" stdout F thr")
	f.expect("two\n")
	r.write("0.log", "ee\n")
	f.expect("three\n")
	// The runtime writes to the old file until it was told to open the new one.
	if err := os.Rename(filepath.Join(r.dir, "0.log"), filepath.Join(r.dir, "0.log.20260102-030405")); err != nil {
		t.Fatal(err)
	}
	r.write("0.log.20260102-030405", line(5, "F", "late"))
	f.expect("late\n")
	r.write("0.log", line(6, "F", "new"))
	f.expect("new\n")
	r.write("0.log", line(7, "F", "last words"))
	r.statuses.set(v1.ContainerStatus{State: terminated})
	f.expect("last words\n")
	f.ends()
}

// TestFollowMissesNoRotation holds a reader up while its log is rotated three times and the older files are compressed.
func TestFollowMissesNoRotation(t *testing.T) {
	for _, compressedToo := range []bool{false, true} {
		r := newRig(t)
		r.write("0.log", line(1, "F", "one"))
		held, got := make(chan struct{}), make(chan string, 64)
		first := make(chan struct{})
		done := make(chan error, 1)
		go func() {
			begun := false
			done <- r.reader.Stream(t.Context(), pod(), &podplanev1.PodLogRequest{Follow: true}, func(data []byte) error {
				if data == nil {
					return nil
				}
				if !begun {
					begun = true
					close(first)
					<-held
				}
				got <- string(data)
				return nil
			})
		}()
		<-first
		rotate := func(second int) {
			if err := os.Rename(filepath.Join(r.dir, "0.log"), filepath.Join(r.dir, fmt.Sprintf("0.log.20260102-0304%02d", second))); err != nil {
				t.Fatal(err)
			}
		}
		r.write("0.log", line(2, "F", "two"))
		rotate(2)
		r.write("0.log", line(3, "F", "three"))
		rotate(3)
		r.write("0.log", line(4, "F", "four")+line(5, "P", "fi"))
		rotate(5)
		r.write("0.log", line(6, "F", "ve")+line(7, "F", "six"))
		if compressedToo {
			r.compress("0.log.20260102-030402")
			r.compress("0.log.20260102-030403")
			r.write("0.log.20260102-030403", line(3, "F", "three")) // the original is about to be removed
		}
		r.write("0.log.20260102-030405.gz.tmp", "half of it")
		close(held)
		want, all := "one\ntwo\nthree\nfour\nfive\nsix\n", ""
		for deadline := time.After(10 * time.Second); all != want; {
			select {
			case d := <-got:
				all += d
			case err := <-done:
				t.Fatalf("it ended with %v after %q", err, all)
			case <-deadline:
				t.Fatalf("compressed %v: got %q, want %q", compressedToo, all, want)
			}
		}
		r.statuses.set(v1.ContainerStatus{State: terminated})
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// compress does what the rotation does with older files.
func (r *rig) compress(name string) {
	r.t.Helper()
	data, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		r.t.Fatal(err)
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(data); err != nil {
		r.t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		r.t.Fatal(err)
	}
	r.write(name+".gz", b.String())
	if err := os.Remove(filepath.Join(r.dir, name)); err != nil {
		r.t.Fatal(err)
	}
}

func TestFollowWhatHasEnded(t *testing.T) {
	r := newRig(t)
	r.write("0.log", line(1, "F", "all"))
	r.statuses.set(v1.ContainerStatus{State: waiting, LastTerminationState: terminated})
	f := r.follow(&podplanev1.PodLogRequest{})
	f.expect("all\n")
	f.ends()
}

func TestFollowEndsWithTheRestart(t *testing.T) {
	r := newRig(t)
	r.write("0.log", line(1, "F", "first"))
	f := r.follow(&podplanev1.PodLogRequest{})
	f.expect("first\n")
	r.statuses.set(v1.ContainerStatus{State: running, RestartCount: 1})
	f.ends()
}

func TestFollowEndsWithTheClient(t *testing.T) {
	r := newRig(t)
	r.write("0.log", line(1, "F", "x"))
	ctx, cancel := context.WithCancel(t.Context())
	err := r.reader.Stream(ctx, pod(), &podplanev1.PodLogRequest{Follow: true}, func(data []byte) error {
		if data != nil {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// FuzzStream looks for log files that take the reader down, and for tails that are not the end of the whole.
func FuzzStream(f *testing.F) {
	f.Add([]byte(line(1, "F", "one")+line(2, "P", "tw")+line(2, "F", "o")), int64(1))
	f.Add([]byte("\n\n  \n2026 stdout\n"+at(1)+" stdout F \n"+at(1)+" stderr P"), int64(2))
	f.Fuzz(func(t *testing.T, content []byte, n int64) {
		r := newRig(t)
		r.write("0.log", string(content))
		whole, err := r.read(&podplanev1.PodLogRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if n < 0 {
			return
		}
		tail, err := r.read(&podplanev1.PodLogRequest{TailLines: &n})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(whole, tail) {
			t.Errorf("the tail %q is not the end of %q", tail, whole)
		}
	})
}
