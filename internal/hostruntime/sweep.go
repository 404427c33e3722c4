package hostruntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Sweep is Purge but for Root, which keeps its images: it ends containerd and every container at once, also those that an earlier
// containerd left in a container that was killed, and removes their mounts, cgroups, network, rules and State's content. cgroup is the
// cgroup below which all pods are, such as /podplane; it goes too. The directory State itself may be a mount point and stays.
func Sweep(ctx context.Context, config Config, cgroup string) error {
	cgroup = filepath.Clean("/" + cgroup)
	if cgroup == "/" {
		return errors.New("sweep runtime: the cgroup of the pods must not be the top: that is everybody's")
	}
	tasks, err := config.killAll(ctx)
	if err != nil {
		return err
	}
	errs := []error{removeCgroups(tasks), sweepCgroup(ctx, cgroup), UnmountUnder(config.State, config.Root), config.removeNetwork(ctx)}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("sweep runtime in %s: %w", config.State, err)
	}
	entries, err := os.ReadDir(config.State)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("sweep runtime: %w", err)
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(config.State, entry.Name())); err != nil {
			return fmt.Errorf("sweep runtime: %w", err)
		}
	}
	return nil
}

// sweepCgroup kills what runs in a cgroup of every hierarchy, and removes it.
func sweepCgroup(ctx context.Context, cgroup string) error {
	dirs, err := filepath.Glob(filepath.Join(cgroupRoot, "*", cgroup))
	if err != nil {
		return fmt.Errorf("cgroup %s: %w", cgroup, err)
	}
	dirs = append(dirs, filepath.Join(cgroupRoot, cgroup)) // of cgroup v2
	var errs []error
	for _, dir := range dirs {
		for _, pid := range processesUnder(dir) {
			if err := kill(ctx, pid); err != nil {
				return err
			}
		}
		if err := RemoveCgroup(dir); err != nil && !errors.Is(err, unix.ENOTDIR) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
