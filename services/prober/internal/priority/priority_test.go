package priority_test

import (
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podplane/podplane/services/prober/internal/priority"
)

// TestSet makes every thread nicer, which needs no capability.
func TestSet(t *testing.T) {
	if err := priority.Set(3); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		// The system call answers 20 - nice; a thread that has ended meanwhile has none.
		if got, err := unix.Getpriority(unix.PRIO_PROCESS, tid); err == nil && got != 20-3 {
			t.Errorf("thread %d has niceness %d", tid, 20-got)
		}
	}
}
