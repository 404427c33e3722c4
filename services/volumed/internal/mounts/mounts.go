package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Tmpfs are the options of a tmpfs.
type Tmpfs struct {
	// Size limits it, in bytes; 0 leaves the kernel's default, half of the memory.
	Size int64
	// Mode are the permissions of its root, with the setgid bit where wished (02777).
	Mode uint32
	// GID owns its root, when not nil.
	GID *int64
	// NoExec, in addition to nosuid and nodev, which are always set.
	NoExec bool
}

// MountTmpfs mounts a tmpfs on dir, which the caller has opened: nobody can put another directory in its place. It
// is never swapped out where the kernel can promise that (6.4). The root has its owner and mode from the start: who
// finds it mounted finds it complete.
func MountTmpfs(dir *os.File, o Tmpfs) error {
	opts := []string{fmt.Sprintf("mode=%o", o.Mode)}
	if o.Size > 0 {
		opts = append(opts, fmt.Sprintf("size=%d", o.Size))
	}
	if o.GID != nil {
		opts = append(opts, fmt.Sprintf("gid=%d", *o.GID))
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if o.NoExec {
		flags |= unix.MS_NOEXEC
	}
	target := fmt.Sprintf("/proc/self/fd/%d", dir.Fd())
	err := unix.Mount("tmpfs", target, "tmpfs", flags, strings.Join(append(opts, "noswap"), ","))
	if errors.Is(err, unix.EINVAL) { // an older kernel
		err = unix.Mount("tmpfs", target, "tmpfs", flags, strings.Join(opts, ","))
	}
	if err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", dir.Name(), err)
	}
	return nil
}

// IsTmpfs says whether the open directory is on a tmpfs.
func IsTmpfs(dir *os.File) (bool, error) {
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &s); err != nil {
		return false, fmt.Errorf("statfs %s: %w", dir.Name(), err)
	}
	return s.Type == unix.TMPFS_MAGIC, nil
}

// IsMounted says whether path itself is the root of a mount. A path that does not exist is not.
func IsMounted(path string) (bool, error) {
	ok, err := mountinfo.Mounted(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for a mount on %s: %w", path, err)
	}
	return ok, nil
}

// Below lists the mount points at and below dir from the mount table, the deepest and newest first: the order in which
// they can be unmounted. A point with several mounts on top of each other is in it as often.
func Below(dir string) ([]string, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", dir, err)
	}
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	points := make([]string, 0, len(infos))
	for _, m := range slices.Backward(infos) { // the table is in the order of mounting
		points = append(points, m.Mountpoint)
	}
	slices.SortStableFunc(points, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	return points, nil
}

// Unmount unmounts what is on top at path. With lazy it is detached even while it is in use. A path where nothing is
// mounted is no error.
func Unmount(path string, lazy bool) error {
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	err := unix.Unmount(path, flags)
	if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fmt.Errorf("unmount %s: %w", path, err)
}

// Busy says whether an error of Unmount means that somebody still uses the mount.
func Busy(err error) bool { return errors.Is(err, unix.EBUSY) }
