package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/podplane/podplane/cmd/podplane/internal/up"
	"github.com/podplane/podplane/internal/hostruntime"
)

const cgroupRoot = "/sys/fs/cgroup"

func gatherHost(c up.Config) Host {
	h := Host{UID: os.Geteuid(), BridgeFilter: -1, NewestFile: newestFile(c.BusDir())}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		h.Kernel = unix.ByteSliceToString(uts.Sysname[:]) + " " + unix.ByteSliceToString(uts.Release[:])
	}
	h.Capabilities = effective(read("/proc/self/status"))
	if host, err := hostruntime.DetectHost(); err != nil {
		h.CgroupsErr = err.Error()
	} else {
		h.CgroupV2, h.Systemd, h.SharedRoot, h.Iptables = host.CgroupV2, host.Systemd, host.SharedMounts, host.Iptables
	}
	gatherCgroups(&h)
	h.Forwarding = number("/proc/sys/net/ipv4/ip_forward") == 1
	if _, err := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables"); err == nil {
		h.BridgeFilter = int(number("/proc/sys/net/bridge/bridge-nf-call-iptables"))
	}
	h.InotifyInstances = number("/proc/sys/fs/inotify/max_user_instances")
	h.InotifyWatches = number("/proc/sys/fs/inotify/max_user_watches")
	_, err := os.Stat("/proc/pressure/memory")
	h.Pressure = err == nil
	var tx unix.Timex
	state, err := unix.Adjtimex(&tx)
	h.ClockSynced = err == nil && state != unix.TIME_ERROR && tx.Status&unix.STA_UNSYNC == 0
	return h
}

// gatherCgroups finds the controllers: of v2 in one file, of v1 in the kernel's list of those that have a hierarchy.
func gatherCgroups(h *Host) {
	root := cgroupRoot
	if h.CgroupV2 {
		h.Controllers = strings.Fields(read(filepath.Join(cgroupRoot, "cgroup.controllers")))
	} else {
		root = filepath.Join(cgroupRoot, "memory")
		for line := range strings.Lines(read("/proc/cgroups")) {
			f := strings.Fields(line)
			if len(f) == 4 && f[0] != "#subsys_name" && f[1] != "0" && f[3] == "1" {
				h.Controllers = append(h.Controllers, f[0])
			}
		}
	}
	slices.Sort(h.Controllers)
	h.CgroupsReadOnly = errors.Is(unix.Access(root, unix.W_OK), unix.EROFS)
}

// effective are the effective capabilities in /proc/<pid>/status.
func effective(status string) uint64 {
	for line := range strings.Lines(status) {
		if hex, is := strings.CutPrefix(line, "CapEff:"); is {
			mask, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			if err == nil {
				return mask
			}
		}
	}
	return 0
}

// read gives a file of the kernel; nothing where it can't be read, which is what the judges then see.
func read(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(data)
}

func number(path string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(read(path)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func isInUse(err error) bool { return errors.Is(err, syscall.EADDRINUSE) }

// holder names the process that listens on a TCP port; ours says that it is a podplane.
func holder(port string) (name string, ours bool) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", false
	}
	var inodes []string
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		inodes = append(inodes, listening(read(table), uint16(n))...)
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(inodes) == 0 {
		return "", false
	}
	for _, p := range processes {
		fds, err := os.ReadDir(filepath.Join(p, "fd"))
		if err != nil {
			continue // it ended, or is another user's
		}
		for _, fd := range fds {
			target, err := os.Readlink(filepath.Join(p, "fd", fd.Name()))
			if err == nil && slices.Contains(inodes, target) {
				comm := strings.TrimSpace(read(filepath.Join(p, "comm")))
				return fmt.Sprintf("%s (process %s)", comm, filepath.Base(p)), comm == "podplane"
			}
		}
	}
	return "", false
}

// listening gives the sockets that listen on a port, as their links in /proc name them, from the kernel's table of TCP sockets.
func listening(table string, port uint16) []string {
	const listen = "0A"
	var inodes []string
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 10 || f[3] != listen {
			continue
		}
		_, hex, _ := strings.Cut(f[1], ":")
		if n, err := strconv.ParseUint(hex, 16, 16); err == nil && uint16(n) == port {
			inodes = append(inodes, "socket:["+f[9]+"]")
		}
	}
	return inodes
}
