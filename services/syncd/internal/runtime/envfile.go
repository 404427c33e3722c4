package runtime

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/services/syncd/internal/envfile"
)

// maxEnvFile bounds a file of variables.
const maxEnvFile = 1 << 20

// fileValue reads a variable from a file that the pod wrote into one of its volumes.
func fileValue(volumes map[string]string, ref *v1.FileKeySelector) (value string, ok bool, err error) {
	dir := volumes[ref.VolumeName]
	if dir == "" {
		return "", false, fmt.Errorf("volume %q is not set up", ref.VolumeName)
	}
	data, err := readBeneath(dir, ref.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, missing(ref.Optional, "file %q not found in volume %q", ref.Path, ref.VolumeName)
	}
	if err != nil {
		return "", false, fmt.Errorf("read file %q of volume %q: %w", ref.Path, ref.VolumeName, err)
	}
	value, ok, err = envfile.Lookup(string(data), ref.Key)
	if err != nil {
		return "", false, fmt.Errorf("read file %q of volume %q: %w", ref.Path, ref.VolumeName, err)
	}
	if !ok {
		return "", false, missing(ref.Optional, "couldn't find key %v in file %v of volume %v", ref.Key, ref.Path, ref.VolumeName)
	}
	return value, true, nil
}

// readBeneath reads a regular file below a directory in which somebody else may do as they like: links lead nowhere but to what is in it.
func readBeneath(dir, path string) ([]byte, error) {
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(root) }() // it was only looked at
	fd, err := unix.Openat2(root, path, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), filepath.Join(dir, path))
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	case info.Size() > maxEnvFile:
		return nil, fmt.Errorf("it is larger than %d bytes", maxEnvFile)
	}
	return io.ReadAll(io.LimitReader(f, maxEnvFile))
}
