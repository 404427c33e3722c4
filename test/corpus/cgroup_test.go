package corpus_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const cgroupMount = "/sys/fs/cgroup"

// podCgroup is the key of the pod's own cgroup among those of its containers; class is not a file but the quality-of-service class by the
// cgroup's place.
const (
	podCgroup = "pod"
	classFile = "class"
)

// checkCgroups reads the kernel's files.
func (r *run) checkCgroups(w *want, podJSON []byte) error {
	if w.Cgroups.V1 == nil && w.Cgroups.V2 == nil {
		return nil
	}
	var p corev1.Pod
	if err := json.Unmarshal(podJSON, &p); err != nil {
		return err
	}
	groups, unified := w.Cgroups.V1, false
	if _, err := os.Stat(filepath.Join(cgroupMount, "cgroup.controllers")); err == nil {
		groups, unified = w.Cgroups.V2, true
	}
	if groups == nil {
		return fmt.Errorf("the case does not say what this host's cgroups (unified: %t) must have", unified)
	}
	for name, files := range groups {
		for file, value := range files {
			got, err := r.cgroupFile(&p, name, file, unified)
			if err != nil {
				return err
			}
			if err := match(fmt.Sprintf("%s of the cgroup of %s", file, name), value, got); err != nil {
				return err
			}
		}
	}
	return nil
}

// cgroupFile reads a file of the cgroup of the pod, or of a container of it.
func (r *run) cgroupFile(p *corev1.Pod, name, file string, unified bool) (string, error) {
	top := cgroupMount
	if !unified {
		controller, _, _ := strings.Cut(file, ".")
		if file == classFile {
			controller = "cpu"
		}
		top = filepath.Join(cgroupMount, controller)
	}
	dir, err := findDir(top, string(p.UID))
	if err != nil {
		return "", err
	}
	if file == classFile {
		for _, class := range []string{"burstable", "besteffort"} {
			if strings.Contains(dir, class) {
				return class, nil
			}
		}
		return "guaranteed", nil
	}
	if name != podCgroup {
		id := ""
		for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
			for _, c := range list {
				if c.Name == name {
					_, id, _ = strings.Cut(c.ContainerID, "://")
				}
			}
		}
		if id == "" {
			return "", fmt.Errorf("container %s has no ID yet", name)
		}
		if dir, err = findDir(dir, id); err != nil {
			return "", err
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, file))
	return strings.TrimSpace(string(data)), err
}

var errFound = errors.New("found")

// findDir finds the cgroup below top whose name contains an ID, as it is or as systemd writes it.
func findDir(top, id string) (string, error) {
	slice, found := strings.ReplaceAll(id, "-", "_"), ""
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it went while we looked
		}
		if d.IsDir() && path != top && (strings.Contains(d.Name(), id) || strings.Contains(d.Name(), slice)) {
			found = path
			return errFound
		}
		return nil
	})
	if err != nil && !errors.Is(err, errFound) {
		return "", err
	}
	if found == "" {
		return "", fmt.Errorf("no cgroup of %s below %s", id, top)
	}
	return found, nil
}
