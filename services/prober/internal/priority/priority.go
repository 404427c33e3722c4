// Package priority gives the process a greater share of busy processors. A prober that waits for its turn behind the
// load that it should judge is late, and takes its own lateness for the application's.
package priority

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxPasses bounds the search for threads that were started while others were changed.
const maxPasses = 10

// Set gives every thread of the process this niceness, -20 to 19; threads that are started later inherit it. Without
// the capability SYS_NICE a niceness below the present one is refused by the kernel.
func Set(nice int) error {
	done := map[int]bool{}
	for range maxPasses {
		entries, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("list own threads: %w", err)
		}
		found := false
		for _, e := range entries {
			tid, err := strconv.Atoi(e.Name())
			if err != nil || done[tid] {
				continue
			}
			found, done[tid] = true, true
			if err := unix.Setpriority(unix.PRIO_PROCESS, tid, nice); err != nil && err != unix.ESRCH {
				return fmt.Errorf("set niceness of a thread to %d: %w", nice, err)
			}
		}
		if !found {
			return nil
		}
	}
	return nil
}
