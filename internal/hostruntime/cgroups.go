package hostruntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// taskCgroups are the cgroup directories of tasks in all hierarchies. cgroupfs names them by the ID, systemd puts it in a scope's
// name.
func taskCgroups(tasks []string) []string {
	if len(tasks) == 0 {
		return nil
	}
	wanted := make(map[string]bool, len(tasks))
	for _, id := range tasks {
		wanted[id] = true
		wanted["cri-containerd-"+id+".scope"] = true
	}
	var found []string
	// Errors are directories that have gone since, which are not wanted any more.
	_ = filepath.WalkDir(cgroupRoot, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() && wanted[entry.Name()] {
			found = append(found, path)
			return filepath.SkipDir
		}
		return nil
	})
	return found
}

func cgroupProcesses(tasks []string) []int {
	var pids []int
	for _, dir := range taskCgroups(tasks) {
		pids = append(pids, processesUnder(dir)...)
	}
	return pids
}

// processesUnder are the processes in a cgroup directory and those below it.
func processesUnder(dir string) []int {
	var pids []int
	// Errors are directories that have gone since, which are not wanted any more.
	_ = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.Name() != "cgroup.procs" {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		for _, field := range strings.Fields(string(content)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 && !isZombie(pid) {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids
}

func isZombie(pid int) bool {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.HasPrefix(string(content[strings.LastIndexByte(string(content), ')')+1:]), " Z")
}

// removeCgroups removes the tasks' cgroups and the parents that this leaves empty.
func removeCgroups(tasks []string) error {
	var errs []error
	for _, dir := range taskCgroups(tasks) {
		if err := RemoveCgroup(dir); err != nil {
			errs = append(errs, err)
			continue
		}
		for parent := filepath.Dir(dir); filepath.Dir(parent) != cgroupRoot && parent != cgroupRoot; parent = filepath.Dir(parent) {
			if unix.Rmdir(parent) != nil {
				// Somebody else is in it.
				break
			}
		}
	}
	return errors.Join(errs...)
}

// StopSlices stops a slice of systemd and all in it, after which systemd forgets it and has removed its cgroups. On a host without systemd nothing
// is done, nor for a slice that is not there.
func StopSlices(ctx context.Context, slice string) error {
	if info, err := os.Lstat(systemdRunning); err != nil || !info.IsDir() {
		return nil
	}
	systemctl, err := findProgram("systemctl")
	if err != nil {
		return fmt.Errorf("stop slice %s: %w", slice, err)
	}
	out, err := exec.CommandContext(ctx, systemctl, "show", "--property", "ActiveState", "--value", slice).CombinedOutput()
	if err != nil {
		return fmt.Errorf("look for slice %s: %w: %s", slice, err, out)
	}
	if strings.TrimSpace(string(out)) == "inactive" {
		return nil
	}
	if out, err := exec.CommandContext(ctx, systemctl, "stop", slice).CombinedOutput(); err != nil {
		return fmt.Errorf("stop slice %s: %w: %s", slice, err, out)
	}
	return nil
}

// RemoveCgroup removes a cgroup directory and those below it. They must have no processes. A cgroup stays busy for a moment after
// its last process ended: that is waited for, for two seconds.
func RemoveCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := RemoveCgroup(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	deadline := time.Now().Add(2 * time.Second)
	for {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
