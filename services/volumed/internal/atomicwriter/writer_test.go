package atomicwriter_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/podplane/podplane/services/volumed/internal/atomicwriter"
)

type files = map[string]atomicwriter.File

func open(t *testing.T, dir string) *os.Root {
	t.Helper()
	r, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func write(t *testing.T, r *os.Root, f files, o atomicwriter.Options) bool {
	t.Helper()
	changed, err := atomicwriter.Write(r, f, o)
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

// visible is what a reader sees, by path.
func visible(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	var walk func(p string)
	walk = func(p string) {
		entries, err := os.ReadDir(filepath.Join(dir, p))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			q := filepath.Join(p, e.Name())
			if strings.HasPrefix(q, "..") {
				continue
			}
			info, err := os.Stat(filepath.Join(dir, q))
			if err != nil {
				t.Fatal(err)
			}
			if info.IsDir() {
				walk(q)
				continue
			}
			data, err := os.ReadFile(filepath.Join(dir, q))
			if err != nil {
				t.Fatal(err)
			}
			got[q] = fmt.Sprintf("%s %o", data, info.Mode().Perm())
		}
	}
	walk("")
	return got
}

func TestWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := open(t, dir)
	first := files{"a": {Data: []byte("1"), Mode: 0o644}, "sub/b": {Data: []byte("2"), Mode: 0o400}, "sub/deep/c": {Mode: 0o640}, "..not": {}}
	if _, err := atomicwriter.Write(r, first, atomicwriter.Options{}); err == nil {
		t.Error("a path that starts with .. was accepted")
	}
	delete(first, "..not")
	if !write(t, r, first, atomicwriter.Options{}) {
		t.Error("the first writing wrote nothing")
	}
	want := map[string]string{"a": "1 644", "sub/b": "2 400", "sub/deep/c": " 640"}
	if got := visible(t, dir); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	target, err := os.Readlink(filepath.Join(dir, "a"))
	if err != nil || target != "..data/a" {
		t.Errorf("a is a link to %q, %v", target, err)
	}
	before, _ := os.Readlink(filepath.Join(dir, "..data"))
	if write(t, r, first, atomicwriter.Options{}) {
		t.Error("the same content was written again")
	}
	if after, _ := os.Readlink(filepath.Join(dir, "..data")); after != before {
		t.Error("..data changed though nothing else did")
	}

	second := files{"a": {Data: []byte("1"), Mode: 0o600}, "new/x": {Data: []byte("3"), Mode: 0o644}}
	if !write(t, r, second, atomicwriter.Options{}) {
		t.Error("another mode counts for nothing")
	}
	want = map[string]string{"a": "1 600", "new/x": "3 644"}
	if got := visible(t, dir); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	names := list(t, dir)
	if len(names) != 4 { // ..data, the set, a, new
		t.Errorf("left in the volume: %v", names)
	}
	write(t, r, files{}, atomicwriter.Options{})
	if names := list(t, dir); len(names) != 2 {
		t.Errorf("an empty set left %v", names)
	}
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestGroup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	gid := int64(4711)
	r := open(t, dir)
	content := files{"sub/b": {Data: []byte("2"), Mode: 0o400}}
	write(t, r, content, atomicwriter.Options{GID: &gid})
	if got := visible(t, dir); got["sub/b"] != "2 440" {
		t.Errorf("got %v", got)
	}
	for _, p := range []string{"sub/b", "sub", "..data/"} {
		info, err := os.Stat(filepath.Join(dir, p))
		if err != nil {
			t.Fatal(err)
		}
		if g := info.Sys().(*syscall.Stat_t).Gid; g != 4711 {
			t.Errorf("%s belongs to group %d", p, g)
		}
		if info.IsDir() && info.Mode()&fs.ModeSetgid == 0 {
			t.Errorf("%s does not pass its group on", p)
		}
	}
	if write(t, r, content, atomicwriter.Options{GID: &gid}) {
		t.Error("written again without a change")
	}
	gid++
	if !write(t, r, content, atomicwriter.Options{GID: &gid}) {
		t.Error("another group counts for nothing")
	}
}

// A writer that was killed leaves one of these behind.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := open(t, dir)
	content := files{"a": {Data: []byte("1"), Mode: 0o644}}
	for name, leave := range map[string]func(){
		"a set without a link": func() { must(t, os.Mkdir(filepath.Join(dir, "..2026_x"), 0o755)) },
		"the new link":         func() { must(t, os.Symlink("..2026_x", filepath.Join(dir, "..data_tmp"))) },
		"a link into nothing":  func() { must(t, os.Symlink("..data/z", filepath.Join(dir, "z"))) },
		"no links yet":         func() { must(t, os.Remove(filepath.Join(dir, "a"))) },
		"a directory in a's place": func() {
			must(t, os.Remove(filepath.Join(dir, "a")))
			must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755))
		},
		"a set that is not whole": func() { must(t, os.WriteFile(filepath.Join(dir, "..data", "a"), nil, 0o644)) },
		"..data to outside": func() {
			must(t, os.Remove(filepath.Join(dir, "..data")))
			must(t, os.Symlink("/etc", filepath.Join(dir, "..data")))
		},
		"..data to a missing thing": func() {
			must(t, os.Remove(filepath.Join(dir, "..data")))
			must(t, os.Symlink("..x", filepath.Join(dir, "..data")))
		},
	} {
		write(t, r, content, atomicwriter.Options{})
		leave()
		write(t, r, content, atomicwriter.Options{})
		if got := visible(t, dir); !maps.Equal(got, map[string]string{"a": "1 644"}) {
			t.Errorf("%s: got %v", name, got)
		}
		if names := list(t, dir); len(names) != 3 {
			t.Errorf("%s: left %v", name, names)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A reader that holds ..data open sees one set, and never half of one.
func TestAtomic(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := open(t, dir)
	set := func(n int) files {
		f := files{}
		for _, name := range []string{"a", "b", "c/d"} {
			f[name] = atomicwriter.File{Data: fmt.Appendf(nil, "%d", n), Mode: 0o644}
		}
		return f
	}
	write(t, r, set(0), atomicwriter.Options{})
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		seen := 0
		for {
			select {
			case <-done:
				if seen == 0 {
					t.Error("the reader saw nothing")
				}
				return
			default:
			}
			real, err := filepath.EvalSymlinks(filepath.Join(dir, "..data"))
			if errors.Is(err, fs.ErrNotExist) {
				continue // the set was replaced between two looks
			}
			if err != nil {
				t.Errorf("no content: %v", err)
				return
			}
			var got []string
			for _, name := range []string{"a", "b", "c/d"} {
				data, err := os.ReadFile(filepath.Join(real, name))
				if err != nil {
					break // this set was removed meanwhile, as a whole
				}
				got = append(got, string(data))
			}
			if len(slices.Compact(got)) > 1 {
				t.Errorf("mixed sets: %v", got)
				return
			}
			seen++
		}
	})
	for n := 1; n <= 200; n++ {
		write(t, r, set(n), atomicwriter.Options{})
	}
	close(done)
	wg.Wait()
}

func FuzzPaths(f *testing.F) {
	for _, p := range []string{"a", "a/b", "../x", "/x", "a/../b", "..", ".", "a//b", "..data/x", "a/..", "\x00"} {
		f.Add(p)
	}
	base := f.TempDir()
	if err := os.WriteFile(filepath.Join(base, "outside"), []byte("keep"), 0o644); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, p string) {
		dir, err := os.MkdirTemp(base, "v")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		r, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		_, err = atomicwriter.Write(r, files{p: {Data: []byte("x"), Mode: 0o644}}, atomicwriter.Options{})
		if data, e := os.ReadFile(filepath.Join(base, "outside")); e != nil || string(data) != "keep" {
			t.Fatalf("wrote outside: %q, %v", data, e)
		}
		if err != nil {
			return
		}
		if data, e := os.ReadFile(filepath.Join(dir, p)); e != nil || string(data) != "x" {
			t.Fatalf("%q was accepted, but reads %q, %v", p, data, e)
		}
	})
}
