package plugin_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/volumed/internal/mounts"
)

func TestConfigMap(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cm := &corev1.ConfigMap{Data: map[string]string{"a": "1", "b": "2"}, BinaryData: map[string][]byte{"bin": {0, 255}}}
	r.store.configMaps["ns/c"] = cm
	src := func(name string, c corev1.ConfigMapVolumeSource, object string) corev1.Volume {
		c.Name = object
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{ConfigMap: &c}}
	}
	p := pod(
		src("all", corev1.ConfigMapVolumeSource{}, "c"),
		src("mode", corev1.ConfigMapVolumeSource{DefaultMode: ptr(int32(0o400)), Items: []corev1.KeyToPath{
			{Key: "a", Path: "x/y"}, {Key: "b", Path: "z", Mode: ptr(int32(0o755))},
		}}, "c"),
		src("nokey", corev1.ConfigMapVolumeSource{Items: []corev1.KeyToPath{{Key: "nope", Path: "x"}}}, "c"),
		src("optkey", corev1.ConfigMapVolumeSource{Optional: ptr(true), Items: []corev1.KeyToPath{{Key: "nope", Path: "x"}, {Key: "a", Path: "a"}}}, "c"),
		src("none", corev1.ConfigMapVolumeSource{}, "nope"),
		src("optnone", corev1.ConfigMapVolumeSource{Optional: ptr(true)}, "nope"),
		src("escape", corev1.ConfigMapVolumeSource{Items: []corev1.KeyToPath{{Key: "a", Path: "../../x"}}}, "c"),
	)
	m := r.setup(p, "all", nil)
	if !m.ReadOnly || m.Revision != 1 {
		t.Errorf("got %+v", m)
	}
	if got := read(t, m.HostPath+"/a") + read(t, m.HostPath+"/b") + read(t, m.HostPath+"/bin"); got != "12\x00\xff" {
		t.Errorf("content %q", got)
	}
	if mode, _ := stat(t, m.HostPath+"/..data/a"); mode != 0o644 {
		t.Errorf("mode %o", mode)
	}
	m = r.setup(p, "mode", nil)
	for file, want := range map[string]uint32{"x/y": 0o400, "z": 0o755} {
		if mode, _ := stat(t, m.HostPath+"/..data/"+file); mode != want {
			t.Errorf("%s: mode %o", file, mode)
		}
	}
	if m = r.setup(p, "optkey", nil); read(t, m.HostPath+"/a") != "1" {
		t.Error("an optional key that is missing takes others along")
	}
	m = r.setup(p, "optnone", nil)
	if e, err := os.ReadDir(m.HostPath); err != nil || len(e) != 2 {
		t.Errorf("a missing optional object: %v, %v", e, err)
	}
	for name, want := range map[string]string{
		"nokey":  `configmap "c" in namespace "ns" has no key "nope"`,
		"none":   `configmap "nope" not found in namespace "ns"`,
		"escape": `path "../../x"`,
	} {
		if _, err := r.v.Setup(context.Background(), p, name, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
	// An update.
	cm.Data = map[string]string{"a": "new"}
	r.store.revision = 2
	if m = r.setup(p, "all", nil); read(t, m.HostPath+"/a") != "new" || m.Revision != 2 {
		t.Error("the update did not arrive")
	}
	if _, err := os.Lstat(m.HostPath + "/b"); err == nil {
		t.Error("a key that was removed is still there")
	}
	// An object that goes away while it is used: the content stays.
	delete(r.store.configMaps, "ns/c")
	if _, err := r.v.Setup(context.Background(), p, "all", nil); !fault.Is(err, fault.NotFound) || read(t, m.HostPath+"/a") != "new" {
		t.Errorf("got %v", err)
	}
	r.teardown(p.UID)
}

func TestImmutable(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.store.configMaps["ns/c"] = &corev1.ConfigMap{Data: map[string]string{"a": "1"}, Immutable: ptr(true)}
	p := pod(corev1.Volume{Name: "c", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}}}})
	m := r.setup(p, "c", nil)
	delete(r.store.configMaps, "ns/c")
	if m = r.setup(p, "c", m.Attributes); read(t, m.HostPath+"/a") != "1" || m.Attributes["immutable"] != "true" {
		t.Errorf("got %+v", m)
	}
	// But what is not there has to be read.
	if err := os.RemoveAll(m.HostPath); err != nil {
		t.Fatal(err)
	}
	if _, err := r.v.Setup(context.Background(), p, "c", m.Attributes); !fault.Is(err, fault.NotFound) {
		t.Errorf("got %v", err)
	}
}

func TestSecret(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.store.secrets["ns/s"] = &corev1.Secret{Data: map[string][]byte{"key": []byte("hunter2")}}
	p := pod(corev1.Volume{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s", DefaultMode: ptr(int32(0o400))}}})
	p.FSGroup = ptr(int64(4711))
	m := r.setup(p, "s", nil)
	if !m.ReadOnly || read(t, m.HostPath+"/key") != "hunter2" {
		t.Errorf("got %+v", m)
	}
	if mode, gid := stat(t, m.HostPath+"/..data/key"); mode != 0o440 || gid != 4711 {
		t.Errorf("file: mode %o, gid %d", mode, gid)
	}
	if mode, gid := stat(t, m.HostPath); mode != 0o2755 || gid != 4711 {
		t.Errorf("volume: mode %o, gid %d", mode, gid)
	}
	if mode, _ := stat(t, filepath.Dir(m.HostPath)); mode != 0o700 {
		t.Errorf("parent: mode %o", mode)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(m.HostPath, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		t.Errorf("a secret on a file system of type %x, %v", st.Type, err)
	}
	r.setup(p, "s", nil)
	if points, _ := mounts.Below(m.HostPath); len(points) != 1 {
		t.Errorf("mounted again: %v", points)
	}
	r.teardown(p.UID)
	if points, _ := mounts.Below(r.root); len(points) != 0 {
		t.Errorf("left mounted: %v", points)
	}
}

func TestBusAwayIsNotMissing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.store.err = fault.New(fault.Unavailable, "bus away")
	p := pod(corev1.Volume{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s", Optional: ptr(true)}}})
	if _, err := r.v.Setup(context.Background(), p, "s", nil); !fault.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
}
