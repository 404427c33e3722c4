package mounts_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podplane/podplane/services/volumed/internal/mounts"
)

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func tmpfs(t *testing.T, dir string, o mounts.Tmpfs) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := mounts.MountTmpfs(f, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

func TestTmpfs(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "v")
	gid := int64(4711)
	tmpfs(t, dir, mounts.Tmpfs{Size: 1 << 20, Mode: 0o2777, GID: &gid})
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	if st.Mode&0o7777 != 0o2777 || st.Gid != 4711 {
		t.Errorf("root has mode %o and gid %d", st.Mode&0o7777, st.Gid)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), make([]byte, 2<<20), 0o600); err == nil {
		t.Error("2 MiB fit into a tmpfs of 1 MiB")
	}
	if ok, err := mounts.IsTmpfs(open(t, dir)); err != nil || !ok {
		t.Errorf("IsTmpfs: %v, %v", ok, err)
	}
	if ok, err := mounts.IsMounted(dir); err != nil || !ok {
		t.Errorf("IsMounted: %v, %v", ok, err)
	}
	if ok, err := mounts.IsMounted(filepath.Dir(dir)); err != nil || ok {
		t.Errorf("IsMounted of the parent: %v, %v", ok, err)
	}
	if ok, err := mounts.IsMounted(filepath.Join(dir, "none")); err != nil || ok {
		t.Errorf("IsMounted of nothing: %v, %v", ok, err)
	}
}

func TestBelowIsInTheOrderOfUnmounting(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	a := filepath.Join(base, "a")
	tmpfs(t, a, mounts.Tmpfs{Mode: 0o755})
	tmpfs(t, filepath.Join(a, "x", "y"), mounts.Tmpfs{Mode: 0o755})
	tmpfs(t, filepath.Join(a, "z"), mounts.Tmpfs{Mode: 0o755})
	tmpfs(t, filepath.Join(a, "z"), mounts.Tmpfs{Mode: 0o755})
	tmpfs(t, filepath.Join(base, "ab"), mounts.Tmpfs{Mode: 0o755})
	got, err := mounts.Below(a)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(a, "x/y"), filepath.Join(a, "z"), filepath.Join(a, "z"), a}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, p := range got {
		if err := mounts.Unmount(p, false); err != nil {
			t.Error(err)
		}
	}
	if got, err := mounts.Below(a); err != nil || len(got) != 0 {
		t.Errorf("left: %v, %v", got, err)
	}
	if err := mounts.Unmount(a, false); err != nil {
		t.Errorf("unmount of what is not mounted: %v", err)
	}
}

func TestUnmountBusy(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "v")
	tmpfs(t, dir, mounts.Tmpfs{Mode: 0o755})
	f, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := mounts.Unmount(dir, false); !mounts.Busy(err) {
		t.Errorf("a mount with an open file: %v", err)
	}
	if err := mounts.Unmount(dir, true); err != nil {
		t.Error(err)
	}
	if ok, err := mounts.IsMounted(dir); err != nil || ok {
		t.Errorf("still mounted: %v, %v", ok, err)
	}
}

func TestRemoveTree(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	outside := filepath.Join(base, "outside")
	if err := os.MkdirAll(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	keep := filepath.Join(outside, "keep")
	if err := os.WriteFile(keep, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	v := filepath.Join(base, "pod", "v")
	if err := os.MkdirAll(filepath.Join(v, "empty", "a"), 0o000); err == nil {
		t.Log("running without DAC checks")
	}
	if err := os.MkdirAll(v, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"abs": outside, "rel": "../../outside", "dangling": "nowhere", "loop": "loop"} {
		if err := os.Symlink(target, filepath.Join(v, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(v, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 600 {
		if err := os.WriteFile(filepath.Join(v, strings.Repeat("n", 1+i%200)+string(rune('a'+i%26))), nil, 0o400); err != nil {
			t.Fatal(err)
		}
	}
	if err := mounts.RemoveTree(context.Background(), open(t, filepath.Dir(v)), "v"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(v); !os.IsNotExist(err) {
		t.Errorf("still there: %v", err)
	}
	if _, err := os.Stat(keep); err != nil {
		t.Errorf("removed outside of the tree: %v", err)
	}
	if err := mounts.RemoveTree(context.Background(), open(t, filepath.Dir(v)), "v"); err != nil {
		t.Errorf("removal of nothing: %v", err)
	}
}

func TestRemoveTreeVeryDeep(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	fd, err := unix.Open(base, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	const depth = 2500 // far more than a path may have, and more than there are descriptors
	for range depth {
		if err := unix.Mkdirat(fd, "d", 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(fd)
		fd = next
	}
	_ = unix.Close(fd)
	if err := mounts.RemoveTree(context.Background(), open(t, base), "d"); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(base); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestRemoveTreeNeverCrossesAMount(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	inner := filepath.Join(base, "v", "a", "mnt")
	tmpfs(t, inner, mounts.Tmpfs{Mode: 0o755})
	keep := filepath.Join(inner, "keep")
	if err := os.WriteFile(keep, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	bound := filepath.Join(base, "v", "file")
	if err := os.WriteFile(bound, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(keep, bound, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(bound, unix.MNT_DETACH) })
	for range 2 {
		if err := mounts.RemoveTree(context.Background(), open(t, base), "v"); err == nil || !strings.Contains(err.Error(), "mounted") {
			t.Errorf("got %v", err)
		}
		if _, err := os.Stat(keep); err != nil {
			t.Fatalf("removed across a mount: %v", err)
		}
	}
}

func TestRemoveTreeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	if err := os.MkdirAll(filepath.Join(base, "v", "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := mounts.RemoveTree(ctx, open(t, base), "v"); err == nil {
		t.Error("no error")
	}
}
