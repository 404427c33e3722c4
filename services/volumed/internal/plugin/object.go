package plugin

import (
	"context"
	"fmt"
	"io/fs"
	"os"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/volumed/internal/atomicwriter"
	"github.com/podplane/podplane/services/volumed/internal/mounts"
)

// attrImmutable marks a volume whose object is immutable: its content never changes again.
const attrImmutable = "immutable"

// source is what a volume takes from an object.
type source struct {
	kind, namespace, name string
	optional              bool
	mode                  *int32
	items                 []corev1.KeyToPath
}

// content is an object as it was read.
type content struct {
	data      map[string][]byte
	immutable bool
	revision  uint64
}

func (s *Volumes) configMap(ctx context.Context, p *Pod, v *corev1.Volume, before map[string]string) (Mounted, error) {
	c := v.ConfigMap
	src := source{kind: kindConfigMap, namespace: p.Namespace, name: c.Name, optional: isTrue(c.Optional), mode: c.DefaultMode, items: c.Items}
	pl, err := s.place(p, ConfigMap, v.Name, dirMode)
	if err != nil {
		return Mounted{}, err
	}
	defer pl.close()
	read := func() (content, error) {
		o, revision, err := s.objects.ConfigMap(ctx, p.Namespace, c.Name)
		if err != nil {
			return content{}, err
		}
		data := make(map[string][]byte, len(o.Data)+len(o.BinaryData))
		for k, v := range o.Data {
			data[k] = []byte(v)
		}
		for k, v := range o.BinaryData {
			data[k] = v
		}
		return content{data: data, immutable: isTrue(o.Immutable), revision: revision}, nil
	}
	return fill(pl, src, before, p.FSGroup, read, func() error { return pl.mkdir(0o755, p.FSGroup) })
}

// secret is like configMap, but nothing of it ever touches a disk, and only root gets to it from the node.
func (s *Volumes) secret(ctx context.Context, p *Pod, v *corev1.Volume, before map[string]string) (Mounted, error) {
	c := v.Secret
	src := source{kind: kindSecret, namespace: p.Namespace, name: c.SecretName, optional: isTrue(c.Optional), mode: c.DefaultMode, items: c.Items}
	pl, err := s.place(p, Secret, v.Name, 0o700)
	if err != nil {
		return Mounted{}, err
	}
	defer pl.close()
	read := func() (content, error) {
		o, revision, err := s.objects.Secret(ctx, p.Namespace, c.SecretName)
		if err != nil {
			return content{}, err
		}
		return content{data: o.Data, immutable: isTrue(o.Immutable), revision: revision}, nil
	}
	mount := func() error { return pl.tmpfs(mounts.Tmpfs{Mode: 0o755, GID: p.FSGroup}) }
	return fill(pl, src, before, p.FSGroup, read, mount)
}

// fill writes what the volume takes from its object. Nothing is made before the object could be read.
func fill(pl *place, src source, before map[string]string, gid *int64, read func() (content, error), prepare func() error) (Mounted, error) {
	m := Mounted{HostPath: pl.path, ReadOnly: true}
	if before[attrImmutable] == "true" && pl.filled() {
		m.Attributes = before
		return m, nil
	}
	c, err := read()
	missing := fault.Is(err, fault.NotFound)
	switch {
	case missing && !src.optional:
		return Mounted{}, fault.New(fault.NotFound, "%s %q not found in namespace %q", src.kind, src.name, src.namespace)
	case err != nil && !missing:
		return Mounted{}, fmt.Errorf("read %s %q in namespace %q: %w", src.kind, src.name, src.namespace, err)
	}
	files, err := src.files(c.data)
	if err != nil {
		return Mounted{}, err
	}
	if err := prepare(); err != nil {
		return Mounted{}, err
	}
	dir, err := pl.parent.OpenRoot(pl.name)
	if err != nil {
		return Mounted{}, fmt.Errorf("open the volume's directory: %w", err)
	}
	defer dir.Close()
	if _, err := atomicwriter.Write(dir, files, atomicwriter.Options{GID: gid}); err != nil {
		return Mounted{}, fmt.Errorf("write the content of %s %q: %w", src.kind, src.name, err)
	}
	m.Revision = c.revision
	if c.immutable {
		m.Attributes = map[string]string{attrImmutable: "true"}
	}
	return m, nil
}

// filled says whether the volume has content.
func (pl *place) filled() bool {
	info, err := pl.parent.Stat(pl.name + "/..data")
	return err == nil && info.IsDir()
}

// files chooses keys, paths and permissions.
func (src *source) files(data map[string][]byte) (map[string]atomicwriter.File, error) {
	mode := fs.FileMode(0o644)
	if src.mode != nil {
		mode = fs.FileMode(*src.mode) & os.ModePerm
	}
	files := make(map[string]atomicwriter.File, len(data))
	if len(src.items) == 0 {
		for k, v := range data {
			files[k] = atomicwriter.File{Data: v, Mode: mode}
		}
		return files, nil
	}
	for _, item := range src.items {
		v, ok := data[item.Key]
		if !ok {
			if src.optional {
				continue
			}
			return nil, fault.New(fault.NotFound, "%s %q in namespace %q has no key %q", src.kind, src.name, src.namespace, item.Key)
		}
		f := atomicwriter.File{Data: v, Mode: mode}
		if item.Mode != nil {
			f.Mode = fs.FileMode(*item.Mode) & os.ModePerm
		}
		files[item.Path] = f
	}
	return files, nil
}

func isTrue(b *bool) bool { return b != nil && *b }
