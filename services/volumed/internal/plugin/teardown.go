package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podplane/podplane/services/volumed/internal/mounts"
)

// Report is how a teardown went.
type Report struct {
	// Errors are by volume, Err is about none of them. Without any, nothing is left of the pod's volumes.
	Errors map[string]error
	Err    error
	// Detached are mounts that were busy, and were detached: they are not to be seen any more, but somebody still
	// uses them.
	Detached []string
}

func (r *Report) fail(volume string, err error) {
	if volume == "" {
		r.Err = errors.Join(r.Err, err)
		return
	}
	if r.Errors == nil {
		r.Errors = map[string]error{}
	}
	r.Errors[volume] = errors.Join(r.Errors[volume], err)
}

// Teardown unmounts and removes everything below the pod's volumes directory, whether a spec knows of it or not. It
// unmounts before it removes, and removes nothing that is still mounted. With detach, mounts that are busy are detached.
func (s *Volumes) Teardown(ctx context.Context, uid string, detach bool) Report {
	var r Report
	if err := checkName("pod UID", uid); err != nil {
		r.fail("", err)
		return r
	}
	podDir := filepath.Join(s.root, podsDir, uid)
	top := filepath.Join(podDir, volumesDir)
	s.unmountAll(top, detach, &r)
	dir, err := openDir(top)
	if errors.Is(err, fs.ErrNotExist) {
		return r
	}
	if err != nil {
		r.fail("", fmt.Errorf("open the volumes' directory: %w", err))
		return r
	}
	defer dir.Close()
	removeAll(ctx, dir, &r)
	if len(r.Errors) > 0 || r.Err != nil {
		return r
	}
	if err := unix.Rmdir(top); err != nil && !errors.Is(err, unix.ENOENT) {
		r.fail("", fmt.Errorf("remove the volumes' directory: %w", err))
		return r
	}
	// The pod's own directory is for syncd to remove; for a pod that nobody knows there is nobody else.
	_ = unix.Rmdir(podDir)
	return r
}

func (s *Volumes) unmountAll(top string, detach bool, r *Report) {
	points, err := mounts.Below(top)
	if err != nil {
		r.fail("", err)
		return
	}
	for _, point := range points {
		err := mounts.Unmount(point, false)
		if detach && mounts.Busy(err) {
			if err = mounts.Unmount(point, true); err == nil {
				r.Detached = append(r.Detached, point)
			}
		}
		if err != nil {
			r.fail(volumeOf(top, point), err)
		}
	}
}

// volumeOf is the name of the volume that a path below a pod's volumes directory belongs to; empty for none.
func volumeOf(top, path string) string {
	parts := strings.Split(strings.TrimPrefix(path, top+"/"), "/")
	if len(parts) < 2 || !strings.HasPrefix(path, top+"/") {
		return ""
	}
	return parts[1]
}

// removeAll removes the volumes in the open directory, except those with an error: something is mounted there.
func removeAll(ctx context.Context, dir *os.File, r *Report) {
	plugins, err := dir.Readdirnames(-1)
	if err != nil {
		r.fail("", fmt.Errorf("list the volumes' directory: %w", err))
		return
	}
	for _, plugin := range plugins {
		pluginDir, err := openDir(filepath.Join(dir.Name(), plugin))
		if err != nil {
			if err := mounts.RemoveTree(ctx, dir, plugin); err != nil { // not a directory
				r.fail("", err)
			}
			continue
		}
		volumes, err := pluginDir.Readdirnames(-1)
		if err != nil {
			r.fail("", fmt.Errorf("list the volumes of %s: %w", plugin, err))
		}
		for _, v := range volumes {
			if r.Errors[v] != nil {
				continue
			}
			if err := mounts.RemoveTree(ctx, pluginDir, v); err != nil {
				r.fail(v, err)
			}
		}
		pluginDir.Close()
		if err := unix.Unlinkat(int(dir.Fd()), plugin, unix.AT_REMOVEDIR); err != nil && len(r.Errors) == 0 {
			r.fail("", fmt.Errorf("remove the directory of %s: %w", plugin, err))
		}
	}
}

// openDir opens a directory, but no link to one.
func openDir(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Leftovers lists the UIDs of the pods that have a volumes directory.
func (s *Volumes) Leftovers() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.root, podsDir))
	if err != nil {
		return nil, fmt.Errorf("list the pods' directories: %w", err)
	}
	var uids []string
	for _, e := range entries {
		if checkName("", e.Name()) != nil || !e.IsDir() {
			continue
		}
		info, err := os.Lstat(filepath.Join(s.root, podsDir, e.Name(), volumesDir))
		if err == nil && info.IsDir() {
			uids = append(uids, e.Name())
		}
	}
	return uids, nil
}
