package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// hostPath checks that the path is of the wished type, or makes it. The path is the node's own: links in it are
// followed, as the node's administrator put them there.
func hostPath(v *corev1.Volume) (Mounted, error) {
	path := v.HostPath.Path
	if !filepath.IsAbs(path) || slices.Contains(strings.Split(path, "/"), "..") {
		return Mounted{}, fmt.Errorf("hostPath %q: must be absolute and without %q", path, "..")
	}
	wished := corev1.HostPathUnset
	if v.HostPath.Type != nil {
		wished = *v.HostPath.Type
	}
	m := Mounted{HostPath: filepath.Clean(path)}
	if wished == corev1.HostPathUnset {
		return m, nil
	}
	if err := makeHostPath(m.HostPath, wished); err != nil {
		return Mounted{}, err
	}
	info, err := os.Stat(m.HostPath)
	if err != nil {
		return Mounted{}, fmt.Errorf("hostPath type check failed: %w", err)
	}
	is, what := hostPathIs(info.Mode(), wished)
	if what == "" {
		return Mounted{}, fmt.Errorf("hostPath type %q: unknown", wished)
	}
	if !is {
		return Mounted{}, fmt.Errorf("hostPath type check failed: %s is not %s", path, what)
	}
	return m, nil
}

// makeHostPath makes what the type allows to be made, if nothing is there.
func makeHostPath(path string, wished corev1.HostPathType) error {
	if wished != corev1.HostPathDirectoryOrCreate && wished != corev1.HostPathFileOrCreate {
		return nil
	}
	if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if wished == corev1.HostPathDirectoryOrCreate {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("make hostPath: %w", err)
		}
		return nil
	}
	// The file's directory must exist. O_EXCL: a link that points to nothing is not followed to a place where it
	// would make a file.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("make hostPath: %w", err)
	}
	return f.Close()
}

func hostPathIs(m fs.FileMode, wished corev1.HostPathType) (is bool, what string) {
	switch wished {
	case corev1.HostPathDirectory, corev1.HostPathDirectoryOrCreate:
		return m.IsDir(), "a directory"
	case corev1.HostPathFile, corev1.HostPathFileOrCreate:
		return m.IsRegular(), "a file"
	case corev1.HostPathSocket:
		return m&fs.ModeSocket != 0, "a socket"
	case corev1.HostPathCharDev:
		return m&fs.ModeCharDevice != 0, "a character device"
	case corev1.HostPathBlockDev:
		return m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0, "a block device"
	}
	return false, ""
}
