package corpus_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/hostruntime"
	"github.com/podplane/podplane/internal/kubepods"
)

const cgroupMount = "/sys/fs/cgroup"

// podCgroup is the key of the pod's own cgroup among those of its containers, classCgroup that of the one that it is in with the pods of its
// quality-of-service class, allCgroup that of the one of all pods. classFile is not a file but the class by the cgroup's place.
const (
	podCgroup   = "pod"
	classCgroup = "class"
	allCgroup   = "all"
	classFile   = "class"
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
	switch name {
	case podCgroup:
	case classCgroup:
		dir = filepath.Dir(dir)
	case allCgroup:
		for !strings.HasSuffix(strings.TrimSuffix(dir, ".slice"), kubepods.Name) && dir != top {
			dir = filepath.Dir(dir)
		}
	default:
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
	if err != nil {
		return "", err
	}
	value := strings.TrimSpace(string(data))
	return value, agrees(filepath.Base(dir), file, value)
}

// properties are those of systemd's units that are files of cgroup v2.
var properties = map[string]string{"memory.max": "MemoryMax", "memory.min": "MemoryMin", "memory.low": "MemoryLow", "cpu.weight": "CPUWeight", "pids.max": "TasksMax"}

// agrees says whether systemd, on a host of its own, has made the cgroup and has the kernel's value: else it would put its own there some day.
func agrees(unit, file, value string) error {
	host, err := hostruntime.DetectHost()
	if err != nil || !host.SystemdCgroup() {
		return err
	}
	out, err := exec.Command("systemctl", "show", "--property", "ActiveState,"+properties[file], unit).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ask systemd for %s: %w: %s", unit, err, out)
	}
	said := strings.ReplaceAll(string(out), "=infinity", "=max")
	if !strings.Contains(said, "ActiveState=active\n") {
		return fmt.Errorf("systemd says of %s: %s, want it to be active", unit, said)
	}
	if p, ok := properties[file]; ok && !strings.Contains(said, p+"="+value+"\n") {
		return fmt.Errorf("systemd says of %s: %s, the kernel has %s in %s", unit, said, value, file)
	}
	return nil
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

// leftCgroups lists the pods' cgroups that are left below a cgroup, and the slices that systemd has of pods.
func leftCgroups(parent string) ([]string, error) {
	var left []string
	tops, err := filepath.Glob(filepath.Join(cgroupMount, "*", parent))
	if err != nil {
		return nil, err
	}
	for _, top := range append(tops, filepath.Join(cgroupMount, parent)) {
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && podDir.MatchString(d.Name()) {
				left = append(left, path)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if _, err := os.Lstat("/run/systemd/system"); err != nil {
		return left, nil
	}
	out, err := exec.Command("systemctl", "list-units", "--all", "--plain", "--no-legend", "--type=slice").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("list slices: %w: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if unit, _, _ := strings.Cut(line, " "); podDir.MatchString(unit) && strings.HasPrefix(unit, strings.TrimSuffix(parent, ".slice")) {
			left = append(left, unit)
		}
	}
	return left, nil
}

var podDir = regexp.MustCompile(`(^|-)pod[0-9a-f]{8}[-_][0-9a-f]{4}`)

// What the stack of all cases reserves of the machine, and how it shares the rest.
const (
	reservedMemory = 100 << 20
	reservedMilli  = 100
	reservedPIDs   = 100
	swapRequest    = 64 << 20
)

var resourceEnv = []string{
	"PODPLANE_SYNCD_RESOURCES_SYSTEM_RESERVED=cpu=50m,memory=50Mi,pid=50", "PODPLANE_SYNCD_RESOURCES_KUBE_RESERVED=cpu=50m,memory=50Mi,pid=50",
	"PODPLANE_SYNCD_RESOURCES_MEMORY_THROTTLING_FACTOR=0.9", "PODPLANE_SYNCD_RESOURCES_MEMORY_RESERVATION_POLICY=TieredReservation",
	"PODPLANE_SYNCD_RESOURCES_MEMORY_SWAP_BEHAVIOR=LimitedSwap",
}

// machine is what cases are told of this machine, by Kubernetes' documented formulas.
func machine() (map[string]string, error) {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	kilobytes := map[string]int64{}
	for line := range strings.Lines(string(info)) {
		name, rest, _ := strings.Cut(line, ":")
		if fields := strings.Fields(rest); len(fields) > 0 {
			if kilobytes[name], err = strconv.ParseInt(fields[0], 10, 64); err != nil {
				return nil, err
			}
		}
	}
	total, swap := kilobytes["MemTotal"]<<10, kilobytes["SwapTotal"]<<10
	pids := int64(math.MaxInt64)
	for _, file := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		if err != nil {
			return nil, err
		}
		pids = min(pids, n)
	}
	const page = 4096
	floor := func(bytes int64) int64 { return bytes / page * page }
	shares := (int64(runtime.NumCPU())*1000 - reservedMilli) * 1024 / 1000
	values := map[string]int64{
		"ALL_MEMORY": floor(total - reservedMemory), "ALL_PIDS": pids - reservedPIDs, "ALL_SHARES": shares, "ALL_WEIGHT": 1 + (shares-2)*9999/262142,
		"SWAP_OF_64MI": floor(int64(float64(swapRequest) / float64(total) * float64(swap))), "HIGH_OF_NONE": floor(int64(0.9 * float64(total-reservedMemory))),
	}
	texts := make(map[string]string, len(values))
	for name, v := range values {
		texts[name] = strconv.FormatInt(v, 10)
	}
	return texts, nil
}
