package cgroup_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podplane/podplane/internal/hostruntime"
	"github.com/podplane/podplane/internal/kubepods"
	"github.com/podplane/podplane/services/syncd/internal/cgroup"
)

// TestKernel sets limits with each driver that this host has and reads them back from the kernel.
func TestKernel(t *testing.T) {
	host, err := hostruntime.DetectHost()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("cgroupfs", func(t *testing.T) { testDriver(t, host, false) })
	if host.SystemdCgroup() {
		t.Run("systemd", func(t *testing.T) { testDriver(t, host, true) })
	}
}

func testDriver(t *testing.T, host hostruntime.Host, systemd bool) {
	root := fmt.Sprintf("ppcgroup%d", os.Getpid())
	tree := kubepods.Tree{Systemd: systemd, Root: root}
	pod := tree.Pod(kubepods.Burstable, "11111111-2222-3333-4444-555555555555")
	t.Cleanup(func() { removeTree(t, tree, root) })
	low, least := int64(32<<20), int64(16<<20)
	limits := cgroup.Limits{CPUShares: 512, CPUQuota: 50000, CPUPeriod: 100000, Memory: 64 << 20, Pids: 100, MemoryMin: &least, MemoryLow: &low}
	if err := cgroup.Set(pod, systemd, limits); err != nil {
		t.Fatal(err)
	}
	wantFiles(t, host, tree.Dir(pod), map[string]string{
		"cpu.shares": "512", "cpu.cfs_quota_us": "50000", "memory.limit_in_bytes": "67108864", "pids.max": "100",
	}, map[string]string{
		"cpu.weight": "20", "cpu.max": "50000 100000", "memory.max": "67108864", "memory.min": "16777216", "memory.low": "33554432", "pids.max": "100",
	})
	// Limits go away again, and setting the same twice is no harm.
	for range 2 {
		zero := int64(0)
		if err := cgroup.Set(pod, systemd, cgroup.Limits{CPUShares: 2, CPUPeriod: 100000, MemoryMin: &zero, MemoryLow: &zero}); err != nil {
			t.Fatal(err)
		}
	}
	wantFiles(t, host, tree.Dir(pod), map[string]string{
		"cpu.shares": "2", "cpu.cfs_quota_us": "-1", "memory.limit_in_bytes": fmt.Sprint(math.MaxInt64 &^ 4095),
	}, map[string]string{
		"cpu.weight": "1", "cpu.max": "max 100000", "memory.max": "max", "memory.min": "0", "memory.low": "0",
	})
	if !systemd {
		return
	}
	if state := unitState(t, pod); state != "active" {
		t.Errorf("slice %s is %s, want active", pod, state)
	}
	for range 2 { // one that is gone is no error
		if err := cgroup.Remove(pod); err != nil {
			t.Fatal(err)
		}
	}
	if state := unitState(t, pod); state != "inactive" {
		t.Errorf("slice %s is %s, want it to be forgotten", pod, state)
	}
	if _, err := os.Stat(filepath.Join(mount, tree.Dir(pod))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the cgroup of slice %s is still there: %v", pod, err)
	}
}

func removeTree(t *testing.T, tree kubepods.Tree, root string) {
	if tree.Systemd {
		if err := hostruntime.StopSlices(context.Background(), root+".slice"); err != nil {
			t.Error(err)
		}
		return
	}
	dirs, err := filepath.Glob(filepath.Join(mount, "*", root))
	if err != nil {
		t.Error(err)
	}
	for _, dir := range append(dirs, filepath.Join(mount, root)) {
		if err := hostruntime.RemoveCgroup(dir); err != nil {
			t.Error(err)
		}
	}
}

// wantFiles reads files of a cgroup, of v1 or v2 as the host has it.
func wantFiles(t *testing.T, host hostruntime.Host, dir string, v1, v2 map[string]string) {
	t.Helper()
	files := v1
	if host.CgroupV2 {
		files = v2
	}
	for file, value := range files {
		top := mount
		if !host.CgroupV2 {
			controller, _, _ := strings.Cut(file, ".")
			top = filepath.Join(mount, controller)
		}
		data, err := os.ReadFile(filepath.Join(top, dir, file))
		if err != nil {
			t.Error(err)
			continue
		}
		if got := strings.TrimSpace(string(data)); got != value {
			t.Errorf("%s of %s is %s, want %s", file, dir, got, value)
		}
	}
}

func unitState(t *testing.T, unit string) string {
	t.Helper()
	out, err := exec.Command("systemctl", "show", "--property", "ActiveState", "--value", unit).CombinedOutput()
	if err != nil {
		t.Fatalf("systemctl show %s: %v: %s", unit, err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestSumOfLimits(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"a/f": "3\n", "b/f": "4\n", "c/other": "100\n", "f": "1000\n", "unlimited/g": "max\n", "d/g": "1\n", "e/h": "x\n"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if sum, err := cgroup.Sum(dir, "f"); sum != 7 || err != nil {
		t.Errorf("sum is %d, %v, want 7", sum, err)
	}
	if sum, err := cgroup.Sum(dir, "g"); sum != math.MaxInt64 || err != nil {
		t.Errorf("sum with one that is unlimited is %d, %v", sum, err)
	}
	if _, err := cgroup.Sum(dir, "h"); err == nil {
		t.Error("no error for what is no number")
	}
	if _, err := cgroup.Sum(filepath.Join(dir, "nowhere"), "f"); !os.IsNotExist(err) {
		t.Errorf("of a directory that is not there: %v", err)
	}
}
