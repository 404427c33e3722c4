package gc

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
)

const (
	// stampFormat sorts by time; it is in UTC, which never goes back.
	stampFormat    = "20060102-150405"
	compressedTail = ".gz"
	unfinishedTail = ".tmp"
)

// rotate moves a running container's log aside and makes the runtime open a new one.
func (c *Collector) rotate(ctx context.Context, f logFile) error {
	running := pod.ContainerRunning
	list, err := c.runtime.ListContainers(ctx, cri.Filter{PodUID: f.uid, State: &running, Labels: map[string]string{pod.LabelContainerName: f.container}})
	if err != nil {
		return fmt.Errorf("find the container of %s: %w", f.path, err)
	}
	i := slices.IndexFunc(list, func(x pod.Container) bool { return x.Attempt == f.attempt })
	if i < 0 {
		return nil // it has ended: its log grows no more
	}
	if err := c.tidy(f.path, c.cfg.Files-2); err != nil {
		return err
	}
	aside := f.path + "." + c.now().UTC().Format(stampFormat)
	if err := os.Rename(f.path, aside); err != nil {
		return fmt.Errorf("move the log %s aside: %w", f.path, err)
	}
	if err := c.runtime.ReopenContainerLog(ctx, list[i].ID); err != nil {
		return errors.Join(fmt.Errorf("open the log of container %s again: %w", list[i].ID, err), os.Rename(aside, f.path))
	}
	return nil
}

// tidy compresses what was rotated earlier and keeps the newest of it.
func (c *Collector) tidy(path string, keep int) error {
	rotated, err := filepath.Glob(globEscape(path) + ".*")
	if err != nil {
		return fmt.Errorf("list the rotated logs of %s: %w", path, err)
	}
	var errs []error
	rotated = slices.DeleteFunc(rotated, func(name string) bool {
		unfinished := strings.HasSuffix(name, unfinishedTail)
		if unfinished {
			errs = append(errs, os.Remove(name))
		}
		return unfinished
	})
	slices.Sort(rotated) // by time stamp
	for len(rotated) > max(0, keep) {
		errs = append(errs, os.Remove(rotated[0]))
		rotated = rotated[1:]
	}
	for _, name := range rotated {
		if !strings.HasSuffix(name, compressedTail) {
			errs = append(errs, compress(name))
		}
	}
	return errors.Join(errs...)
}

// globEscape makes a path match only itself.
func globEscape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// compress replaces a file by its compressed form.
func compress(path string) (err error) {
	in, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("compress a log: %w", err)
	}
	defer in.Close()
	part := path + unfinishedTail
	out, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("compress a log: %w", err)
	}
	z := gzip.NewWriter(out)
	_, copyErr := io.Copy(z, in)
	if err := errors.Join(copyErr, z.Close(), out.Close()); err != nil {
		return errors.Join(fmt.Errorf("compress the log %s: %w", path, err), os.Remove(part))
	}
	if err := os.Rename(part, path+compressedTail); err != nil {
		return fmt.Errorf("compress the log %s: %w", path, err)
	}
	return os.Remove(path)
}
