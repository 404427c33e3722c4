package manifest_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/podplane/podplane/services/syncd/internal/decode"
	"github.com/podplane/podplane/services/syncd/internal/manifest"
)

// write writes a file of the directory in place.
func (r *rig) write(name, content string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(content), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) do(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// TestWhatIsNoManifest: what editors leave beside a file, what is hidden, and what is no file, makes no pod.
func TestWhatIsNoManifest(t *testing.T) {
	r := start(t)
	for _, name := range []string{".hidden.yaml", ".web.yaml.swp", "web.yaml~", "#web.yaml#", "web.yaml.bak", "web.yaml.tmp", "4913", "README"} {
		r.write(name, yaml("not", "x:1"))
	}
	r.do(os.Mkdir(filepath.Join(r.dir, "sub.yaml"), 0o750))
	r.write("sub.yaml/inside.yaml", yaml("not", "x:1"))
	r.do(syscall.Mkfifo(filepath.Join(r.dir, "pipe.yaml"), 0o600))
	r.do(os.Symlink("nowhere.yaml", filepath.Join(r.dir, "dangling.yaml")))
	r.put("last.yaml", yaml("last", "x:1"))
	r.stored("last-node-1")
	if all := r.store.Snapshot(); len(all) != 1 {
		t.Errorf("got %d pods, want the one of last.yaml", len(all))
	}
	select {
	case e := <-r.told:
		t.Errorf("an event about what is no manifest: %s", e)
	default:
	}
}

func TestBigFile(t *testing.T) {
	r := start(t)
	whole := `{"apiVersion":"v1","kind":"Pod",` + strings.TrimPrefix(item("big", "x:1"), "{")
	r.put("big.json", whole+strings.Repeat(" ", decode.MaxBytes)) // more than the API takes
	r.stored("big-node-1")
	r.put("bigger.json", whole+strings.Repeat(" ", manifest.MaxBytes-len(whole)+1))
	r.event("Node Node-1 Warning FailedValidation", "bigger.json", "more than 10485760 bytes")
}

// TestLinkToAFile: a link is a manifest at its own path, as with mounted ConfigMaps, whose links are exchanged.
func TestLinkToAFile(t *testing.T) {
	r := start(t)
	r.write(".one", yaml("web", "x:1"))
	r.write(".two", yaml("web", "x:2"))
	link := filepath.Join(r.dir, "web.yaml")
	r.do(os.Symlink(".one", link))
	one := r.stored("web-node-1")
	if one.Record.GetOrigin() != link {
		t.Errorf("got %s", one.Record.GetOrigin())
	}
	r.do(os.Symlink(".two", filepath.Join(r.dir, ".next")))
	r.do(os.Rename(filepath.Join(r.dir, ".next"), link))
	r.terminating(one.UID)
	r.gone(one.UID)
	if two := r.stored("web-node-1"); two.Pod.Spec.Containers[0].Image != "x:2" {
		t.Errorf("got %s", two.Pod.Spec.Containers[0].Image)
	}
}

// TestRename: the path is a part of what the pod is, so a renamed file makes another pod, which waits for the first.
func TestRename(t *testing.T) {
	r := start(t)
	r.put("a.yaml", yaml("web", "x:1"))
	a := r.stored("web-node-1")
	r.do(os.Rename(filepath.Join(r.dir, "a.yaml"), filepath.Join(r.dir, "b.yaml")))
	r.terminating(a.UID)
	r.gone(a.UID)
	if b := r.stored("web-node-1"); b.UID == a.UID || b.Record.GetOrigin() != filepath.Join(r.dir, "b.yaml") {
		t.Errorf("got %s from %s", b.UID, b.Record.GetOrigin())
	}
}

// TestQuickEdits: of many changes one after the other, what counts is the last, whatever came before (kubernetes#104648, #107733).
func TestQuickEdits(t *testing.T) {
	r := start(t)
	r.put("web.yaml", yaml("web", "x:0"))
	now := r.stored("web-node-1")
	for _, image := range []string{"x:1", "x:2", "x:0", "x:3", "x:4"} {
		r.put("web.yaml", yaml("web", image))
	}
	for now.Pod.Spec.Containers[0].Image != "x:4" {
		uid := now.UID
		r.terminating(uid)
		r.gone(uid)
		now = r.stored("web-node-1")
	}
}

// TestOneFile: in place of a directory there may be one file, whatever its name; what is beside it does not count.
func TestOneFile(t *testing.T) {
	r := start(t)
	r.stop()
	r.write("pod", yaml("web", "x:1"))
	r.put("other.yaml", yaml("other", "x:1"))
	r.run(filepath.Join(r.dir, "pod"))
	one := r.stored("web-node-1")
	r.put("pod", yaml("web", "x:2"))
	r.terminating(one.UID)
	r.gone(one.UID)
	two := r.stored("web-node-1")
	r.remove("pod")
	r.terminating(two.UID)
	if all := r.store.Snapshot(); len(all) != 1 {
		t.Errorf("got %d pods", len(all))
	}
}
