package up

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/podplane/podplane/internal/kubepods"
)

// cgroupMount is where the host's cgroup hierarchies are.
const cgroupMount = "/sys/fs/cgroup"

// removeCgroups removes the cgroups of all pods and of their classes below root, of the hierarchies at mount, where no pod is in them. systemd removes its
// slices itself.
func removeCgroups(mount, root string) error {
	tree := kubepods.Tree{Root: root}
	var failed error
	for _, name := range []string{tree.Class("burstable"), tree.Class("besteffort"), tree.All()} {
		several, err := filepath.Glob(filepath.Join(mount, "*", name)) // cgroup v1
		if err != nil {
			return err
		}
		for _, dir := range append(several, filepath.Join(mount, name)) {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
				failed = errors.Join(failed, err)
			}
		}
	}
	return failed
}
