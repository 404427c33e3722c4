package testkit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/podplane/podplane/internal/hostruntime"
)

const cgroupMount = "/sys/fs/cgroup"

var cgroupRoots atomic.Int32

// CgroupRoot names a cgroup, from the top, for one test's pods. Whatever was made below it is removed in every hierarchy when the test ends; no process
// may be left in it.
func CgroupRoot(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("podplane-test-%d-%d", os.Getpid(), cgroupRoots.Add(1))
	t.Cleanup(func() {
		entries, err := os.ReadDir(cgroupMount)
		errs := []error{err, hostruntime.RemoveCgroup(filepath.Join(cgroupMount, name))}
		for _, e := range entries {
			if e.IsDir() {
				errs = append(errs, hostruntime.RemoveCgroup(filepath.Join(cgroupMount, e.Name(), name)))
			}
		}
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	})
	return name
}
