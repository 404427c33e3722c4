package up

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRemoveCgroups works on the host's own hierarchies.
func TestRemoveCgroups(t *testing.T) {
	root, err := os.MkdirTemp(hierarchy(t), "podplane-test-")
	if err != nil {
		t.Fatal(err)
	}
	all := filepath.Join(root, "kubepods")
	pod := filepath.Join(all, "burstable", "pod1")
	for _, dir := range []string{pod, filepath.Join(all, "besteffort")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, dir := range []string{pod, filepath.Dir(pod), filepath.Join(all, "besteffort"), all, root} {
			_ = os.Remove(dir)
		}
	})
	name := filepath.Base(root)
	if err := removeCgroups(cgroupMount, name); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(pod); err != nil {
		t.Errorf("a pod's cgroup does not stay: %v", err)
	}
	if err := os.Remove(pod); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := removeCgroups(cgroupMount, name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(all); !os.IsNotExist(err) {
		t.Errorf("empty cgroups stay: %v", err)
	}
}

// hierarchy is one that cgroups can be made in.
func hierarchy(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root")
	}
	dir := cgroupMount
	if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err != nil {
		dir = filepath.Join(dir, "memory")
	}
	return dir
}
