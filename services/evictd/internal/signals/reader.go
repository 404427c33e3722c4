package signals

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podplane/podplane/services/evictd/internal/policy"
)

// Paths says where to look. The zero value is this host.
type Paths struct {
	// Proc and Cgroup are the mount points of procfs and the cgroup hierarchies.
	Proc, Cgroup string
	// Nodefs is a directory on the file system of pods' volumes. While it does not exist, the nearest one above counts.
	Nodefs string
}

// Reader measures.
type Reader struct {
	paths Paths

	mu       sync.Mutex
	imagefs  string // empty: not known yet
	imageErr error
}

// NewReader makes a reader.
func NewReader(p Paths) *Reader {
	if p.Proc == "" {
		p.Proc = "/proc"
	}
	if p.Cgroup == "" {
		p.Cgroup = "/sys/fs/cgroup"
	}
	if p.Nodefs == "" {
		p.Nodefs = "/"
	}
	return &Reader{paths: p}
}

// SetImagefs says which directory is on the file system of images, or why that is not known.
func (r *Reader) SetImagefs(path string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.imagefs, r.imageErr = path, err
}

func (r *Reader) imagefsPath() (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.imagefs == "" && r.imageErr == nil {
		return "", fmt.Errorf("the runtime has not said yet where images are")
	}
	return r.imagefs, r.imageErr
}

// OneFS says whether images and volumes are on one file system. Unknown counts as yes.
func (r *Reader) OneFS() bool {
	path, err := r.imagefsPath()
	if err != nil || path == "" {
		return true
	}
	var nodefs, imagefs unix.Stat_t
	if unix.Stat(existing(r.paths.Nodefs), &nodefs) != nil || unix.Stat(path, &imagefs) != nil {
		return true
	}
	return nodefs.Dev == imagefs.Dev
}

// Read measures all signals.
func (r *Reader) Read() []policy.Observation {
	list := make([]policy.Observation, 0, len(policy.Signals))
	list = append(list, r.Memory())
	nodeBytes, nodeInodes := filesystem(policy.NodefsAvailable, policy.NodefsInodesFree, existing(r.paths.Nodefs), nil)
	path, err := r.imagefsPath()
	imageBytes, imageInodes := filesystem(policy.ImagefsAvailable, policy.ImagefsInodesFree, path, err)
	return append(list, nodeBytes, nodeInodes, imageBytes, imageInodes, r.pids())
}

// Imagefs measures imagefs.available.
func (r *Reader) Imagefs() policy.Observation {
	path, err := r.imagefsPath()
	inBytes, _ := filesystem(policy.ImagefsAvailable, policy.ImagefsInodesFree, path, err)
	return inBytes
}

func observation(s policy.Signal, available, capacity int64, err error) policy.Observation {
	return policy.Observation{Signal: s, Available: max(0, available), Capacity: capacity, At: time.Now(), Err: err}
}

// Memory measures memory.available.
func (r *Reader) Memory() policy.Observation {
	capacity, workingSet, err := r.memory()
	return observation(policy.MemoryAvailable, capacity-workingSet, capacity, err)
}

func (r *Reader) memory() (capacity, workingSet int64, err error) {
	info, err := readFields(filepath.Join(r.paths.Proc, "meminfo"), "MemTotal:", "MemFree:", "Inactive(file):")
	if err != nil {
		return 0, 0, fmt.Errorf("measure memory: %w", err)
	}
	capacity = info["MemTotal:"] << 10
	usage, inactive := (info["MemTotal:"]-info["MemFree:"])<<10, info["Inactive(file):"]<<10
	if v1 := filepath.Join(r.paths.Cgroup, "memory"); exists(filepath.Join(v1, "memory.usage_in_bytes")) {
		if usage, err = readInt(filepath.Join(v1, "memory.usage_in_bytes")); err != nil {
			return 0, 0, fmt.Errorf("measure memory: %w", err)
		}
		stat, err := readFields(filepath.Join(v1, "memory.stat"), "total_inactive_file")
		if err != nil {
			return 0, 0, fmt.Errorf("measure memory: %w", err)
		}
		inactive = stat["total_inactive_file"]
		if limit, err := readInt(filepath.Join(v1, "memory.limit_in_bytes")); err == nil && limit > 0 {
			capacity = min(capacity, limit)
		}
		return capacity, max(0, usage-inactive), nil
	}
	// The root of version 2 has no memory.current, except inside a container.
	if current, err := readInt(filepath.Join(r.paths.Cgroup, "memory.current")); err == nil {
		usage = current
		if limit, err := readInt(filepath.Join(r.paths.Cgroup, "memory.max")); err == nil && limit > 0 {
			capacity = min(capacity, limit)
		}
	}
	if stat, err := readFields(filepath.Join(r.paths.Cgroup, "memory.stat"), "inactive_file"); err == nil {
		inactive = stat["inactive_file"]
	}
	return capacity, max(0, usage-inactive), nil
}

func filesystem(bytesSignal, inodesSignal policy.Signal, path string, err error) (inBytes, inInodes policy.Observation) {
	var fs unix.Statfs_t
	if err == nil {
		if err = unix.Statfs(path, &fs); err != nil {
			err = fmt.Errorf("measure file system of %s: %w", path, err)
		}
	}
	inBytes = observation(bytesSignal, int64(fs.Bavail)*fs.Bsize, int64(fs.Blocks)*fs.Bsize, err)
	if err == nil && fs.Files == 0 {
		err = fmt.Errorf("the file system of %s does not count inodes", path)
	}
	return inBytes, observation(inodesSignal, int64(fs.Ffree), int64(fs.Files), err)
}

// pids measures pid.available: what the kernel allows, less the threads that there are.
func (r *Reader) pids() policy.Observation {
	capacity, err := readInt(filepath.Join(r.paths.Proc, "sys/kernel/pid_max"))
	if err != nil {
		return observation(policy.PIDAvailable, 0, 0, fmt.Errorf("measure processes: %w", err))
	}
	if threads, err := readInt(filepath.Join(r.paths.Proc, "sys/kernel/threads-max")); err == nil {
		capacity = min(capacity, threads)
	}
	load, err := os.ReadFile(filepath.Join(r.paths.Proc, "loadavg"))
	if err != nil {
		return observation(policy.PIDAvailable, 0, 0, fmt.Errorf("measure processes: %w", err))
	}
	running, err := threadsOf(string(load))
	if err != nil {
		return observation(policy.PIDAvailable, 0, 0, fmt.Errorf("measure processes: %w", err))
	}
	return observation(policy.PIDAvailable, capacity-running, capacity, nil)
}

// threadsOf reads the number of threads from /proc/loadavg: "0.20 0.18 0.12 1/80 11206".
func threadsOf(loadavg string) (int64, error) {
	fields := strings.Fields(loadavg)
	if len(fields) >= 4 {
		if _, total, ok := strings.Cut(fields[3], "/"); ok {
			if n, err := strconv.ParseInt(total, 10, 64); err == nil && n >= 0 {
				return n, nil
			}
		}
	}
	return 0, fmt.Errorf("loadavg %q: no number of threads", loadavg)
}

func existing(dir string) string {
	for !exists(dir) && filepath.Dir(dir) != dir {
		dir = filepath.Dir(dir)
	}
	return dir
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func readInt(path string) (int64, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return n, nil
}

// readFields reads numbers from lines of "name value…". All names must be there.
func readFields(path string, names ...string) (map[string]int64, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	found := make(map[string]int64, len(names))
	lines := bufio.NewScanner(bytes.NewReader(content))
	for lines.Scan() && len(found) < len(names) {
		name, rest, _ := strings.Cut(lines.Text(), " ")
		for _, want := range names {
			if name != want {
				continue
			}
			value, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("read %s: %s: %w", path, name, err)
			}
			found[name] = n
		}
	}
	if len(found) < len(names) {
		return nil, fmt.Errorf("read %s: want %v, found %d of them", path, names, len(found))
	}
	return found, nil
}
