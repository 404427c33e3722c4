package bus_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/conformance"
)

// disk is an ext4 file system in a file. What is written and not synced stays
// in the memory of that file system and does not reach the file: a copy of the
// file is what a power cut leaves.
type disk struct{ image, dir string }

func newDisk(t *testing.T) disk {
	t.Helper()
	d := disk{image: filepath.Join(t.TempDir(), "image"), dir: filepath.Join(t.TempDir(), "mounted")}
	if err := os.WriteFile(d.image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(d.image, 128<<20); err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", d.image)
	d.mount(t)
	return d
}

func (d disk) mount(t *testing.T) {
	t.Helper()
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	run(t, "mount", "-o", "loop,commit=300", d.image, d.dir)
	t.Cleanup(func() { run(t, "umount", d.dir) })
}

// cut gives the disk as it would be after a power cut at this moment.
func (d disk) cut(t *testing.T) disk {
	t.Helper()
	after := disk{image: d.image + ".cut", dir: d.dir + ".cut"}
	run(t, "cp", "--sparse=always", d.image, after.image)
	after.mount(t)
	return after
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// TestPowerCut cuts the power below a server that syncs before each
// acknowledgement, and below one that does not to see that the test would notice.
func TestPowerCut(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root to mount a file system")
	}
	t.Run("SyncAlways", func(t *testing.T) {
		l, after := cutUnderLoad(t, false)
		ctx, cancel := context.WithTimeout(t.Context(), patient)
		defer cancel()
		server := startChild(t, after.dir+"/store")
		tcp := overTCP{server.url}
		c := tcp.Connect(t, bus.Config{Service: owner})
		l.reopen(t, ctx, c)
		l.check(t, ctx)
	})
	t.Run("SyncPeriodic", func(t *testing.T) {
		l, after := cutUnderLoad(t, true)
		ctx, cancel := context.WithTimeout(t.Context(), patient)
		defer cancel()
		server := startChild(t, after.dir+"/store")
		c := overTCP{server.url}.Connect(t, bus.Config{Service: owner})
		l.reopen(t, ctx, c)
		list, err := l.b.List(ctx, ">")
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d of %d acknowledged records are left without syncing", len(list), len(l.ack.puts))
		if len(list) >= len(l.ack.puts) {
			t.Error("nothing was lost: this test does not cut the power")
		}
	})
}

// cutUnderLoad loads a server on a disk, kills it and cuts the power.
func cutUnderLoad(t *testing.T, lazy bool) (*load, disk) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	d := newDisk(t)
	server := &child{store: d.dir + "/store", lazy: lazy}
	server.start(t)
	defer server.kill(t)
	c := overTCP{server.url}.Connect(t, bus.Config{Service: owner})
	l := &load{}
	l.reopen(t, ctx, c)
	loading, stop := context.WithCancel(ctx)
	l.start(t, loading, 4)
	l.progress(t, ctx, 300)
	stop()
	l.wg.Wait()
	server.kill(t)
	return l, d.cut(t)
}

func (l *load) reopen(t *testing.T, ctx context.Context, c *bus.Conn) {
	t.Helper()
	var err error
	if l.b, err = bus.Open(ctx, c, conformance.Texts("killed")); err != nil {
		t.Fatal(err)
	}
	if l.j, err = bus.OpenStream(ctx, c, conformance.Journal("journal")); err != nil {
		t.Fatal(err)
	}
}
