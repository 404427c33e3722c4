package runtime_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/services/syncd/internal/runtime"
)

func TestLogLinks(t *testing.T) {
	links := filepath.Join(t.TempDir(), "containers")
	n := newNode(t, func(c *runtime.Config) { c.LogLinkDir = links })
	p := newPod(func(_ *v1.PodSpec, c *v1.Container) { c.Name = "c" })
	c, _ := n.mustStart(p)
	link := filepath.Join(links, "p_ns_c-"+c.ID+".log")
	if to, err := os.Readlink(link); err != nil || to != filepath.Join(n.dir, "logs/ns_p_u-1/c/2.log") {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	other := filepath.Join(links, "other.log")
	if err := os.Symlink("/elsewhere", other); err != nil {
		t.Fatal(err)
	}
	if err := n.exec.RemoveContainer(t.Context(), p, &c); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(link); !os.IsNotExist(err) {
		t.Errorf("the link of a container that was removed: %v", err)
	}

	long := newPod()
	long.Name, long.UID = strings.Repeat("n", 240), "u-2"
	if c, _ = n.mustStart(long); c.ID == "" {
		t.Fatal("no container")
	}
	entries, err := os.ReadDir(links)
	if err != nil || len(entries) != 2 || len(entries[0].Name()) != 255 || !strings.HasSuffix(entries[0].Name(), ".log") {
		t.Errorf("of a long name: %v, %v", entries, err)
	}
	if err := n.exec.Cleanup(t.Context(), long); err != nil {
		t.Fatal(err)
	}
	if entries, err = os.ReadDir(links); err != nil || len(entries) != 1 || entries[0].Name() != "other.log" {
		t.Errorf("after the pod: %v, %v", entries, err)
	}
}
