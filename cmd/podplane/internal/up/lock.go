package up

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lock is held by the one `podplane up` of a run directory; the kernel frees
// it however that process ends.
type lock struct{ file *os.File }

func lockPath(runDir string) string { return filepath.Join(runDir, "up.lock") }

// acquire takes the lock, or says which process holds it.
func acquire(runDir string) (*lock, error) {
	f, err := os.OpenFile(lockPath(runDir), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("podplane is up already (process %d, run directory %s); stop it with `podplane down`", holder(runDir), runDir)
		}
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	if err := f.Truncate(0); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("write lock: %w", err)
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("write lock: %w", err)
	}
	return &lock{file: f}, nil
}

func (l *lock) release() { _ = l.file.Close() }

// holder is the process that the lock file names; 0: none.
func holder(runDir string) int {
	data, err := os.ReadFile(lockPath(runDir))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0
	}
	return pid
}

// held says whether a `podplane up` holds the lock now.
func held(runDir string) (bool, error) {
	f, err := os.OpenFile(lockPath(runDir), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open lock: %w", err)
	}
	defer func() { _ = f.Close() }()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// stopRunning ends the `podplane up` of the run directory, if there is one, and
// waits for its end. It says whether there was one.
func stopRunning(ctx context.Context, runDir string) (bool, error) {
	up, err := held(runDir)
	if err != nil || !up {
		return false, err
	}
	pid := holder(runDir)
	if pid <= 1 {
		return true, fmt.Errorf("a podplane holds %s but its process is unknown", lockPath(runDir))
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return true, fmt.Errorf("stop podplane up (process %d): %w", pid, err)
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if up, err := held(runDir); err != nil || !up {
			return true, err
		}
		select {
		case <-ctx.Done():
			return true, fmt.Errorf("podplane up (process %d) has not ended: %w", pid, ctx.Err())
		case <-tick.C:
		}
	}
}
