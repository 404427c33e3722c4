package cgroup_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/services/syncd/internal/cgroup"
)

const mount = "/sys/fs/cgroup"

// Weight and Shares are Kubernetes' conversion and its inverse, as far as whole numbers allow.
func TestWeight(t *testing.T) {
	for _, c := range []struct{ shares, weight uint64 }{
		{0, 0}, {1, 1}, {2, 1}, {102, 4}, {1024, 39}, {262144, 10000}, {1 << 40, 10000},
	} {
		if got := cgroup.Weight(c.shares); got != c.weight {
			t.Errorf("the weight of %d shares is %d, want %d", c.shares, got, c.weight)
		}
	}
	if got := cgroup.Shares(0); got != 0 {
		t.Errorf("no weight is %d shares", got)
	}
	for w := uint64(1); w <= 10000; w++ {
		shares := cgroup.Shares(w)
		if shares < 2 || shares > 262144 {
			t.Fatalf("weight %d is %d shares", w, shares)
		}
		if back := cgroup.Weight(shares); back != w && back != w-1 {
			t.Fatalf("weight %d is %d shares, which are weight %d", w, shares, back)
		}
	}
}

func TestSumShares(t *testing.T) {
	dir := t.TempDir()
	for name, shares := range map[string]string{"pod1": "102\n", "pod2": "1024\n", "gone": ""} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if shares != "" {
			write(t, filepath.Join(dir, name, "cpu.shares"), shares)
		}
	}
	write(t, filepath.Join(dir, "cpu.shares"), "5000\n") // the class's own
	if sum, err := cgroup.Sum(dir, "cpu.shares"); err != nil || sum != 1126 {
		t.Errorf("sum %d, %v; want 1126", sum, err)
	}
	if _, err := cgroup.Sum(filepath.Join(dir, "none"), "cpu.shares"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of a directory that is not there: %v", err)
	}
	write(t, filepath.Join(dir, "pod1", "cpu.shares"), "many")
	if _, err := cgroup.Sum(dir, "cpu.shares"); err == nil || !strings.Contains(err.Error(), "pod1") {
		t.Errorf("what is no number: %v", err)
	}
}

// The kernel has what was set, also after it was changed, and a limit that goes.
func TestSet(t *testing.T) {
	name := testkit.CgroupRoot(t)
	pod := filepath.Join("/", name, "kubepods", "podu-1")
	set := func(l cgroup.Limits) {
		t.Helper()
		if err := cgroup.Set(pod, false, l); err != nil {
			t.Fatal(err)
		}
	}
	set(cgroup.Limits{CPUShares: 512, CPUQuota: 50_000, CPUPeriod: 100_000, Memory: 64 << 20, Pids: 50})
	want(t, pod, map[string]string{
		"cpu/cpu.shares": "512", "cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000", "memory/memory.limit_in_bytes": "67108864", "pids/pids.max": "50",
	}, map[string]string{"cpu.weight": "20", "cpu.max": "50000 100000", "memory.max": "67108864", "pids.max": "50"})
	set(cgroup.Limits{CPUShares: 2, CPUPeriod: 100_000, Memory: 128 << 20, Pids: 50})
	want(t, pod, map[string]string{
		"cpu/cpu.shares": "2", "cpu/cpu.cfs_quota_us": "-1", "memory/memory.limit_in_bytes": "134217728",
	}, map[string]string{"cpu.weight": "1", "cpu.max": "max 100000", "memory.max": "134217728"})
	set(cgroup.Limits{CPUShares: 2, CPUPeriod: 100_000})
	want(t, pod, map[string]string{"memory/memory.limit_in_bytes": "9223372036854771712"}, map[string]string{"memory.max": "max"})
	if err := cgroup.Set(pod, false, cgroup.Limits{CPUShares: 2, CPUQuota: 1, CPUPeriod: 100_000}); err == nil || !strings.Contains(err.Error(), pod) {
		t.Errorf("a quota that the kernel refuses: %v, want an error that names the cgroup", err)
	}
}

func want(t *testing.T, name string, v1, v2 map[string]string) {
	t.Helper()
	files := v1
	if _, err := os.Stat(filepath.Join(mount, "cgroup.controllers")); err == nil {
		files = v2
	}
	for file, value := range files {
		controller, base := filepath.Split(file)
		data, err := os.ReadFile(filepath.Join(mount, controller, name, base))
		if err != nil {
			t.Error(err)
			continue
		}
		if got := strings.TrimSpace(string(data)); got != value {
			t.Errorf("%s is %s, want %s", file, got, value)
		}
	}
}

// The sizes are what the limits of huge pages are keyed by: the kernel's own names.
func TestHugePageSizes(t *testing.T) {
	known := make(map[string]bool)
	entries, err := os.ReadDir("/sys/kernel/mm/hugepages")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		known[e.Name()] = true
	}
	for _, size := range cgroup.HugePageSizes() {
		kb := map[byte]uint64{'K': 1, 'M': 1 << 10, 'G': 1 << 20}
		n, err := strconv.ParseUint(size[:len(size)-2], 10, 64)
		if err != nil || !known[fmt.Sprintf("hugepages-%dkB", n*kb[size[len(size)-2]])] {
			t.Errorf("size %q is none of the kernel's: %v", size, known)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
