package gc_test

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/gc"
)

// runtime has one running container and opens its log anew.
type runtime struct {
	t       *testing.T
	path    string
	running bool
	fail    error
	reopens int
}

func (r *runtime) ListContainers(_ context.Context, f cri.Filter) ([]pod.Container, error) {
	if !r.running || f.PodUID != "u1" || f.Labels[pod.LabelContainerName] != "main" {
		return nil, nil
	}
	return []pod.Container{{ID: "c1", Name: "main", Attempt: 2, State: pod.ContainerRunning}}, nil
}

func (r *runtime) ReopenContainerLog(context.Context, string) error {
	r.reopens++
	if r.fail != nil {
		return r.fail
	}
	return os.WriteFile(r.path, nil, 0o640)
}

type pods struct {
	known     map[string]bool
	others    map[string]bool // another replica's
	forgotten []string
}

func (p *pods) Known(uid string) bool { return p.known[uid] }
func (p *pods) Owns(uid string) bool  { return !p.others[uid] }

func (p *pods) Forget(_ context.Context, uid, logDir string) error {
	p.forgotten = append(p.forgotten, uid+" "+filepath.Base(logDir))
	return nil
}

func setUp(t *testing.T) (*gc.Collector, *runtime, *pods, string) {
	t.Helper()
	dir := t.TempDir()
	logs := filepath.Join(dir, "logs", "default_a_u1", "main")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	r := &runtime{t: t, path: filepath.Join(logs, "2.log"), running: true}
	p := &pods{known: map[string]bool{"u1": true}}
	return gc.New(gc.Config{PodLogDir: filepath.Join(dir, "logs"), Root: dir, MaxSize: 100, Files: 3}, r, p, slog.New(slog.DiscardHandler)), r, p, logs
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return strings.Join(list, " ")
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
		t.Fatal(err)
	}
}

func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r, _, logs := setUp(t)
		write(t, r.path, "small")
		if err := c.Rotate(t.Context()); err != nil || r.reopens != 0 {
			t.Fatalf("a small log: %v, %d reopened", err, r.reopens)
		}
		for i := range 4 {
			write(t, r.path, strings.Repeat(string(rune('a'+i)), 200))
			if err := c.Rotate(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if got, want := names(t, logs), "2.log 2.log.20000101-000002.gz 2.log.20000101-000003"; got != want {
			t.Errorf("files are %s, want %s", got, want)
		}
		f, err := os.Open(filepath.Join(logs, "2.log.20000101-000002.gz"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(z); err != nil || string(text) != strings.Repeat("c", 200) {
			t.Errorf("compressed log reads %q, %v", text, err)
		}
	})
}

func TestRotationFails(t *testing.T) {
	c, r, _, logs := setUp(t)
	write(t, r.path, strings.Repeat("x", 200))
	r.fail = errors.New("no")
	if err := c.Rotate(t.Context()); !errors.Is(err, r.fail) {
		t.Errorf("error is %v", err)
	}
	if got := names(t, logs); got != "2.log" {
		t.Errorf("not moved back: %s", got)
	}
	r.running = false
	r.fail = nil
	if err := c.Rotate(t.Context()); err != nil || names(t, logs) != "2.log" {
		t.Errorf("the log of an ended container was touched: %v, %s", err, names(t, logs))
	}
}

func TestForeignLogsAreLeftAlone(t *testing.T) {
	c, r, p, logs := setUp(t)
	write(t, r.path, strings.Repeat("x", 200))
	p.known = nil
	if err := c.Rotate(t.Context()); err != nil || names(t, logs) != "2.log" {
		t.Errorf("the log of an unknown pod was touched: %v, %s", err, names(t, logs))
	}
}

func TestOrphanDirectories(t *testing.T) {
	c, _, p, logs := setUp(t)
	for _, uid := range []string{"u1", "u2"} {
		if err := os.MkdirAll(filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(logs))), "pods", uid), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(filepath.Dir(filepath.Dir(logs)), "default_b_u2"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := c.RemoveOrphans(t.Context()); err != nil || len(p.forgotten) > 0 {
		t.Fatalf("a directory that was only just made: %v, forgot %v", err, p.forgotten)
	}
	old := time.Now().Add(-time.Hour)
	for _, uid := range []string{"u1", "u2"} {
		if err := os.Chtimes(filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(logs))), "pods", uid), old, old); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.RemoveOrphans(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(p.forgotten, ","); got != "u2 default_b_u2" {
		t.Errorf("forgot %q", got)
	}
}

func TestDeadLinks(t *testing.T) {
	dir := t.TempDir()
	logs, links := filepath.Join(dir, "logs"), filepath.Join(dir, "containers")
	c := gc.New(gc.Config{PodLogDir: logs, LogLinkDir: links, Root: dir, MaxSize: 100, Files: 3}, &runtime{t: t}, &pods{}, slog.New(slog.DiscardHandler))
	if err := c.RemoveDeadLinks(); err != nil {
		t.Errorf("without the directory: %v", err)
	}
	for _, d := range []string{logs, links} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(logs, "0.log"), "")
	write(t, filepath.Join(links, "file.log"), "")
	for name, to := range map[string]string{"live.log": filepath.Join(logs, "0.log"), "dead.log": filepath.Join(logs, "1.log"), "foreign.log": filepath.Join(dir, "none")} {
		if err := os.Symlink(to, filepath.Join(links, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.RemoveDeadLinks(); err != nil {
		t.Fatal(err)
	}
	if got, want := names(t, links), "file.log foreign.log live.log"; got != want {
		t.Errorf("left: %s, want %s", got, want)
	}
}

// The figures that hold where nothing is configured: 10 MiB, five files with the current one, all but the newest two compressed.
func TestRotationByDefault(t *testing.T) {
	const mib = 1 << 20
	synctest.Test(t, func(t *testing.T) {
		_, r, p, logs := setUp(t)
		dir := filepath.Dir(filepath.Dir(filepath.Dir(logs)))
		c := gc.New(gc.Config{PodLogDir: filepath.Join(dir, "logs"), Root: dir, MaxSize: 10 * mib, Files: 5}, r, p, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		line := "2026-01-01T00:00:00Z stdout F " + strings.Repeat("x", 97) + "\n"
		write(t, r.path, strings.Repeat(line, 10*mib/len(line)))
		time.Sleep(11 * time.Second)
		if r.reopens != 0 {
			t.Error("a log of less than 10 MiB was rotated")
		}
		for i := range 7 {
			write(t, r.path, strings.Repeat(line, 10*mib/len(line)+1))
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if r.reopens != i+1 {
				t.Fatalf("%d rotations after %d times 10 MiB", r.reopens, i+1)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		list, total := strings.Fields(names(t, logs)), int64(0)
		for i, name := range list {
			info, err := os.Stat(filepath.Join(logs, name))
			if err != nil {
				t.Fatal(err)
			}
			total += info.Size()
			if compressed := strings.HasSuffix(name, ".gz"); compressed != (i > 0 && i < len(list)-1) {
				t.Errorf("file %s of %q", name, list)
			}
		}
		if len(list) != 5 || total > 11*mib {
			t.Errorf("%d bytes in %q", total, list)
		}
	})
}
