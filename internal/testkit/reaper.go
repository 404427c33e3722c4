package testkit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/podplane/podplane/internal/hostruntime"
)

const (
	// reaperVariable tells a test binary that it is a reaper, and of what.
	reaperVariable = "PODPLANE_TESTKIT_REAPER"
	// reapTimeout bounds the removal of one node.
	reapTimeout = time.Minute
	slots       = 254
)

// slot is a number that one node on this host has at a time; its directory, bridge and subnet follow from it.
type slot struct {
	name string
	dir  string
	cidr string
	lock *os.File
}

func takeSlot() (*slot, error) {
	locks := filepath.Join(os.TempDir(), "podplane-testkit")
	if err := os.MkdirAll(locks, 0o755); err != nil {
		return nil, fmt.Errorf("take a number: %w", err)
	}
	for _, i := range rand.Perm(slots) {
		number := i + 1
		name := fmt.Sprintf("ppt%d", number)
		lock, err := os.OpenFile(filepath.Join(locks, name), os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return nil, fmt.Errorf("take a number: %w", err)
		}
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return &slot{name: name, dir: filepath.Join(os.TempDir(), name), cidr: fmt.Sprintf("10.189.%d.0/24", number), lock: lock}, nil
		}
		_ = lock.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("take a number: %w", err)
		}
	}
	return nil, fmt.Errorf("take a number: all %d are in use", slots)
}

// estate is what a node leaves.
type estate struct {
	Config       hostruntime.Config
	Dir          string
	CgroupParent string
	// Log is where the reaper says what went wrong.
	Log string
}

// remove removes everything of a node. It may be called for one that was never started.
func (e *estate) remove(ctx context.Context) error {
	if err := hostruntime.KillMentioning(ctx, e.Dir); err != nil {
		return err
	}
	if err := hostruntime.Purge(ctx, e.Config); err != nil {
		return err
	}
	hierarchies, err := filepath.Glob("/sys/fs/cgroup/*" + e.CgroupParent)
	if err != nil {
		return err
	}
	scopes := []string{"/sys/fs/cgroup" + e.CgroupParent}
	if !strings.HasPrefix(e.CgroupParent, "/") {
		scopes = []string{"/sys/fs/cgroup/" + e.CgroupParent}
		hierarchies = nil
		if err := hostruntime.StopSlices(ctx, e.CgroupParent); err != nil {
			return err
		}
	}
	for _, dir := range append(hierarchies, scopes...) {
		if err := hostruntime.RemoveCgroup(dir); err != nil {
			return err
		}
	}
	if err := hostruntime.UnmountUnder(e.Dir); err != nil {
		return err
	}
	if err := os.RemoveAll(e.Dir); err != nil {
		return fmt.Errorf("remove directory: %w", err)
	}
	return nil
}

// reaper is the process that removes a node when this one lets go of the pipe or ends.
type reaper struct {
	estate estate
	cmd    *exec.Cmd
	pipe   io.WriteCloser
}

func startReaper(s *slot, e estate) (*reaper, error) {
	defer func() { _ = s.lock.Close() }()
	e.Log = s.lock.Name() + ".log"
	config, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("start reaper: %w", err)
	}
	// The working directory of a test is its package's.
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), reaperVariable+"="+string(config))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// The lock lives as long as a process has it open.
	cmd.ExtraFiles = []*os.File{s.lock}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start reaper: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start reaper: %w", err)
	}
	return &reaper{estate: e, cmd: cmd, pipe: pipe}, nil
}

// finish lets the reaper work and waits for it.
func (r *reaper) finish() error {
	if err := r.pipe.Close(); err != nil {
		return fmt.Errorf("tell reaper: %w", err)
	}
	if err := r.cmd.Wait(); err != nil {
		said, readErr := os.ReadFile(r.estate.Log)
		return errors.Join(fmt.Errorf("remove node in %s: %w: %s", r.estate.Dir, err, said), readErr)
	}
	return nil
}

// reap is the main function of a reaper; it returns its exit code.
func reap(config string) int {
	var e estate
	if err := json.Unmarshal([]byte(config), &e); err != nil {
		return 2
	}
	// Nothing is ever written to the pipe: this returns when its other end is closed.
	_, err := io.Copy(io.Discard, os.Stdin)
	ctx, cancel := context.WithTimeout(context.Background(), reapTimeout)
	defer cancel()
	if err = errors.Join(err, e.remove(ctx)); err != nil {
		_ = os.WriteFile(e.Log, []byte(err.Error()+"\n"), 0o644)
		return 1
	}
	if err := os.Remove(e.Log); err != nil && !errors.Is(err, os.ErrNotExist) {
		return 1
	}
	return 0
}
