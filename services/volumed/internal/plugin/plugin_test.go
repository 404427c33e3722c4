package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/volumed/internal/mounts"
	"github.com/podplane/podplane/services/volumed/internal/plugin"
)

// store is a bucket of objects.
type store struct {
	configMaps map[string]*corev1.ConfigMap
	secrets    map[string]*corev1.Secret
	revision   uint64
	err        error
}

func (s *store) ConfigMap(_ context.Context, namespace, name string) (*corev1.ConfigMap, uint64, error) {
	if o, ok := s.configMaps[namespace+"/"+name]; ok && s.err == nil {
		return o, s.revision, nil
	}
	return nil, 0, s.missing()
}

func (s *store) Secret(_ context.Context, namespace, name string) (*corev1.Secret, uint64, error) {
	if o, ok := s.secrets[namespace+"/"+name]; ok && s.err == nil {
		return o, s.revision, nil
	}
	return nil, 0, s.missing()
}

func (s *store) missing() error {
	if s.err != nil {
		return s.err
	}
	return fault.New(fault.NotFound, "no such key")
}

type rig struct {
	t     *testing.T
	root  string
	store *store
	v     *plugin.Volumes
}

func newRig(t *testing.T) *rig {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // whatever the test left mounted
		points, _ := mounts.Below(root)
		for _, p := range points {
			_ = unix.Unmount(p, unix.MNT_DETACH)
		}
	})
	s := &store{configMaps: map[string]*corev1.ConfigMap{}, secrets: map[string]*corev1.Secret{}, revision: 1}
	v, err := plugin.New(root, s)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t: t, root: root, store: s, v: v}
}

func (r *rig) path(p *plugin.Pod, kind, volume string) string {
	return filepath.Join(r.root, "pods", p.UID, "volumes", "kubernetes.io~"+kind, volume)
}

func (r *rig) setup(p *plugin.Pod, volume string, before map[string]string) plugin.Mounted {
	r.t.Helper()
	m, err := r.v.Setup(context.Background(), p, volume, before)
	if err != nil {
		r.t.Fatalf("set up %s: %v", volume, err)
	}
	return m
}

func (r *rig) teardown(uid string) {
	r.t.Helper()
	rep := r.v.Teardown(context.Background(), uid, false)
	if rep.Err != nil || len(rep.Errors) > 0 {
		r.t.Fatalf("tear down: %v %v", rep.Err, rep.Errors)
	}
	if _, err := os.Lstat(filepath.Join(r.root, "pods", uid)); !errors.Is(err, fs.ErrNotExist) {
		r.t.Errorf("the pod's directory is still there: %v", err)
	}
}

func pod(volumes ...corev1.Volume) *plugin.Pod {
	return &plugin.Pod{UID: "11111111-2222", Namespace: "ns", Name: "p", Volumes: volumes}
}

func emptyDir(name string, e corev1.EmptyDirVolumeSource) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &e}}
}

func stat(t *testing.T, path string) (mode uint32, gid uint32) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return st.Mode & 0o7777, st.Gid
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func ptr[T any](v T) *T { return &v }

func TestEmptyDir(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := pod(emptyDir("a", corev1.EmptyDirVolumeSource{}))
	m := r.setup(p, "a", nil)
	if m.HostPath != r.path(p, "empty-dir", "a") || m.ReadOnly {
		t.Errorf("got %+v", m)
	}
	if mode, _ := stat(t, m.HostPath); mode != 0o777 {
		t.Errorf("mode %o", mode)
	}
	if mode, _ := stat(t, filepath.Join(r.root, "pods", p.UID)); mode != 0o750 {
		t.Errorf("mode of the pod's directory %o", mode)
	}
	// The pod changes its volume; another set-up changes nothing of that.
	if err := os.Chmod(m.HostPath, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.HostPath, "f"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.setup(p, "a", nil)
	if mode, _ := stat(t, m.HostPath); mode != 0o700 || read(t, filepath.Join(m.HostPath, "f")) != "mine" {
		t.Errorf("the second set-up changed the volume: mode %o", mode)
	}
	r.teardown(p.UID)
	r.teardown(p.UID)
}

func TestEmptyDirWithGroup(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := pod(emptyDir("a", corev1.EmptyDirVolumeSource{}), emptyDir("m", corev1.EmptyDirVolumeSource{Medium: "Memory"}))
	p.FSGroup = ptr(int64(4711))
	for _, name := range []string{"a", "m"} {
		m := r.setup(p, name, nil)
		if mode, gid := stat(t, m.HostPath); mode != 0o2777 || gid != 4711 {
			t.Errorf("%s: mode %o, gid %d", name, mode, gid)
		}
	}
	r.teardown(p.UID)
}

// A set-up that was killed between making the directory and putting it in place is finished.
func TestEmptyDirHalfDone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := pod(emptyDir("a", corev1.EmptyDirVolumeSource{}))
	left := filepath.Join(filepath.Dir(r.path(p, "empty-dir", "a")), ".new.a")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	m := r.setup(p, "a", nil)
	if mode, _ := stat(t, m.HostPath); mode != 0o777 {
		t.Errorf("mode %o", mode)
	}
	if _, err := os.Lstat(left); err == nil {
		t.Error("the unfinished directory is still there")
	}
}

func TestMemory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	limit := resource.MustParse("1Mi")
	p := pod(emptyDir("m", corev1.EmptyDirVolumeSource{Medium: "Memory", SizeLimit: &limit}), emptyDir("n", corev1.EmptyDirVolumeSource{Medium: "Memory"}))
	p.MemoryLimit = 2 << 20
	m := r.setup(p, "m", nil)
	if mode, _ := stat(t, m.HostPath); mode != 0o777 {
		t.Errorf("mode %o", mode)
	}
	r.setup(p, "n", nil)
	for name, want := range map[string]uint64{"m": 1 << 20, "n": 2 << 20} {
		var st unix.Statfs_t
		if err := unix.Statfs(r.path(p, "empty-dir", name), &st); err != nil {
			t.Fatal(err)
		}
		if got := st.Blocks * uint64(st.Bsize); st.Type != unix.TMPFS_MAGIC || got != want {
			t.Errorf("%s: type %x, %d bytes, want a tmpfs of %d", name, st.Type, got, want)
		}
	}
	file := filepath.Join(m.HostPath, "f")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.setup(p, "m", nil)
	if points, _ := mounts.Below(m.HostPath); len(points) != 1 || read(t, file) != "mine" {
		t.Errorf("mounted again: %v", points)
	}
	r.teardown(p.UID)
	if points, _ := mounts.Below(r.root); len(points) != 0 {
		t.Errorf("left mounted: %v", points)
	}
}

func TestHostPath(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// A socket's path must be short.
	sockDir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(sockDir) })
	sock := filepath.Join(sockDir, "s")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	block := filepath.Join(sockDir, "b")
	if err := unix.Mknod(block, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 250))); err != nil {
		t.Fatal(err)
	}
	dangling := filepath.Join(dir, "dangling")
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), dangling); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		kind corev1.HostPathType
		err  string
	}{
		{"/none", "", ""},
		{dir, "Directory", ""},
		{file, "Directory", "is not a directory"},
		{dir + "/none", "Directory", "no such file"},
		{dir + "/made/deep", "DirectoryOrCreate", ""},
		{file, "DirectoryOrCreate", "is not a directory"},
		{file, "File", ""},
		{dir, "File", "is not a file"},
		{dir + "/new", "FileOrCreate", ""},
		{dir + "/no/new", "FileOrCreate", "no such file"},
		{dangling, "FileOrCreate", "exists"},
		{sock, "Socket", ""},
		{file, "Socket", "is not a socket"},
		{"/dev/null", "CharDevice", ""},
		{block, "CharDevice", "is not a character device"},
		{block, "BlockDevice", ""},
		{"/dev/null", "BlockDevice", "is not a block device"},
		{dir + "/../x", "", "without"},
		{"relative", "", "absolute"},
		{dir, "Whatever", "unknown"},
	} {
		kind := c.kind
		p := pod(corev1.Volume{Name: "h", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: c.path, Type: &kind}}})
		m, err := r.v.Setup(context.Background(), p, "h", nil)
		switch {
		case c.err == "" && (err != nil || m.HostPath != c.path):
			t.Errorf("%s as %q: %v, %v", c.path, c.kind, m, err)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s as %q: got %v, want %q", c.path, c.kind, err, c.err)
		}
	}
	if mode, _ := stat(t, dir+"/made/deep"); mode != 0o755 {
		t.Errorf("mode of a made directory %o", mode)
	}
	if mode, _ := stat(t, dir+"/new"); mode != 0o644 {
		t.Errorf("mode of a made file %o", mode)
	}
	if _, err := os.Lstat(dir + "/elsewhere"); err == nil {
		t.Error("a file was made through a dangling link")
	}
	if left, _ := r.v.Leftovers(); len(left) != 0 {
		t.Errorf("a hostPath left %v", left)
	}
}

func TestNamesNeverEscape(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, name := range []string{"..", ".", "", "a/b", "../x", "/x", ".hidden", "a\x00b"} {
		p := pod(emptyDir(name, corev1.EmptyDirVolumeSource{}))
		if _, err := r.v.Setup(context.Background(), p, name, nil); err == nil {
			t.Errorf("volume %q was set up", name)
		}
		p = pod(emptyDir("a", corev1.EmptyDirVolumeSource{}))
		p.UID = name
		if _, err := r.v.Setup(context.Background(), p, "a", nil); err == nil {
			t.Errorf("UID %q was accepted", name)
		}
		if rep := r.v.Teardown(context.Background(), name, true); rep.Err == nil {
			t.Errorf("UID %q was torn down", name)
		}
	}
}

func TestUnsupported(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := pod(corev1.Volume{Name: "n", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}}, emptyDir("h", corev1.EmptyDirVolumeSource{Medium: "HugePages"}))
	for _, name := range []string{"n", "h", "unknown"} {
		if _, err := r.v.Setup(context.Background(), p, name, nil); err == nil {
			t.Errorf("%s was set up", name)
		}
	}
}

func TestTeardownWithMountsOfThePod(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := pod(emptyDir("a", corev1.EmptyDirVolumeSource{}), emptyDir("m", corev1.EmptyDirVolumeSource{Medium: "Memory"}))
	a, m := r.setup(p, "a", nil).HostPath, r.setup(p, "m", nil).HostPath
	outside := t.TempDir()
	keep := filepath.Join(outside, "keep")
	if err := os.WriteFile(keep, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	inner := filepath.Join(a, "mnt")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(outside, inner, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	busy, err := os.Create(filepath.Join(m, "busy"))
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	rep := r.v.Teardown(context.Background(), p.UID, false)
	if !mounts.Busy(rep.Errors["m"]) || rep.Err != nil || len(rep.Errors) != 1 {
		t.Errorf("got %+v", rep)
	}
	if _, err := os.Stat(keep); err != nil {
		t.Fatalf("removed across a mount: %v", err)
	}
	if left, err := r.v.Leftovers(); err != nil || !slices.Equal(left, []string{p.UID}) {
		t.Errorf("leftovers %v, %v", left, err)
	}
	rep = r.v.Teardown(context.Background(), p.UID, true)
	if rep.Err != nil || len(rep.Errors) > 0 || !slices.Equal(rep.Detached, []string{m}) {
		t.Errorf("got %+v", rep)
	}
	if left, err := r.v.Leftovers(); err != nil || len(left) != 0 {
		t.Errorf("leftovers %v, %v", left, err)
	}
}

// A full file system and a read-only one are errors of the volume, and both heal.
func TestBrokenFileSystems(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if err := unix.Mount("tmpfs", filepath.Join(r.root, "pods"), "tmpfs", 0, "size=64k,nr_inodes=8"); err != nil {
		t.Fatal(err)
	}
	r.store.configMaps["ns/c"] = &corev1.ConfigMap{Data: map[string]string{"a": strings.Repeat("x", 128<<10)}}
	p := pod(emptyDir("a", corev1.EmptyDirVolumeSource{}), emptyDir("b", corev1.EmptyDirVolumeSource{}),
		corev1.Volume{Name: "c", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}}}})
	r.setup(p, "a", nil)
	if _, err := r.v.Setup(context.Background(), p, "c", nil); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("on a full file system: %v", err)
	}
	remount := func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("", filepath.Join(r.root, "pods"), "", unix.MS_REMOUNT|flags, "size=1m,nr_inodes=100"); err != nil {
			t.Fatal(err)
		}
	}
	remount(unix.MS_RDONLY)
	if _, err := r.v.Setup(context.Background(), p, "b", nil); !errors.Is(err, syscall.EROFS) {
		t.Errorf("on a read-only file system: %v", err)
	}
	if rep := r.v.Teardown(context.Background(), p.UID, false); rep.Err == nil && len(rep.Errors) == 0 {
		t.Error("torn down on a read-only file system")
	}
	remount(0)
	if m := r.setup(p, "c", nil); len(read(t, m.HostPath+"/a")) != 128<<10 {
		t.Error("the content is not whole")
	}
	r.setup(p, "b", nil)
	r.teardown(p.UID)
}

func TestDecode(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		spec string
		want int64
	}{
		{`{"containers":[{"resources":{"limits":{"memory":"1Mi"}}},{"resources":{"limits":{"memory":"2Mi"}}}]}`, 3 << 20},
		{`{"containers":[{"resources":{"limits":{"memory":"1Mi"}}},{}]}`, 0},
		{`{"resources":{"limits":{"memory":"5Mi"}},"containers":[{}]}`, 5 << 20},
		{`{"initContainers":[{"resources":{"limits":{"memory":"9Mi"}}}],"containers":[{"resources":{"limits":{"memory":"2Mi"}}}]}`, 9 << 20},
		{`{"initContainers":[{"restartPolicy":"Always","resources":{"limits":{"memory":"3Mi"}}},{"resources":{"limits":{"memory":"4Mi"}}}],"containers":[{"resources":{"limits":{"memory":"2Mi"}}}]}`, 7 << 20},
	} {
		p, err := plugin.Decode(&podplanev1.PodRecord{Uid: "u", Pod: fmt.Appendf(nil, `{"spec":%s}`, c.spec)})
		if err != nil || p.MemoryLimit != c.want {
			t.Errorf("%s: got %+v, %v", c.spec, p, err)
		}
	}
	p, err := plugin.Decode(&podplanev1.PodRecord{Uid: "u", Pod: []byte(`{"spec":{"securityContext":{"fsGroup":7},"volumes":[{"name":"i","image":{"reference":"x"}},{"name":"a","emptyDir":{}}]}}`)})
	if err != nil || p.FSGroup == nil || *p.FSGroup != 7 || len(p.Volumes) != 1 || p.Volumes[0].Name != "a" {
		t.Errorf("got %+v, %v", p, err)
	}
	if _, err := plugin.Decode(&podplanev1.PodRecord{Pod: []byte(`{`)}); err == nil {
		t.Error("no error")
	}
}

// FuzzDecode feeds the decoder with anything: an error or a pod, never a panic; and whatever its volumes are called,
// nothing is made outside of the root.
func FuzzDecode(f *testing.F) {
	f.Add("u", []byte(`{"spec":{"volumes":[{"name":"a","emptyDir":{}}],"containers":[{"resources":{"limits":{"memory":"1Mi"}}}]}}`))
	f.Add("..", []byte(`{"spec":{"volumes":[{"name":"../../x","emptyDir":{}},{"name":"c","configMap":{"name":"m","optional":true,"items":[{"key":"k","path":"../p"}]}}]}}`))
	base := f.TempDir()
	v, err := plugin.New(filepath.Join(base, "root"), &store{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, uid string, data []byte) {
		p, err := plugin.Decode(&podplanev1.PodRecord{Uid: uid, Pod: data})
		if err != nil {
			return
		}
		for i := range p.Volumes {
			if vol := &p.Volumes[i]; vol.HostPath == nil && (vol.EmptyDir == nil || vol.EmptyDir.Medium == "") {
				_, _ = v.Setup(context.Background(), p, vol.Name, nil)
			}
		}
		_ = v.Teardown(context.Background(), uid, false)
		for _, dir := range []string{base, filepath.Join(base, "root")} {
			if e, err := os.ReadDir(dir); err != nil || len(e) != 1 {
				t.Fatalf("in %s: %v, %v", dir, e, err)
			}
		}
	})
}
