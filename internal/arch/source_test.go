package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/podplane/podplane/"

// file is one Go file of the workspace.
type file struct {
	path      string // from the root, with slashes
	test      bool
	generated bool
	lines     int
	syntax    *ast.File
	imports   []string
}

// dir is the file's directory, from the root.
func (f file) dir() string { return path.Dir(f.path) }

// service is the service that the file belongs to; empty for none.
func (f file) service() string {
	rest, ok := strings.CutPrefix(f.path, "services/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

func (f file) under(dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return f.dir() == d || strings.HasPrefix(f.path, d+"/") })
}

var fset = token.NewFileSet()

// workspace reads every Go file of the product and its tests once.
var workspace = sync.OnceValues(func() ([]file, error) {
	root, err := rootDir()
	if err != nil {
		return nil, err
	}
	var files []file
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch name := d.Name(); {
			case p == root:
			case strings.HasPrefix(name, "."), name == "testdata", name == "node_modules", name == "bin":
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		f, err := read(root, p)
		if err != nil {
			return err
		}
		files = append(files, f)
		return nil
	})
	return files, err
})

func rootDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", os.ErrNotExist
		}
		dir = up
	}
}

func read(root, p string) (file, error) {
	raw, err := os.ReadFile(p)
	if err != nil {
		return file{}, err
	}
	syntax, err := parser.ParseFile(fset, p, raw, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return file{}, err
	}
	rel, err := filepath.Rel(root, p)
	if err != nil {
		return file{}, err
	}
	f := file{
		path: filepath.ToSlash(rel), test: strings.HasSuffix(p, "_test.go"), generated: ast.IsGenerated(syntax),
		lines: strings.Count(string(raw), "\n"), syntax: syntax,
	}
	for _, i := range syntax.Imports {
		name, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return file{}, err
		}
		f.imports = append(f.imports, name)
	}
	return f, nil
}

func files(t *testing.T) []file {
	t.Helper()
	all, err := workspace()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 50 {
		t.Fatalf("found only %d Go files: the walk is broken", len(all))
	}
	return all
}

// imports says whether name is pkg or below it.
func within(name, pkg string) bool { return name == pkg || strings.HasPrefix(name, pkg+"/") }
