package stats_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/services/evictd/internal/feed"
	"github.com/podplane/podplane/services/evictd/internal/policy"
	"github.com/podplane/podplane/services/evictd/internal/stats"
)

type source struct {
	stats []cri.PodStats
	err   error
	hang  bool
}

func (s *source) ListPodStats(ctx context.Context, _ cri.Filter) ([]cri.PodStats, error) {
	if s.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.stats, s.err
}

func memory(n uint64) *cri.MemoryUsage { return &cri.MemoryUsage{At: time.Now(), WorkingSet: &n} }

func pods(uids ...string) []feed.Pod {
	var list []feed.Pod
	for _, uid := range uids {
		list = append(list, feed.Pod{Pod: policy.Pod{
			UID: uid, Namespace: "default", Name: "web", Containers: []policy.ContainerUsage{{Name: "app", MemoryRequest: 5}},
		}})
	}
	return list
}

func write(t *testing.T, path string, size int) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, make([]byte, size), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestCollect(t *testing.T) {
	root, logs := t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "pods/a/volumes/kubernetes.io~empty-dir/cache/one"), 64<<10)
	if err := os.Link(filepath.Join(root, "pods/a/volumes/kubernetes.io~empty-dir/cache/one"), filepath.Join(root, "pods/a/volumes/kubernetes.io~empty-dir/cache/two")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "pods/a/volumes/kubernetes.io~configmap/x/ignored"), 64<<10)
	write(t, filepath.Join(logs, "default_web_a/app/0.log"), 32<<10)
	s := &source{stats: []cri.PodStats{
		{UID: "a", Attempt: 1, Memory: memory(1000), Processes: &cri.ProcessUsage{Count: 12}, Containers: []cri.ContainerStats{
			{Name: "app", Memory: memory(600), WritableLayer: &cri.FilesystemUsage{UsedBytes: 77, InodesUsed: 3}},
			{Name: "injected", Memory: memory(300)},
		}},
		{UID: "a", Attempt: 0, Memory: memory(9999)},
		{UID: "b", Containers: []cri.ContainerStats{{Name: "app", Memory: memory(40)}, {Name: "app2"}}},
		{UID: "foreign", Memory: memory(1)},
	}}
	ages := 0
	c := stats.NewCollector(s, root, logs, func(time.Duration) { ages++ })
	in := pods("a", "b", "c")
	got, err := c.Collect(t.Context(), in, true)
	if err != nil || len(got) != 3 {
		t.Fatalf("%v, %v", got, err)
	}
	a, b, none := got[0], got[1], got[2]
	if a.Memory != 1000 || a.Processes != 12 || !a.Measured || a.Disk.Writable != 77 || a.Disk.WritableInodes != 3 {
		t.Errorf("a: %+v", a)
	}
	if a.Containers[0].Memory != 600 || a.Containers[0].MemoryRequest != 5 || a.Containers[0].Disk != 77 || a.Containers[1].Name != "injected" {
		t.Errorf("containers: %+v", a.Containers)
	}
	// The file with two names counts once; with it its directory and the one above.
	if d := a.Disk; d.Volumes < 64<<10 || d.Volumes > 100<<10 || d.VolumeInodes != 3 || d.Logs < 32<<10 || d.Logs > 64<<10 || d.LogInodes != 3 {
		t.Errorf("disk: %+v", d)
	}
	if b.Memory != 40 || b.Processes != 2 || b.Disk.Volumes != 0 {
		t.Errorf("b: %+v", b)
	}
	if none.Measured || none.Memory != 0 {
		t.Errorf("c: %+v", none)
	}
	if ages != 3 {
		t.Errorf("%d ages observed", ages)
	}
	if len(in[0].Containers) != 1 || in[0].Containers[0].Memory != 0 {
		t.Errorf("the input was changed: %+v", in[0])
	}
	got, err = c.Collect(t.Context(), in, false)
	if err != nil || got[0].Disk.Volumes != 0 {
		t.Errorf("without disk: %+v, %v", got[0].Disk, err)
	}
}

// TestOtherFileSystem: what is mounted below a volume is not the volume's.
func TestOtherFileSystem(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "pods/a/volumes/kubernetes.io~empty-dir/memory")
	write(t, filepath.Join(dir, "below"), 1)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatalf("%v: run the tests as root", err)
	}
	defer func() { _ = syscall.Unmount(dir, 0) }()
	write(t, filepath.Join(dir, "big"), 512<<10)
	got, err := stats.NewCollector(&source{}, root, root, func(time.Duration) {}).Collect(t.Context(), pods("a"), true)
	if err != nil || got[0].Disk.Volumes > 64<<10 {
		t.Errorf("%+v, %v", got[0].Disk, err)
	}
}

func TestWithoutAnswer(t *testing.T) {
	broken := errors.New("broken")
	got, err := stats.NewCollector(&source{err: broken}, t.TempDir(), t.TempDir(), func(time.Duration) {}).Collect(t.Context(), pods("a"), true)
	if !errors.Is(err, broken) || len(got) != 1 || got[0].Measured {
		t.Errorf("%+v, %v", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got, err = stats.NewCollector(&source{hang: true}, t.TempDir(), t.TempDir(), func(time.Duration) {}).Collect(ctx, pods("a"), false)
	if err == nil || len(got) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}
