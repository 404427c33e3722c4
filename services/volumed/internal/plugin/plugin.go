package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/services/volumed/internal/mounts"
)

// Objects reads ConfigMaps and Secrets, with the revision that they were read in. An object that does not exist is
// an error of kind NotFound.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, uint64, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, uint64, error)
}

// Volumes sets volumes up below a root directory. Operations on different volumes, and on different pods, may run at
// once; those on one volume must not.
type Volumes struct {
	root    string
	objects Objects
	memory  int64
}

// New makes the directories that all pods share.
func New(root string, objects Objects) (*Volumes, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("resolve root directory: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(root, podsDir), 0o750); err != nil {
		return nil, fmt.Errorf("make root directory: %w", err)
	}
	if root, err = filepath.EvalSymlinks(root); err != nil { // as the mount table has it
		return nil, fmt.Errorf("resolve root directory: %w", err)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return nil, fmt.Errorf("read the node's memory: %w", err)
	}
	return &Volumes{root: root, objects: objects, memory: int64(info.Totalram) * int64(info.Unit)}, nil
}

const (
	podsDir    = "pods"
	volumesDir = "volumes"
	dirMode    = 0o750
)

// Mounted is a volume that is set up.
type Mounted struct {
	// HostPath is where containers mount it from.
	HostPath string
	// ReadOnly: containers may only read it.
	ReadOnly bool
	// Attributes are kept in the record and given to the next Setup of the volume.
	Attributes map[string]string
	// Revision is the revision of the object that the content is from; 0 for none.
	Revision uint64
}

// Setup sets a volume of the pod up, or brings its content up to date. What is there already stays as it is. before are
// the attributes of the last Setup, nil for the first.
func (s *Volumes) Setup(ctx context.Context, p *Pod, volume string, before map[string]string) (Mounted, error) {
	v := p.volume(volume)
	if v == nil {
		return Mounted{}, fmt.Errorf("volume %q: not in the pod's spec", volume)
	}
	switch {
	case v.EmptyDir != nil:
		return s.emptyDir(p, v)
	case v.HostPath != nil:
		return hostPath(v)
	case v.ConfigMap != nil:
		return s.configMap(ctx, p, v, before)
	case v.Secret != nil:
		return s.secret(ctx, p, v, before)
	default:
		return Mounted{}, fmt.Errorf("volume %q: only emptyDir, hostPath, configMap and secret are supported", volume)
	}
}

func (p *Pod) volume(name string) *corev1.Volume {
	for i := range p.Volumes {
		if p.Volumes[i].Name == name {
			return &p.Volumes[i]
		}
	}
	return nil
}

// place is a volume's directory.
type place struct {
	parent *os.Root // the plugin's directory of the pod
	name   string
	path   string
}

func (pl *place) close() { pl.parent.Close() }

// place opens the directory in which the volume's directory is, and makes it if need be.
func (s *Volumes) place(p *Pod, plugin, volume string, mode fs.FileMode) (*place, error) {
	if err := errors.Join(checkName("pod UID", p.UID), checkName("volume", volume)); err != nil {
		return nil, err
	}
	pods, err := os.OpenRoot(filepath.Join(s.root, podsDir))
	if err != nil {
		return nil, fmt.Errorf("open the pods' directory: %w", err)
	}
	defer pods.Close()
	dir := filepath.Join(p.UID, volumesDir, dirName(plugin))
	if err := pods.MkdirAll(dir, dirMode); err != nil {
		return nil, fmt.Errorf("make the volumes' directory: %w", err)
	}
	if mode != dirMode {
		if err := pods.Chmod(dir, mode); err != nil {
			return nil, fmt.Errorf("set permissions of the volumes' directory: %w", err)
		}
	}
	parent, err := pods.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the volumes' directory: %w", err)
	}
	return &place{parent: parent, name: volume, path: filepath.Join(s.root, podsDir, dir, volume)}, nil
}

// mkdir makes the volume's directory with its owner and permissions, all at once. One that exists stays as it is: the
// pod may have changed it.
func (pl *place) mkdir(mode fs.FileMode, gid *int64) error {
	info, err := pl.parent.Lstat(pl.name)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return fmt.Errorf("%s: exists, and is not a directory", pl.path)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("look for the volume's directory: %w", err)
	}
	unfinished := ".new." + pl.name
	if err := pl.parent.Mkdir(unfinished, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the volume's directory: %w", err)
	}
	if gid != nil {
		mode |= fs.ModeSetgid
		if err := pl.parent.Lchown(unfinished, -1, int(*gid)); err != nil {
			return fmt.Errorf("give the volume's directory to group %d: %w", *gid, err)
		}
	}
	if err := pl.parent.Chmod(unfinished, mode); err != nil {
		return fmt.Errorf("set permissions of the volume's directory: %w", err)
	}
	if err := pl.parent.Rename(unfinished, pl.name); err != nil {
		return fmt.Errorf("put the volume's directory in place: %w", err)
	}
	return nil
}

// tmpfs mounts a tmpfs on the volume's directory, unless there is one.
func (pl *place) tmpfs(o mounts.Tmpfs) error {
	if err := pl.mkdir(dirMode, nil); err != nil {
		return err
	}
	dir, err := pl.parent.Open(pl.name)
	if err != nil {
		return fmt.Errorf("open the volume's directory: %w", err)
	}
	defer dir.Close()
	mounted, err := mounts.IsMounted(pl.path)
	if err != nil {
		return err
	}
	if !mounted {
		if o.GID != nil {
			o.Mode |= unix.S_ISGID
		}
		return mounts.MountTmpfs(dir, o)
	}
	if is, err := mounts.IsTmpfs(dir); err != nil || !is {
		return errors.Join(err, fmt.Errorf("%s: something else than a tmpfs is mounted", pl.path))
	}
	return nil
}

func (s *Volumes) emptyDir(p *Pod, v *corev1.Volume) (Mounted, error) {
	pl, err := s.place(p, EmptyDir, v.Name, dirMode)
	if err != nil {
		return Mounted{}, err
	}
	defer pl.close()
	m := Mounted{HostPath: pl.path}
	switch medium := v.EmptyDir.Medium; medium {
	case corev1.StorageMediumDefault:
		return m, pl.mkdir(0o777, p.FSGroup)
	case corev1.StorageMediumMemory:
		size := s.memory
		for _, limit := range []int64{p.MemoryLimit, quantity(v.EmptyDir.SizeLimit)} {
			if limit > 0 {
				size = min(size, limit)
			}
		}
		m.Attributes = map[string]string{"medium": string(medium), "size": fmt.Sprint(size)}
		return m, pl.tmpfs(mounts.Tmpfs{Size: size, Mode: 0o777, GID: p.FSGroup})
	default:
		return Mounted{}, fmt.Errorf("medium %q: only %q and %q are supported", medium, "", corev1.StorageMediumMemory)
	}
}
