package hostruntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	taskDir    = "io.containerd.runtime.v2.task"
	cniResults = "/var/lib/cni/results"
	// lockPoll is how often a start that waits for another start looks again.
	lockPoll = 50 * time.Millisecond
)

// Purge ends containerd, its shims and all containers at once, by force, and removes what the runtime has on the host: mounts,
// cgroups, network, rules and directories. It works from the kernel's tables, whether containerd runs or not, and may be called
// again after a failure.
func Purge(ctx context.Context, config Config) error {
	tasks, err := config.killAll(ctx)
	if err != nil {
		return err
	}
	errs := []error{
		removeCgroups(tasks),
		UnmountUnder(config.State, config.Root),
		config.removeNetwork(ctx),
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("purge runtime in %s: %w", config.State, err)
	}
	for _, dir := range []string{config.State, config.Root} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("purge runtime: %w", err)
		}
	}
	return nil
}

// tasks are the IDs of the containers and sandboxes that have a bundle.
func (c *Config) tasks() []string {
	dirs, err := filepath.Glob(filepath.Join(c.State, "run", taskDir, "*", "*"))
	if err != nil {
		// Only a malformed pattern is an error: State has brackets, and then there is nothing that could be found.
		return nil
	}
	ids := make([]string, 0, len(dirs))
	for _, dir := range dirs {
		ids = append(ids, filepath.Base(dir))
	}
	return ids
}

// killAll kills until nothing is found any more, as a shim may have started something in between, and returns the tasks that there
// were.
func (c *Config) killAll(ctx context.Context) ([]string, error) {
	for {
		tasks := c.tasks()
		table, err := processTable()
		if err != nil {
			return nil, err
		}
		victims := c.daemons(table)
		for _, pid := range victims {
			// Stopped, they start nothing more while their children are looked for. One that has just ended is fine.
			_ = unix.Kill(pid, unix.SIGSTOP)
		}
		if table, err = processTable(); err != nil {
			return nil, err
		}
		victims = append(victims, descendants(table, victims)...)
		victims = append(victims, cgroupProcesses(tasks)...)
		if len(victims) == 0 {
			return tasks, nil
		}
		for _, pid := range victims {
			if err := kill(ctx, pid); err != nil {
				return nil, err
			}
		}
	}
}

// daemons are the processes of this runtime that are known by their command line.
func (c *Config) daemons(table map[int]int) []int {
	var found []int
	for pid := range table {
		args := commandLine(pid)
		if len(args) == 0 || !isRuntimeProgram(args[0]) {
			continue
		}
		for _, arg := range args[1:] {
			if strings.HasPrefix(arg, c.State+"/") {
				found = append(found, pid)
				break
			}
		}
	}
	return found
}

// UnmountUnder unmounts everything that is mounted in the directories, the latest first.
func UnmountUnder(dirs ...string) error {
	content, err := os.ReadFile(procSelfMounts)
	if err != nil {
		return fmt.Errorf("read mount table: %w", err)
	}
	points := mountPointsUnder(string(content), dirs)
	var errs []error
	for i := len(points) - 1; i >= 0; i-- {
		if err := unix.Unmount(points[i], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", points[i], err))
		}
	}
	return errors.Join(errs...)
}

func mountPointsUnder(mountinfo string, dirs []string) []string {
	var points []string
	// mountinfo escapes the characters that part its fields.
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		point := unescape.Replace(fields[4])
		for _, dir := range dirs {
			if strings.HasPrefix(point, dir+"/") {
				points = append(points, point)
			}
		}
	}
	return points
}

func (c *Config) removeNetwork(ctx context.Context) error {
	var errs []error
	if _, err := findProgram("iptables"); err == nil {
		errs = append(errs, c.removeRules(ctx))
	}
	ports, err := filepath.Glob(filepath.Join("/sys/class/net", c.Bridge, "brif", "*"))
	if err != nil {
		errs = append(errs, err)
	}
	sort.Strings(ports)
	// The pods' ends went with their namespaces, which the kernel clears a moment later; not waiting for that needs the other ends
	// deleted, which may race with it.
	for _, port := range ports {
		_ = removeLink(ctx, filepath.Base(port))
	}
	errs = append(errs, removeLink(ctx, c.Bridge))
	results, err := filepath.Glob(filepath.Join(cniResults, c.network()+"-*"))
	if err != nil {
		errs = append(errs, err)
	}
	for _, result := range results {
		errs = append(errs, removeFile(result))
	}
	return errors.Join(errs...)
}

// lock keeps two starts of the same runtime apart. The returned function lets go of it.
func (c *Config) lock(ctx context.Context) (func(), error) {
	if err := os.MkdirAll(c.Root, 0o711); err != nil {
		return nil, fmt.Errorf("make runtime directory: %w", err)
	}
	file, err := os.OpenFile(c.lockFile(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	ticker := time.NewTicker(lockPoll)
	defer ticker.Stop()
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", c.lockFile(), err), file.Close())
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("lock %s, which another start holds: %w", c.lockFile(), ctx.Err()), file.Close())
		}
	}
}
