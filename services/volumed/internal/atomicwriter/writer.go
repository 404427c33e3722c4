// Package atomicwriter writes a set of files so that a reader sees all of the old ones or all of the new ones.
//
// The files are in a directory named by the time of the writing, "..data" is a symbolic link to it that is swapped by
// a rename, and what the reader sees are links through "..data". Nothing is written when nothing changed. A writer that
// is killed in the middle leaves the old set in place; the next one clears its leftovers away.
package atomicwriter

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/rand"
)

const (
	dataLink    = "..data"
	newDataLink = "..data_tmp"

	maxName = 255
	maxPath = 4096
)

// File is one file of a set.
type File struct {
	Data []byte
	// Mode are its permissions.
	Mode fs.FileMode
}

// Options apply to all files and directories of a set.
type Options struct {
	// GID owns them, when not nil. Its members may then read every file, and directories pass the group on.
	GID *int64
}

// Write makes files, by their slash-separated paths, the content of the directory that root is open on. It says
// whether something was written.
func Write(root *os.Root, files map[string]File, o Options) (bool, error) {
	for p := range files {
		if err := checkPath(p); err != nil {
			return false, err
		}
	}
	w := writer{root: root, files: files, options: o}
	if o.GID != nil {
		w.files = make(map[string]File, len(files))
		for p, f := range files {
			f.Mode |= 0o440
			w.files[p] = f
		}
	}
	old, err := root.Readlink(dataLink)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read the link to the present content: %w", err)
	}
	if old != "" && w.same(old) {
		return false, w.links(old)
	}
	dir, err := w.writeSet()
	if err != nil {
		return false, err
	}
	if err := w.swap(dir); err != nil {
		return false, err
	}
	return true, w.links(dir)
}

type writer struct {
	root    *os.Root
	files   map[string]File
	options Options
}

// checkPath refuses what could leave the directory, or collide with the writer's own names.
func checkPath(p string) error {
	switch {
	case p == "" || path.Clean(p) != p || !filepath.IsLocal(p):
		return fmt.Errorf("path %q: must be relative, clean and without %q", p, "..")
	case strings.HasPrefix(p, ".."):
		return fmt.Errorf("path %q: must not start with %q", p, "..")
	case len(p) > maxPath:
		return fmt.Errorf("path of %d bytes: must have at most %d", len(p), maxPath)
	}
	for name := range strings.SplitSeq(p, "/") {
		if len(name) > maxName {
			return fmt.Errorf("path %q: a name must have at most %d bytes", p, maxName)
		}
	}
	return nil
}

// same says whether dir holds exactly the set. Whatever can't be read is not the same.
func (w *writer) same(dir string) bool {
	if !filepath.IsLocal(dir) {
		return false
	}
	found := 0
	err := fs.WalkDir(w.root.FS(), dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, ok := w.files[strings.TrimPrefix(p, dir+"/")]
		if !ok || !d.Type().IsRegular() {
			return fs.ErrInvalid
		}
		found++
		return w.compare(p, f)
	})
	return err == nil && found == len(w.files)
}

func (w *writer) compare(p string, f File) error {
	info, err := w.root.Lstat(p)
	if err != nil {
		return err
	}
	if info.Mode().Perm() != f.Mode.Perm() || info.Size() != int64(len(f.Data)) || !w.owned(info) {
		return fs.ErrInvalid
	}
	data, err := w.root.ReadFile(p)
	if err != nil {
		return err
	}
	if !bytes.Equal(data, f.Data) {
		return fs.ErrInvalid
	}
	return nil
}

// writeSet writes all files into a new directory and returns its name.
func (w *writer) writeSet() (string, error) {
	dir := time.Now().UTC().Format("..2006_01_02_15_04_05.") + rand.String(10)
	if err := w.mkdir(dir); err != nil {
		return "", err
	}
	made := map[string]bool{}
	for _, p := range slices.Sorted(maps.Keys(w.files)) {
		for parent := range parents(p) {
			if made[parent] {
				continue
			}
			if err := w.mkdir(dir + "/" + parent); err != nil {
				return "", errors.Join(err, w.root.RemoveAll(dir))
			}
			made[parent] = true
		}
		if err := w.writeFile(dir+"/"+p, w.files[p]); err != nil {
			return "", errors.Join(fmt.Errorf("write %s: %w", p, err), w.root.RemoveAll(dir))
		}
	}
	return dir, nil
}

// parents yields the directories above p, the outermost first.
func parents(p string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i, c := range p {
			if c == '/' && !yield(p[:i]) {
				return
			}
		}
	}
}

func (w *writer) mkdir(name string) error {
	if err := w.root.Mkdir(name, 0o700); err != nil {
		return fmt.Errorf("make directory %s: %w", name, err)
	}
	if err := w.own(name); err != nil {
		return err
	}
	mode := fs.FileMode(0o755)
	if w.options.GID != nil {
		mode |= fs.ModeSetgid
	}
	if err := w.root.Chmod(name, mode); err != nil {
		return fmt.Errorf("set permissions of %s: %w", name, err)
	}
	return nil
}

func (w *writer) writeFile(name string, f File) error {
	// Not even for a moment does the file have more permissions than it gets in the end.
	if err := w.root.WriteFile(name, f.Data, f.Mode.Perm()&0o600); err != nil {
		return err
	}
	if err := w.own(name); err != nil {
		return err
	}
	return w.root.Chmod(name, f.Mode.Perm())
}

func (w *writer) own(name string) error {
	if w.options.GID == nil {
		return nil
	}
	if err := w.root.Lchown(name, -1, int(*w.options.GID)); err != nil {
		return fmt.Errorf("give %s to group %d: %w", name, *w.options.GID, err)
	}
	return nil
}

// swap makes dir the present content.
func (w *writer) swap(dir string) error {
	if err := w.root.Remove(newDataLink); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove a left link: %w", err)
	}
	if err := w.root.Symlink(dir, newDataLink); err != nil {
		return fmt.Errorf("link the new content: %w", err)
	}
	if err := w.root.Rename(newDataLink, dataLink); err != nil {
		return fmt.Errorf("swap the link to the content: %w", err)
	}
	return nil
}

// links makes what the reader sees links into the present set dir, and removes everything else: links to files that are
// gone, older sets, leftovers.
func (w *writer) links(dir string) error {
	want := map[string]bool{dataLink: true, dir: true}
	for p := range w.files {
		first, _, _ := strings.Cut(p, "/")
		if want[first] {
			continue
		}
		want[first] = true
		target := dataLink + "/" + first
		if have, err := w.root.Readlink(first); err == nil && have == target {
			continue
		}
		if err := w.root.RemoveAll(first); err != nil {
			return fmt.Errorf("replace %s: %w", first, err)
		}
		if err := w.root.Symlink(target, first); err != nil {
			return fmt.Errorf("link %s: %w", first, err)
		}
	}
	entries, err := fs.ReadDir(w.root.FS(), ".")
	if err != nil {
		return fmt.Errorf("list the volume: %w", err)
	}
	for _, e := range entries {
		if want[e.Name()] {
			continue
		}
		if err := w.root.RemoveAll(e.Name()); err != nil {
			return fmt.Errorf("remove %s: %w", e.Name(), err)
		}
	}
	return nil
}
