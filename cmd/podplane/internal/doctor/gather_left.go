package doctor

import (
	"context"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/podplane/podplane/cmd/podplane/internal/up"
	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/kubepods"
)

// thing is something of a pod on the host, by its path or name.
type thing struct {
	kind kind
	uid  string
}

type kind int

const (
	directory kind = iota
	mount
	cgroup
	sandbox
)

// leftovers are the things that are there before and after, of pods that nobody wants.
func leftovers(before, after map[string]thing, wanted map[string]bool) Leftovers {
	l := Leftovers{Looked: true}
	lists := map[kind]*[]string{directory: &l.Directories, mount: &l.Mounts, cgroup: &l.Cgroups, sandbox: &l.Sandboxes}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		t := before[name]
		if after[name] == t && !wanted[t.uid] {
			*lists[t.kind] = append(*lists[t.kind], name)
		}
	}
	return l
}

// findThings lists what pods have on the host.
func findThings(ctx context.Context, c up.Config, endpoint string) map[string]thing {
	things := map[string]thing{}
	pods := filepath.Join(c.Root, "pods")
	entries, err := os.ReadDir(pods)
	if err == nil { // none yet, otherwise
		for _, e := range entries {
			if uidPattern.MatchString(e.Name()) {
				things[filepath.Join(pods, e.Name())] = thing{directory, e.Name()}
			}
		}
	}
	for path, uid := range podMounts(read("/proc/self/mountinfo"), pods) {
		things[path] = thing{mount, uid}
	}
	findCgroups(c.CgroupRoot, things)
	findSandboxes(ctx, c.Node, endpoint, things)
	return things
}

var (
	uidPattern    = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	cgroupPattern = regexp.MustCompile(`(?:^|-)pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:\.slice)?$`)
)

// podMounts gives the mounts of a mount table that are below a directory of a pod, with the pod's UID.
func podMounts(mountinfo, pods string) map[string]string {
	mounts := map[string]string{}
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		rest, below := strings.CutPrefix(f[4], pods+"/")
		if uid, _, _ := strings.Cut(rest, "/"); below && uidPattern.MatchString(uid) {
			mounts[f[4]] = uid
		}
	}
	return mounts
}

// cgroupUID is the UID of the pod that a cgroup is of, by its name with cgroupfs or systemd.
func cgroupUID(name string) (string, bool) {
	m := cgroupPattern.FindStringSubmatch(name)
	if m == nil {
		return "", false
	}
	return strings.ReplaceAll(m[1], "_", "-"), true
}

// maxCgroupDepth is how far below the root of a hierarchy pods' cgroups are looked for.
const maxCgroupDepth = 8

func findCgroups(root string, things map[string]thing) {
	hierarchies := []string{cgroupRoot}
	if entries, err := os.ReadDir(cgroupRoot); err == nil {
		for _, e := range entries {
			hierarchies = append(hierarchies, filepath.Join(cgroupRoot, e.Name()))
		}
	}
	for _, h := range hierarchies {
		for _, tree := range []kubepods.Tree{{Root: root}, {Root: root, Systemd: true}} {
			top := filepath.Join(h, tree.Dir(tree.All()))
			_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
				if err != nil || !d.IsDir() {
					return nil // it went while we looked, or is not there
				}
				if uid, is := cgroupUID(d.Name()); is {
					things[path] = thing{cgroup, uid}
					return fs.SkipDir
				}
				if strings.Count(path[len(top):], "/") >= maxCgroupDepth {
					return fs.SkipDir
				}
				return nil
			})
		}
	}
}

// findSandboxes asks the runtime; one that does not answer is a finding of its own.
func findSandboxes(ctx context.Context, node, endpoint string, things map[string]thing) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	client, err := cri.Dial(ctx, endpoint, cri.Options{Node: node})
	if err != nil {
		return
	}
	defer func() { _ = client.Close() }()
	list, err := client.ListSandboxes(ctx, cri.Filter{})
	if err != nil {
		return
	}
	for _, s := range list {
		things[s.Namespace+"/"+s.Name+" ("+s.ID+")"] = thing{sandbox, s.UID}
	}
}
