package runtimeclass_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/services/syncd/internal/runtimeclass"
)

const kind = "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\n"

func TestGet(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.yaml":      kind + "metadata: {name: sandboxed}\nhandler: kata\noverhead: {podFixed: {memory: 100Mi}}\n",
		"b.json":      `{"apiVersion":"node.k8s.io/v1","kind":"RuntimeClass","metadata":{"name":"json"},"handler":"runc"}`,
		"notes.txt":   "not a manifest",
		".hidden.yml": kind + "metadata: {name: hidden}\nhandler: runc\n",
	} {
		write(t, dir, name, text)
	}
	if err := os.Mkdir(filepath.Join(dir, "sub.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	d := runtimeclass.Dir(dir)
	for name, handler := range map[string]string{"sandboxed": "kata", "json": "runc", "hidden": "", "other": ""} {
		class, err := d.Get(name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if handler == "" {
			if class != nil {
				t.Errorf("%s: found %+v", name, class)
			}
			continue
		}
		if class == nil || class.Handler != handler {
			t.Errorf("%s: %+v, want handler %s", name, class, handler)
		}
	}
	if class, err := d.Get("sandboxed"); err != nil || class.Overhead.PodFixed.Memory().String() != "100Mi" {
		t.Errorf("overhead %+v, %v", class, err)
	}
	// What is written now holds at the next question.
	write(t, dir, "late.yml", kind+"metadata: {name: other}\nhandler: late\n")
	if class, err := d.Get("other"); err != nil || class == nil || class.Handler != "late" {
		t.Errorf("a class that came late: %+v, %v", class, err)
	}
}

// A manifest that can't be read is in nobody's way but of those who ask for what may be in it.
func TestBadManifests(t *testing.T) {
	for name, c := range map[string]struct{ text, says string }{
		"unknown field":   {kind + "metadata: {name: x}\nhandler: runc\nhandle: runc\n", "handle"},
		"another kind":    {"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n", "spec"},
		"another version": {"apiVersion: node.k8s.io/v1beta1\nkind: RuntimeClass\nmetadata: {name: x}\nhandler: runc\n", "apiVersion"},
		"no handler":      {kind + "metadata: {name: x}\n", "handler"},
		"no name":         {kind + "handler: runc\n", "metadata.name"},
		"too large":       {kind + "metadata: {name: x}\nhandler: runc\n" + strings.Repeat("# much\n", 200_000), "larger"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if name == "another kind" {
				c.says = "kind RuntimeClass"
			}
			write(t, dir, "bad.yaml", c.text)
			write(t, dir, "good.yaml", kind+"metadata: {name: good}\nhandler: runc\n")
			d := runtimeclass.Dir(dir)
			if class, err := d.Get("good"); err != nil || class == nil {
				t.Errorf("the good one: %+v, %v", class, err)
			}
			class, err := d.Get("x")
			if class != nil || err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "bad.yaml") {
				t.Errorf("the bad one: %+v, %v; want an error that names the file and %q", class, err, c.says)
			}
		})
	}
}

func TestHandler(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", kind+"metadata: {name: sandboxed}\nhandler: kata\n")
	write(t, dir, "b.yaml", kind+"metadata: {name: broken}\n")
	d := runtimeclass.Dir(dir)
	for name, want := range map[string]string{"": "", "sandboxed": "kata"} {
		p := new(v1.Pod)
		if name != "" {
			p.Spec.RuntimeClassName = &name
		}
		if got, err := d.Handler(p); err != nil || got != want {
			t.Errorf("class %q: handler %q, %v; want %q", name, got, err, want)
		}
	}
	none := "none"
	if got, err := d.Handler(&v1.Pod{Spec: v1.PodSpec{RuntimeClassName: &none}}); err == nil {
		t.Errorf("a class that there is not has handler %q", got)
	}
}

func TestNoDirectory(t *testing.T) {
	for _, d := range []runtimeclass.Dir{"", runtimeclass.Dir(filepath.Join(t.TempDir(), "none"))} {
		if class, err := d.Get("x"); class != nil || err != nil {
			t.Errorf("%q: %+v, %v", d, class, err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	write(t, filepath.Dir(file), "file", "")
	if _, err := runtimeclass.Dir(file).Get("x"); err == nil {
		t.Error("a file is no directory")
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
