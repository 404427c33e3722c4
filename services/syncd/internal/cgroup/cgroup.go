// Package cgroup makes cgroups for pods and sets their limits, with both drivers and both versions of cgroups.
//
// The pods' cgroups belong to syncd: it makes them before the runtime puts the sandbox in, changes their limits when the pod's resources change, and removes
// them with the pod. What is below them is the runtime's. Nothing is remembered here: the kernel is asked each time.
package cgroup

import (
	"fmt"
	"math"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
)

// Limits are what a cgroup may use. Zero values but CPUShares' mean no limit.
type Limits struct {
	CPUShares uint64
	// CPUQuota are the microseconds in each CPUPeriod.
	CPUQuota  int64
	CPUPeriod uint64
	Memory    int64
	// MemoryMin and MemoryLow are what the kernel leaves to it when memory is short: at all costs, and as far as it can. Only of v2; nil: as it is.
	MemoryMin, MemoryLow *int64
	Pids                 int64
	// Hugepages are bytes by page size, as the kernel names it (2MB).
	Hugepages map[string]uint64
}

// unlimited is what the kernel is told where there is no limit.
const unlimited = -1

// Set makes the cgroup where it is not there and sets its limits. name is a path with cgroupfs, or a slice (a-b.slice) with systemd.
func Set(name string, systemd bool, l Limits) error {
	m, err := open(name, systemd)
	if err != nil {
		return fmt.Errorf("open cgroup %s: %w", name, err)
	}
	if err := m.Apply(unlimited); err != nil { // no process is put in
		return fmt.Errorf("make cgroup %s: %w", name, err)
	}
	if err := m.Set(resources(l)); err != nil {
		return fmt.Errorf("set the limits of cgroup %s: %w", name, err)
	}
	return nil
}

func open(name string, systemd bool) (cgroups.Manager, error) {
	config := &cgroups.Cgroup{Systemd: systemd, Resources: &cgroups.Resources{SkipDevices: true, SkipFreezeOnSet: true}}
	if systemd {
		config.Name, config.Parent = name, parentSlice(name)
	} else {
		config.Path = path.Join("/", name)
	}
	return manager.New(config)
}

// parentSlice is the slice that a slice is in: a-b.slice is in a.slice.
func parentSlice(slice string) string {
	stem := strings.TrimSuffix(slice, ".slice")
	if i := strings.LastIndexByte(stem, '-'); i > 0 {
		return stem[:i] + ".slice"
	}
	return "-.slice"
}

func resources(l Limits) *cgroups.Resources {
	r := &cgroups.Resources{SkipDevices: true, SkipFreezeOnSet: true, CpuShares: l.CPUShares, CpuQuota: unlimited, CpuPeriod: l.CPUPeriod, Memory: unlimited}
	if cgroups.IsCgroup2UnifiedMode() {
		r.CpuWeight = Weight(l.CPUShares)
		r.CpuShares = 0
	}
	if l.CPUQuota > 0 {
		r.CpuQuota = l.CPUQuota
	}
	if l.Memory > 0 {
		r.Memory = l.Memory
	}
	if l.Pids > 0 {
		r.PidsLimit = &l.Pids
	}
	r.Unified = unified(l)
	for size, limit := range l.Hugepages {
		r.HugetlbLimit = append(r.HugetlbLimit, &cgroups.HugepageLimit{Pagesize: size, Limit: limit})
	}
	return r
}

// unified are the settings that only v2 has.
func unified(l Limits) map[string]string {
	if !cgroups.IsCgroup2UnifiedMode() {
		return nil
	}
	var files map[string]string
	for file, value := range map[string]*int64{FileMemoryMin: l.MemoryMin, FileMemoryLow: l.MemoryLow} {
		if value == nil {
			continue
		}
		if files == nil {
			files = make(map[string]string, 2)
		}
		files[file] = strconv.FormatInt(*value, 10)
	}
	return files
}

// Remove removes a slice and those below it from systemd, with their cgroups. Nothing may run in them.
func Remove(slice string) error {
	m, err := open(slice, true)
	if err != nil {
		return fmt.Errorf("open slice %s: %w", slice, err)
	}
	if err := m.Destroy(); err != nil {
		return fmt.Errorf("remove slice %s: %w", slice, err)
	}
	return nil
}

// Weight is the weight of cgroup v2 that Kubernetes uses for shares of v1: 2 to 262144 become 1 to 10000.
func Weight(shares uint64) uint64 {
	const minShares, maxShares = 2, 262144
	if shares == 0 {
		return 0
	}
	shares = max(minShares, min(maxShares, shares))
	return 1 + (shares-minShares)*9999/(maxShares-minShares)
}

// Shares is the inverse of Weight.
func Shares(weight uint64) uint64 {
	const minShares, maxShares = 2, 262144
	if weight == 0 {
		return 0
	}
	return minShares + (weight-1)*(maxShares-minShares)/9999
}

// Files of the kernel's that are added up.
const (
	FileShares    = "cpu.shares"
	FileWeight    = "cpu.weight"
	FileMemoryMin = "memory.min"
	FileMemoryLow = "memory.low"
)

// Sum adds up the numbers in a file of the cgroups directly in a directory, so that a class of pods has as much as its pods. What has no limit counts
// as the greatest number.
func Sum(dir, file string) (uint64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	var sum uint64
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name(), file))
		if os.IsNotExist(err) {
			continue // it went while we looked
		}
		if err != nil {
			return 0, err
		}
		text := strings.TrimSpace(string(data))
		if text == "max" {
			return math.MaxInt64, nil
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read %s of %s: %w", file, e.Name(), err)
		}
		sum += n
	}
	return sum, nil
}

// HugePageSizes are the sizes of huge pages whose use the kernel can limit here, as it names them.
func HugePageSizes() []string {
	if _, err := os.Stat("/sys/fs/cgroup/hugetlb"); err == nil {
		return cgroups.HugePageSizes()
	}
	controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	if err == nil && strings.Contains(string(controllers), "hugetlb") {
		return cgroups.HugePageSizes()
	}
	return nil
}
