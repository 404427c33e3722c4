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

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/admission"
)

// found is what a manifest file said when it was last read.
type found struct {
	wish
	info fs.FileInfo
	// sure says that the file was old enough when it was read: one that was just written may be written again without a visible change.
	sure bool
}

const sureAfter = 2 * time.Second

// scanner remembers the files, so that only changed ones are read again.
type scanner struct {
	path  string // a directory, or one file
	node  admission.Node
	files map[string]found
}

// watched is the directory in which changes are to be seen.
func (s *scanner) watched() string {
	if info, err := os.Stat(s.path); err == nil && !info.IsDir() {
		return filepath.Dir(s.path)
	}
	return s.path
}

// scan reads the directory. A directory that is not there is empty; any other error leaves what was known as it is.
func (s *scanner) scan(now time.Time) (wishes []wish, err error) {
	paths, err := s.list()
	if err != nil {
		return nil, err
	}
	next := make(map[string]found, len(paths))
	for _, path := range paths {
		f, ok := s.look(path, now)
		if ok {
			next[path] = f
			wishes = append(wishes, f.wish)
		}
	}
	s.files = next
	return wishes, nil
}

// list gives the paths that may be manifests, sorted.
func (s *scanner) list() ([]string, error) {
	entries, err := os.ReadDir(s.path) // sorted by name
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, syscall.ENOTDIR):
		return []string{s.path}, nil
	case err != nil:
		return nil, fmt.Errorf("read the manifest directory: %w", err)
	}
	var paths []string
	for _, e := range entries {
		if manifestName(e.Name()) {
			paths = append(paths, filepath.Join(s.path, e.Name()))
		}
	}
	return paths, nil
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
	f.wish = wish{from: Origin{Source: podplanev1.Source_SOURCE_FILE, Path: path}, place: path}
	info, err := os.Stat(path) // through links
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return found{}, false
	case err != nil:
		f.err = fmt.Errorf("read manifest: %w", err)
		return f, true
	case !info.Mode().IsRegular():
		return found{}, false
	}
	if old, known := s.files[path]; known && old.sure && old.err == nil && unchanged(old.info, info) {
		return old, true
	}
	f.info, f.sure = info, now.Sub(info.ModTime()) > sureAfter
	data, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return found{}, false
	}
	if err != nil {
		f.err = err
		return f, true
	}
	f.pod, f.err = Static(f.from, data, s.node)
	return f, true
}

func unchanged(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// read reads a regular file of at most MaxBytes. It never waits for the other end of a pipe that took the file's place.
func read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	defer f.Close() //nolint:errcheck // opened for reading
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("%s: %w", path, fault.New(fault.TooLarge, "the manifest has more than %d bytes", MaxBytes))
	}
	return data, nil
}
