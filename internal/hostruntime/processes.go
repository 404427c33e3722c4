package hostruntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// processTable maps each process to its parent.
func processTable() (map[int]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	table := make(map[int]int, len(entries))
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		content, err := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if err != nil {
			// It has ended since.
			continue
		}
		// pid (name, which may have any characters) state ppid ...; a zombie has nothing left to kill.
		fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
		if len(fields) < 2 || fields[0] == "Z" {
			continue
		}
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			table[pid] = parent
		}
	}
	return table, nil
}

func descendants(table map[int]int, roots []int) []int {
	wanted := make(map[int]bool, len(roots))
	for _, pid := range roots {
		wanted[pid] = true
	}
	var found []int
	for grown := true; grown; {
		grown = false
		for pid, parent := range table {
			if wanted[parent] && !wanted[pid] {
				wanted[pid] = true
				found = append(found, pid)
				grown = true
			}
		}
	}
	return found
}

// KillMentioning kills all processes that have an argument with a path below a directory, and returns when they have ended. It spares
// this process and the runtime's own, which are for Purge: their children have to be found first.
func KillMentioning(ctx context.Context, dir string) error {
	table, err := processTable()
	if err != nil {
		return err
	}
	for pid := range table {
		args := commandLine(pid)
		if pid == os.Getpid() || len(args) == 0 || isRuntimeProgram(args[0]) {
			continue
		}
		if !slices.ContainsFunc(args, func(arg string) bool { return strings.Contains(arg, dir+"/") }) {
			continue
		}
		if err := kill(ctx, pid); err != nil {
			return err
		}
	}
	return nil
}

// kill returns when the process has ended.
func kill(ctx context.Context, pid int) error {
	p, err := openProcess(pid)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return err
	}
	if err = p.signal(unix.SIGKILL); err == nil {
		err = p.wait(ctx)
	}
	return errors.Join(err, p.close())
}

func isRuntimeProgram(path string) bool {
	switch filepath.Base(path) {
	case "containerd", "containerd-shim-runc-v2", "runc", "ctr":
		return true
	}
	return false
}
