package runtime_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podplane/podplane/internal/hostruntime"
	"github.com/podplane/podplane/services/syncd/internal/cgroup"
	"github.com/podplane/podplane/services/syncd/internal/images"
	"github.com/podplane/podplane/services/syncd/internal/runtime"
)

// TestLimitAll limits all pods, and what is reserved for others, and reads the limits back from the kernel.
func TestLimitAll(t *testing.T) {
	n, root := newNode(t), fmt.Sprintf("/ppall%d", os.Getpid())
	tree := runtime.NewCgroups(root)
	top := filepath.Join(tree.Mount, "memory")
	file := "memory.limit_in_bytes"
	if tree.Unified {
		top, file = tree.Mount, "memory.max"
	}
	t.Cleanup(func() {
		dirs, err := filepath.Glob(filepath.Join(tree.Mount, "*", root))
		if err != nil {
			t.Error(err)
		}
		for _, dir := range append(dirs, filepath.Join(tree.Mount, root)) {
			if err := hostruntime.RemoveCgroup(dir); err != nil {
				t.Error(err)
			}
		}
	})
	exec := runtime.New(runtime.Config{
		Node: "n1", Root: n.dir, Cgroups: tree,
		Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1"), v1.ResourceMemory: resource.MustParse("512Mi"), runtime.ResourcePIDs: resource.MustParse("1000")},
	}, n.cri, images.New(images.Config{}, n.cri, n, n), n, n)
	system := runtime.Bound{Cgroup: root + "/system", Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m"), v1.ResourceMemory: resource.MustParse("64Mi")}}
	if err := exec.LimitAll(t.Context(), true, []runtime.Bound{system}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("limited a cgroup that is not there: %v", err)
	}
	if err := cgroup.Set(system.Cgroup, false, cgroup.Limits{CPUShares: 2}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := exec.LimitAll(t.Context(), true, []runtime.Bound{system}); err != nil {
			t.Fatal(err)
		}
	}
	for dir, want := range map[string]string{"kubepods": "536870912", "system": "67108864"} {
		data, err := os.ReadFile(filepath.Join(top, root, dir, file))
		if got := strings.TrimSpace(string(data)); err != nil || got != want {
			t.Errorf("%s of %s is %q (%v), want %s", file, dir, got, err, want)
		}
	}
}
