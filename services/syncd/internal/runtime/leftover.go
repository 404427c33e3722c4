package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
)

// When whoever asked containerd to start a container goes away (a syncd that is killed), containerd gives the start up half-way. It can
// be left with a container's first process that waits for its start for ever, in a container that is "created" or "exited" to CRI: it is
// refused to start (it is starting), to stop (it does not run) and to be removed (it is starting, or runs), until containerd itself
// starts again. So, once the runtime refuses to start or to remove a container that does not run as far as it knows, what runs in the
// container's cgroup is killed, and containerd is told to forget that process: CRI does not wait for the end of one that it never
// knew to run (docs/decisions/0020).

const (
	// settleTimeout is how long a start that was interrupted may still come to an end by itself, and how long the runtime may take to
	// notice that a process has gone.
	settleTimeout = 1500 * time.Millisecond
	settleTick    = 100 * time.Millisecond
)

// refused says whether the runtime answered and would not do what it was asked.
func refused(err error) bool {
	switch fault.KindOf(err) {
	case fault.None, fault.Unavailable, fault.Canceled, fault.DeadlineExceeded, fault.NotFound, fault.Unimplemented:
		return false
	}
	return true
}

// resume starts a container that was created before, perhaps by a process that was killed while it was starting it.
func (e *Executor) resume(ctx context.Context, uid, id string) error {
	err := e.cri.StartContainer(ctx, id)
	if !refused(err) {
		return err
	}
	state := pod.ContainerCreated
	begun := func(ctx context.Context) bool {
		c, serr := e.cri.ContainerStatus(ctx, id)
		if serr == nil {
			state = c.State
		}
		return serr != nil || state != pod.ContainerCreated
	}
	if !settles(ctx, begun) {
		if kerr := e.killLeftover(ctx, uid, id); kerr != nil {
			return errors.Join(err, kerr)
		}
		settles(ctx, begun)
	}
	if state == pod.ContainerRunning {
		return nil // the start that was under way has come to its end
	}
	return err
}

// removeSandbox removes a sandbox, if need be after what its containers left running.
func (e *Executor) removeSandbox(ctx context.Context, id string) error {
	remove := func() error { return e.cri.RemoveSandbox(ctx, id) }
	err := remove()
	if !refused(err) {
		return err
	}
	list, lerr := e.cri.ListContainers(ctx, cri.Filter{SandboxID: id})
	if lerr != nil {
		return errors.Join(err, lerr)
	}
	for i := range list {
		if list[i].State == pod.ContainerRunning {
			continue
		}
		if cerr := e.clear(ctx, list[i].Labels[pod.LabelPodUID], list[i].ID); cerr != nil {
			return errors.Join(err, cerr)
		}
	}
	return again(ctx, remove)
}

// removeContainer removes a container that does not run, if need be after what it left running.
func (e *Executor) removeContainer(ctx context.Context, uid string, c *pod.Container) error {
	remove := func() error { return e.cri.RemoveContainer(ctx, c.ID) }
	err := remove()
	if !refused(err) || c.State == pod.ContainerRunning {
		return err
	}
	if cerr := e.clear(ctx, uid, c.ID); cerr != nil {
		return errors.Join(err, cerr)
	}
	return again(ctx, remove)
}

// removeBusy removes the cgroups of a pod of which the runtime has nothing any more, after what still runs in them: when RunPodSandbox is cut off
// at a certain moment, containerd keeps the sandbox's first process and its own record of it, while its CRI removes the sandbox as asked.
func (e *Executor) removeBusy(ctx context.Context, uid string, cgroups Cgroups, busy error) error {
	ids := make(map[string]bool)
	for _, dir := range cgroups.paths(uid) {
		if err := containersIn(dir, ids); err != nil {
			return errors.Join(busy, err)
		}
	}
	for id := range ids {
		if err := e.clear(ctx, uid, id); err != nil {
			return errors.Join(busy, err)
		}
		if err := e.cri.DeleteRecord(ctx, id); err != nil && !fault.Is(err, fault.Unimplemented) {
			return errors.Join(busy, err)
		}
	}
	settles(ctx, func(context.Context) bool {
		busy = e.removePod(cgroups, uid)
		return !errors.Is(busy, unix.EBUSY)
	})
	return busy
}

// containersIn collects the IDs of the containers whose cgroups are in a pod's.
func containersIn(podCgroup string, ids map[string]bool) error {
	entries, err := os.ReadDir(podCgroup)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if id := containerName.FindString(entry.Name()); entry.IsDir() && id != "" {
			ids[id] = true
		}
	}
	return err
}

// containerName is a container's ID in the name of its cgroup: drivers put more around it.
var containerName = regexp.MustCompile("[0-9a-f]{64}")

// clear ends what an interrupted start left of a container that does not run.
func (e *Executor) clear(ctx context.Context, uid, id string) error {
	if err := e.killLeftover(ctx, uid, id); err != nil {
		return err
	}
	// The end of the process is noticed a little later; where CRI waits for it, the task is gone then already.
	err := again(ctx, func() error { return e.cri.DeleteTask(ctx, id) })
	if fault.Is(err, fault.Unimplemented) {
		return nil // not containerd
	}
	return err
}

// again does something until it is not refused any more, or settleTimeout.
func again(ctx context.Context, do func() error) (err error) {
	settles(ctx, func(context.Context) bool {
		err = do()
		return !refused(err)
	})
	return err
}

// settles waits for a condition for settleTimeout.
func settles(ctx context.Context, condition func(context.Context) bool) bool {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	tick := time.NewTicker(settleTick)
	defer tick.Stop()
	for !condition(ctx) {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// killLeftover kills what runs in a container's cgroup.
func (e *Executor) killLeftover(ctx context.Context, uid, id string) error {
	if uid == "" || id == "" {
		return nil
	}
	cgroups, err := e.cgroups(ctx)
	if err != nil {
		return err
	}
	pids := make(map[int]bool)
	for _, dir := range cgroups.paths(uid) {
		if err := processesOf(dir, id, pids); err != nil {
			return fmt.Errorf("look for processes that container %s left: %w", id, err)
		}
	}
	if pids[0] {
		return fmt.Errorf("container %s has processes that can't be seen from here (another PID namespace): restart the container runtime", id)
	}
	for p := range pids {
		if err := killIn(p, id); err != nil {
			return fmt.Errorf("kill process %d, which container %s left: %w", p, id, err)
		}
	}
	return nil
}

// processesOf collects the processes of a container from a pod's cgroup. Drivers name the container's cgroup differently, all with its ID.
func processesOf(podCgroup, id string, pids map[int]bool) error {
	return filepath.WalkDir(podCgroup, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() || d.Name() != "cgroup.procs" || !strings.Contains(strings.TrimPrefix(path, podCgroup), id) {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
				return nil // it went meanwhile; or a threaded cgroup, whose processes are those of its parent
			}
			return err
		}
		for field := range strings.FieldsSeq(string(data)) {
			n, err := strconv.Atoi(field)
			if err != nil {
				return fmt.Errorf("parse %s: %w", path, err)
			}
			pids[n] = true
		}
		return nil
	})
}

// killIn kills a process if it is the container's beyond doubt: its number may have become another's.
func killIn(pid int, id string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !strings.Contains(string(data), id) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}
