package signals_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/evictd/internal/policy"
	"github.com/podplane/podplane/services/evictd/internal/signals"
)

const meminfo = "MemTotal:       1000 kB\nMemFree:         400 kB\nMemAvailable:    700 kB\nInactive(file):  100 kB\n"

// host makes a directory with the files of a host.
func host(t *testing.T, files map[string]string) signals.Paths {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return signals.Paths{Proc: filepath.Join(dir, "proc"), Cgroup: filepath.Join(dir, "cgroup"), Nodefs: dir}
}

func TestMemory(t *testing.T) {
	for name, test := range map[string]struct {
		files               map[string]string
		available, capacity int64
	}{
		"version 2":                    {map[string]string{"proc/meminfo": meminfo, "cgroup/memory.stat": "anon 5\ninactive_file 51200\n"}, 450 << 10, 1000 << 10},
		"version 2 without statistics": {map[string]string{"proc/meminfo": meminfo}, 500 << 10, 1000 << 10},
		"version 2 in a container": {map[string]string{
			"proc/meminfo": meminfo, "cgroup/memory.current": "204800\n", "cgroup/memory.max": "512000\n", "cgroup/memory.stat": "inactive_file 102400\n",
		}, 400 << 10, 500 << 10},
		"version 1": {map[string]string{
			"proc/meminfo": meminfo, "cgroup/memory/memory.usage_in_bytes": "716800\n", "cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
			"cgroup/memory/memory.stat": "cache 1\ninactive_file 7\ntotal_inactive_file 204800\n",
		}, 500 << 10, 1000 << 10},
		"version 1 in a container": {map[string]string{
			"proc/meminfo": meminfo, "cgroup/memory/memory.usage_in_bytes": "307200\n", "cgroup/memory/memory.limit_in_bytes": "512000\n",
			"cgroup/memory/memory.stat": "total_inactive_file 0\n",
		}, 200 << 10, 500 << 10},
	} {
		o := signals.NewReader(host(t, test.files)).Memory()
		if o.Err != nil || o.Available != test.available || o.Capacity != test.capacity || o.Signal != policy.MemoryAvailable {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

func TestWhatIsMissingHere(t *testing.T) {
	r := signals.NewReader(host(t, map[string]string{"proc/loadavg": "0 0 0 nonsense 1"}))
	for _, o := range r.Read() {
		nodefs := o.Signal == policy.NodefsAvailable || o.Signal == policy.NodefsInodesFree
		if (o.Err == nil) != nodefs {
			t.Errorf("%s: %v", o.Signal, o.Err)
		}
	}
	if err := r.WatchPressure(t.Context(), func() {}); !fault.Is(err, fault.Unimplemented) {
		t.Errorf("pressure: %v", err)
	}
}

func TestPIDs(t *testing.T) {
	r := signals.NewReader(host(t, map[string]string{
		"proc/loadavg": "0.20 0.18 0.12 3/250 11206\n", "proc/sys/kernel/pid_max": "4194304\n", "proc/sys/kernel/threads-max": "1000\n",
	}))
	list := r.Read()
	if o := list[len(list)-1]; o.Err != nil || o.Available != 750 || o.Capacity != 1000 {
		t.Errorf("%+v", o)
	}
}

// TestThisHost measures for real: everything can be measured on a host that tests run on.
func TestThisHost(t *testing.T) {
	r := signals.NewReader(signals.Paths{Nodefs: filepath.Join(t.TempDir(), "not", "yet")})
	r.SetImagefs(os.TempDir(), nil)
	list := r.Read()
	if len(list) != len(policy.Signals) {
		t.Fatalf("%d signals", len(list))
	}
	for i, o := range list {
		if o.Signal != policy.Signals[i] || o.Err != nil || o.Available <= 0 || o.Available > o.Capacity || time.Since(o.At) > time.Minute {
			t.Errorf("%+v", o)
		}
	}
	if !r.OneFS() {
		t.Error("the temporary directory is on two file systems")
	}
	if o := r.Imagefs(); o.Err != nil || o.Capacity != list[3].Capacity {
		t.Errorf("imagefs alone: %+v", o)
	}
	r.SetImagefs("/proc", nil)
	if r.OneFS() {
		t.Error("the temporary directory and /proc are one file system")
	}
}

// TestWatchPressureEnds: where the kernel offers it, watching ends with its context; where not, the error says so.
func TestWatchPressureEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- signals.NewReader(signals.Paths{}).WatchPressure(ctx, func() {}) }()
	cancel()
	select {
	case err := <-done:
		if !fault.Is(err, fault.Canceled) && !fault.Is(err, fault.Unimplemented) {
			t.Errorf("ended with %v", err)
		}
		if fault.Is(err, fault.Unimplemented) {
			t.Logf("not offered here: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("does not end")
	}
}

func FuzzLoadavg(f *testing.F) {
	f.Add("0.20 0.18 0.12 1/80 11206")
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := signals.ThreadsOf(s); err == nil && (n < 0 || !strings.Contains(s, "/")) {
			t.Fatalf("%q: %d", s, n)
		}
	})
}
