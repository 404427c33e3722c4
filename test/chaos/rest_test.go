package chaos_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
)

func sortedNames(m map[string]*kind) []string { return slices.Sorted(maps.Keys(m)) }

// list is all pods that the API shows.
func (s *stage) list(ctx context.Context) ([]corev1.Pod, error) {
	a, err := s.Want(ctx, http.StatusOK, http.MethodGet, "/api/v1/pods", "", nil)
	if err != nil {
		return nil, err
	}
	var l corev1.PodList
	if err := json.Unmarshal(a.Body, &l); err != nil {
		return nil, fmt.Errorf("decode %s: %w", a.Body, err)
	}
	return l.Items, nil
}

// agree compares what is wished for, what the API shows and what the runtime has.
func (s *stage) agree(ctx context.Context) error {
	shown, err := s.list(ctx)
	if err != nil {
		return err
	}
	has, err := s.client.ListPods(ctx, cri.Filter{})
	if err != nil {
		return err
	}
	byUID := make(map[string]*pod.RuntimePod)
	for i := range has {
		byUID[has[i].UID] = &has[i]
	}
	found := make(map[string]bool)
	for i := range shown {
		p := &shown[i]
		k := s.wanted[p.Name]
		if k == nil {
			return wrong(p.Name, "it was deleted and is still there: annotations %v, %s", p.Annotations, brief(p))
		}
		found[p.Name] = true
		if err := agreeOn(p, k, byUID[string(p.UID)]); err != nil {
			return err
		}
		delete(byUID, string(p.UID))
	}
	for _, p := range byUID {
		return fmt.Errorf("the runtime has %d sandboxes and %d containers of %s (%s), which is no pod any more", len(p.Sandboxes), len(p.Containers), p.Name, p.UID)
	}
	for name := range s.wanted {
		if !found[name] {
			return wrong(name, "it was created, and is not there")
		}
	}
	return nil
}

// agreeOn compares a pod with what the runtime has of it.
func agreeOn(p *corev1.Pod, k *kind, has *pod.RuntimePod) error {
	if has == nil {
		has = &pod.RuntimePod{}
	}
	running := has.Running()
	if err := k.check(p, len(running)); err != nil {
		return err
	}
	if n := ready(has); k.runs > 0 && n != 1 || k.runs == 0 && n != 0 {
		return wrong(p.Name, "%d ready sandboxes of a %s", n, k.name)
	}
	shown := make(map[string]string)
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			if list[i].State.Running != nil {
				_, shown[list[i].Name], _ = strings.Cut(list[i].ContainerID, "://")
			}
		}
	}
	for _, c := range running {
		if k.runs > 0 && shown[c.Name] != c.ID {
			return wrong(p.Name, "container %s runs as %s, the status says %q", c.Name, c.ID, shown[c.Name])
		}
	}
	return nil
}

// nothingLeft looks for all that pods that are gone could leave.
func (s *stage) nothingLeft(ctx context.Context) error {
	has, err := s.client.ListPods(ctx, cri.Filter{})
	if err != nil {
		return err
	}
	if len(has) > 0 {
		return fmt.Errorf("the runtime has %d pods, the first: %+v", len(has), has[0])
	}
	if tasks := s.ctr("tasks", "ls", "-q"); len(tasks) > 0 {
		return fmt.Errorf("containerd has tasks: %v", tasks)
	}
	if left := s.ctr("containers", "ls", "-q", kindLabel+"==container"); len(left) > 0 {
		return fmt.Errorf("containerd has containers: %v", left)
	}
	s.records = len(s.ctr("containers", "ls", "-q", kindLabel+"==sandbox"))
	for _, look := range []func() error{s.mountsLeft, s.directoriesLeft, s.cgroupsLeft, s.processesLeft} {
		if err := look(); err != nil {
			return err
		}
	}
	return nil
}

// kindLabel is how containerd's CRI tells sandboxes from containers. Of a sandbox whose making was cut off, and which is then removed over CRI, containerd can keep a
// record that CRI does not show any more, and an empty shim, until it starts again: neither runs anything, and nobody can remove them over CRI. They are counted.
const kindLabel = `labels."io.cri-containerd.kind"`

// ctr is what containerd's command line lists.
func (s *stage) ctr(args ...string) []string {
	return slices.DeleteFunc(strings.Split(s.node.Ctr(s.t, args...), "\n"), func(line string) bool { return line == "" || strings.Contains(line, "level=warning") })
}

// mountsLeft finds mounts of pods, volumes and containers.
func (s *stage) mountsLeft() error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for _, line := range strings.Split(string(mounts), "\n") {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], s.node.Dir+"/") {
			return fmt.Errorf("a mount is left: %s", line)
		}
	}
	return nil
}

func (s *stage) directoriesLeft() error {
	for _, dir := range []string{filepath.Join(s.Root(), "pods"), s.PodLogDir()} {
		left, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(left) > 0 {
			return fmt.Errorf("directories of pods are left: %v %w", left, err)
		}
	}
	return nil
}

// cgroupsLeft finds cgroups of pods and containers below that of the stage, in any hierarchy.
func (s *stage) cgroupsLeft() error {
	return filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return nil // it went while we looked
		}
		if d.IsDir() && strings.Contains(path, s.cgroup+"/") && (strings.HasPrefix(d.Name(), "pod") || strings.Contains(path, "/pod")) {
			return fmt.Errorf("a cgroup is left: %s", path)
		}
		return nil
	})
}

// processesLeft finds processes of pods: what runs below a shim of the node's containerd.
func (s *stage) processesLeft() error {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return err
	}
	parents := make(map[string]string)
	for _, f := range stats {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // it ended while we looked
		}
		// The name in parentheses may hold spaces; after it come the state and the parent.
		if _, rest, found := strings.Cut(string(data), ") "); found {
			if fields := strings.Fields(rest); len(fields) > 1 {
				parents[filepath.Base(filepath.Dir(f))] = fields[1]
			}
		}
	}
	s.shims = 0
	for pid := range parents {
		line := commandLine(pid)
		if strings.Contains(line, "containerd-shim") && strings.Contains(line, s.node.Dir) {
			s.shims++
			continue
		}
		if parent := commandLine(parents[pid]); strings.Contains(parent, "containerd-shim") && strings.Contains(parent, s.node.Dir) {
			return fmt.Errorf("process %s (%s) is left below %s", pid, line, parent)
		}
	}
	return nil
}

// commandLine is a process's, empty when it has ended.
func commandLine(pid string) string {
	line, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
	if err != nil {
		return ""
	}
	return strings.ReplaceAll(string(line), "\x00", " ")
}

// fewMore is how many more goroutines a service may have than before: connections come and go.
const fewMore = 8

// settled waits until no service has many more goroutines than before, and says how many each has. Without a before it waits until they stop changing.
func (s *stage) settled(ctx context.Context, before map[string]int) map[string]int {
	s.t.Helper()
	var now, last map[string]int
	s.eventually(ctx, "goroutines", func(ctx context.Context) error {
		var err error
		if now, err = s.goroutines(ctx); err != nil {
			return err
		}
		if before == nil {
			was := last
			if last = now; !maps.Equal(was, now) {
				return fmt.Errorf("%v, then %v", was, now)
			}
			return nil
		}
		for service, n := range now {
			if n > before[service]+fewMore {
				return fmt.Errorf("%s has %d goroutines, before it had %d", service, n, before[service])
			}
		}
		return nil
	})
	return now
}

// readGauge reads one value out of a page of metrics.
func readGauge(r io.Reader, name string) (int, error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if value, found := strings.CutPrefix(lines.Text(), name+" "); found {
			return strconv.Atoi(value)
		}
	}
	return 0, fmt.Errorf("no metric %s: %w", name, lines.Err())
}
