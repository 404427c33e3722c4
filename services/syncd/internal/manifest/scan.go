package manifest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/syncd/internal/admission"
)

// found is what a manifest file said when it was last read.
type found struct {
	path string
	info fs.FileInfo
	// sure says that the file was old enough when it was read: one that was just written may be written again without a visible change.
	sure bool
	pod  *v1.Pod
	err  error
}

const sureAfter = 2 * time.Second

// scanner remembers the files, so that only changed ones are read again.
type scanner struct {
	dir   string
	node  admission.Node
	files map[string]found
}

// scan reads the directory. A directory that is not there is empty; any other error leaves what was known as it is.
func (s *scanner) scan(now time.Time) (files []found, err error) {
	entries, err := os.ReadDir(s.dir) // sorted by name
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the manifest directory: %w", err)
	}
	next := make(map[string]found, len(entries))
	for _, e := range entries {
		if !manifestName(e.Name()) {
			continue
		}
		path := filepath.Join(s.dir, e.Name())
		f, ok := s.look(path, now)
		if ok {
			next[path] = f
			files = append(files, f)
		}
	}
	s.files = next
	return files, nil
}

func manifestName(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// look reads a file unless it is as it was; ok is false when there is no such regular file.
func (s *scanner) look(path string, now time.Time) (f found, ok bool) {
	info, err := os.Stat(path) // through links
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return found{}, false
	case err != nil:
		return found{path: path, err: fmt.Errorf("read manifest: %w", err)}, true
	case !info.Mode().IsRegular():
		return found{}, false
	}
	if old, known := s.files[path]; known && old.sure && old.info != nil && unchanged(old.info, info) {
		return old, true
	}
	f = found{path: path, info: info, sure: now.Sub(info.ModTime()) > sureAfter}
	data, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return found{}, false
	}
	if err != nil {
		f.err = err
		return f, true
	}
	f.pod, f.err = Static(path, data, s.node)
	return f, true
}

func unchanged(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// read reads a regular file of at most MaxFileBytes. It never waits for the other end of a pipe that took the file's place.
func read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	defer f.Close() //nolint:errcheck // opened for reading
	data, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	if len(data) > MaxFileBytes {
		return nil, fmt.Errorf("%s: %w", path, fault.New(fault.TooLarge, "the manifest has more than %d bytes", MaxFileBytes))
	}
	return data, nil
}
