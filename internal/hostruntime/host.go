package hostruntime

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Host is what matters about a host to a container runtime.
type Host struct {
	// CgroupV2: /sys/fs/cgroup is the unified hierarchy. Systemd: it was started by systemd, which then owns the cgroups.
	CgroupV2 bool
	Systemd  bool
	// SysResource: this process may lower oom_score_adj and raise limits.
	SysResource bool
	// SharedMounts: mounts below / propagate, so that containers can see mounts made later.
	SharedMounts bool
	// Iptables: the iptables program is there, which host ports and masquerading need.
	Iptables bool
}

// SystemdCgroup says whether the runtime has to ask systemd for its cgroups.
func (h Host) SystemdCgroup() bool { return h.Systemd && h.CgroupV2 }

// Lacks says in a sentence each what the host lacks and what follows from it. Callers log them once.
func (h Host) Lacks() []string {
	var lacks []string
	if !h.CgroupV2 {
		lacks = append(lacks, "the host uses cgroup v1: memory QoS, swap control and OOM kills of whole groups are not available")
	}
	if !h.SysResource {
		lacks = append(lacks, "CAP_SYS_RESOURCE is missing: containers keep the runtime's oom_score_adj where theirs would be lower")
	}
	if !h.SharedMounts {
		lacks = append(lacks, "the mount propagation of / is private: mounts made after a container started do not reach it")
	}
	if !h.Iptables {
		lacks = append(lacks, "there is no iptables program: host ports do not work, and pods reach no other hosts")
	}
	return lacks
}

const (
	capSysResource  = 24
	cgroupRoot      = "/sys/fs/cgroup"
	systemdRunning  = "/run/systemd/system"
	procSelfStatus  = "/proc/self/status"
	procSelfMounts  = "/proc/self/mountinfo"
	administrators  = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	pathEnvironment = "PATH"
)

// DetectHost looks at the host.
func DetectHost() (Host, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(cgroupRoot, &fs); err != nil {
		return Host{}, fmt.Errorf("look at %s: %w", cgroupRoot, err)
	}
	h := Host{CgroupV2: fs.Type == unix.CGROUP2_SUPER_MAGIC}
	if info, err := os.Lstat(systemdRunning); err == nil && info.IsDir() {
		h.Systemd = true
	}
	status, err := os.ReadFile(procSelfStatus)
	if err != nil {
		return Host{}, fmt.Errorf("read capabilities: %w", err)
	}
	if h.SysResource, err = hasCapability(string(status), capSysResource); err != nil {
		return Host{}, err
	}
	mountinfo, err := os.ReadFile(procSelfMounts)
	if err != nil {
		return Host{}, fmt.Errorf("read mount table: %w", err)
	}
	h.SharedMounts = rootIsShared(string(mountinfo))
	_, err = findProgram("iptables")
	h.Iptables = err == nil
	return h, nil
}

func hasCapability(status string, number uint) (bool, error) {
	for line := range strings.Lines(status) {
		value, ok := strings.CutPrefix(line, "CapEff:")
		if !ok {
			continue
		}
		mask, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err != nil {
			return false, fmt.Errorf("read capabilities: %w", err)
		}
		return mask&(1<<number) != 0, nil
	}
	return false, fmt.Errorf("read capabilities: no CapEff in %s", procSelfStatus)
}

// rootIsShared looks for the last mount on /, which covers the others.
func rootIsShared(mountinfo string) bool {
	shared := false
	for lines := bufio.NewScanner(strings.NewReader(mountinfo)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 7 || fields[4] != "/" {
			continue
		}
		shared = false
		for _, field := range fields[6:] {
			if field == "-" {
				break
			}
			shared = shared || strings.HasPrefix(field, "shared:")
		}
	}
	return shared
}

// findProgram looks in PATH and then where administrators' programs are, which a user's PATH may lack.
func findProgram(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range strings.Split(administrators, ":") {
		if path, err := exec.LookPath(dir + "/" + name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("program %s: %w", name, exec.ErrNotFound)
}
