package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// capability is one that this process may lack.
type capability struct {
	number uint
	name   string
	// why says what does not work without it; needed that nothing does.
	why    string
	needed bool
}

var capabilities = []capability{
	{21, "CAP_SYS_ADMIN", "no volume can be mounted and no container started", true},
	{12, "CAP_NET_ADMIN", "pods get no network", true},
	{0, "CAP_CHOWN", "volumes can't be given to a pod's user", true},
	{1, "CAP_DAC_OVERRIDE", "files of pods' users can't be read or removed", true},
	{3, "CAP_FOWNER", "files of pods' users can't be changed or removed", true},
	{5, "CAP_KILL", "processes of pods can't be ended", true},
	{6, "CAP_SETGID", "containers can't take their group", true},
	{7, "CAP_SETUID", "containers can't take their user", true},
	{8, "CAP_SETPCAP", "containers can't be given their capabilities", true},
	{18, "CAP_SYS_CHROOT", "containers can't take their root directory", true},
	{27, "CAP_MKNOD", "containers can't be given their devices", true},
	{19, "CAP_SYS_PTRACE", "processes in other users' namespaces can't be looked at: port-forward and process statistics may fail", false},
	{24, "CAP_SYS_RESOURCE", "oom_score_adj can't be lowered nor limits be raised: containers keep the runtime's own, so the kernel may choose another victim than the pods' classes say", false},
}

func judgeUser(f Facts) []Finding {
	if f.Host.UID != 0 {
		return []Finding{{
			"user", Problem, fmt.Sprintf("this process has uid %d", f.Host.UID),
			"podplane up mounts volumes and starts containers, and a part of what follows can't be seen", "run podplane as root",
		}}
	}
	var needed, useful []string
	level, why := OK, []string{}
	for _, c := range capabilities {
		switch has := f.Host.Capabilities&(1<<c.number) != 0; {
		case has:
			continue
		case c.needed:
			needed, level = append(needed, c.name), Problem
		default:
			useful = append(useful, c.name)
			if level == OK {
				level = Warning
			}
		}
		why = append(why, c.name+": "+c.why)
	}
	if level == OK {
		return []Finding{ok("capabilities", "root, with all that are needed")}
	}
	return []Finding{{
		"capabilities", level, "missing: " + strings.Join(append(needed, useful...), ", "), strings.Join(why, "; "),
		"start podplane with them: on the host itself rather than in a container, or give the container these (cap_add)",
	}}
}

func judgeCgroups(f Facts) []Finding {
	h := f.Host
	switch {
	case h.CgroupsErr != "":
		return []Finding{{"cgroups", Problem, h.CgroupsErr, "containers can't be limited, so none is started", "mount cgroup2 on /sys/fs/cgroup"}}
	case h.CgroupsReadOnly:
		return []Finding{{
			"cgroups", Problem, "/sys/fs/cgroup can't be written", "containers can't be limited, so none is started",
			"mount it read-write: mount -o remount,rw /sys/fs/cgroup, or in a container -v /sys/fs/cgroup:/sys/fs/cgroup with cgroup: host",
		}}
	}
	version := "v1"
	if h.CgroupV2 {
		version = "v2"
	}
	var needed, useful []string
	for _, c := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(h.Controllers, c) {
			needed = append(needed, c)
		}
	}
	for _, c := range []string{"cpuset"} {
		if !slices.Contains(h.Controllers, c) {
			useful = append(useful, c)
		}
	}
	found := fmt.Sprintf("%s with %s", version, strings.Join(h.Controllers, " "))
	switch {
	case len(needed) > 0:
		return []Finding{{
			"cgroups", Problem, found, "there is no controller " + strings.Join(needed, ", ") + ": pods' limits of it do not hold",
			"boot without cgroup_disable=, with cgroup_enable=memory where the kernel asks for it (Raspberry Pi); in a container give it the host's cgroups",
		}}
	case !h.CgroupV2:
		return []Finding{{
			"cgroups", Warning, found, "memory QoS, limits of swap and OOM kills of a whole container are not available with v1",
			"boot with systemd.unified_cgroup_hierarchy=1, which is the default since 2021",
		}}
	case len(useful) > 0:
		return []Finding{{
			"cgroups", Warning, found, "there is no controller " + strings.Join(useful, ", ") + ": containers can't be bound to CPUs",
			"enable it in cgroup.subtree_control of the cgroups above",
		}}
	}
	return []Finding{ok("cgroups", "%s", found)}
}

func judgeMounts(f Facts) []Finding {
	if !f.Host.SharedRoot {
		return []Finding{{
			"propagation", Warning, "mounts below / are private", "mounts that are made after a container started do not reach it (mountPropagation, CSI drivers in pods)",
			"mount --make-rshared /",
		}}
	}
	return []Finding{ok("propagation", "mounts below / are shared")}
}

// What the kernel should allow each user at least: containerd, its shims and the programs in pods watch files.
const (
	minInotifyInstances = 128
	minInotifyWatches   = 8192
)

func judgeKernel(f Facts) []Finding {
	h := f.Host
	list := []Finding{ok("kernel", "%s", h.Kernel)}
	if !h.Forwarding {
		list = append(list, Finding{
			"ip_forward", Warning, "net.ipv4.ip_forward is 0", "packets of pods do not leave the host; the network's plugins turn it on with the first pod, unless they may not",
			"sysctl -w net.ipv4.ip_forward=1, and in /etc/sysctl.d for the next boot",
		})
	} else {
		list = append(list, ok("ip_forward", "on"))
	}
	switch h.BridgeFilter {
	case 0:
		list = append(list, Finding{
			"br_netfilter", Warning, "net.bridge.bridge-nf-call-iptables is 0", "a pod does not reach another one of its host by a host port or a Service's address",
			"sysctl -w net.bridge.bridge-nf-call-iptables=1",
		})
	case 1:
		list = append(list, ok("br_netfilter", "bridges' packets pass the filters"))
	default:
		list = append(list, Finding{
			"br_netfilter", Warning, "the module br_netfilter is not loaded", "a pod does not reach another one of its host by a host port or a Service's address; nothing else needs it",
			"modprobe br_netfilter, and a line br_netfilter in /etc/modules-load.d/podplane.conf",
		})
	}
	if !h.Iptables {
		list = append(list, Finding{"iptables", Warning, "there is no iptables program", "host ports do not work, and pods reach no other hosts", "install iptables"})
	} else {
		list = append(list, ok("iptables", "there"))
	}
	if h.InotifyInstances < minInotifyInstances || h.InotifyWatches < minInotifyWatches {
		list = append(list, Finding{
			"inotify", Warning, fmt.Sprintf("%d instances, %d watches for a user", h.InotifyInstances, h.InotifyWatches),
			"with many pods programs can't watch files any more (\"too many open files\"): log followers, configuration that is read again",
			fmt.Sprintf("sysctl -w fs.inotify.max_user_instances=%d fs.inotify.max_user_watches=%d, or more", 8*minInotifyInstances, 64*minInotifyWatches),
		})
	} else {
		list = append(list, ok("inotify", "%d instances, %d watches for a user", h.InotifyInstances, h.InotifyWatches))
	}
	if !h.Pressure {
		list = append(list, Finding{
			"psi", Warning, "there is no /proc/pressure", "evictd sees memory pressure a little later", "boot with psi=1",
		})
	}
	return list
}

// earliest is before any release of Podplane: a clock that says less was never set. tolerance is what files may be ahead by.
var earliest = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

const (
	tolerance = 5 * time.Second
	maxDrift  = time.Second
)

func judgeClock(f Facts) []Finding {
	const mend = "set the clock, and keep it: systemctl enable --now systemd-timesyncd, or chrony"
	switch ahead := f.Host.NewestFile.Sub(f.Now); {
	case f.Now.Before(earliest):
		return []Finding{{"clock", Problem, "it is " + f.Now.UTC().Format(time.RFC3339), "the clock was never set: certificates are not good yet, ages and back-offs are wrong", mend}}
	case ahead > tolerance:
		return []Finding{{
			"clock", Problem, fmt.Sprintf("it is %s, and Podplane wrote files %s from now", f.Now.UTC().Format(time.RFC3339), ahead.Round(time.Second)),
			"the clock went back: ages are wrong, and what waits for a time waits longer", mend,
		}}
	case f.Bus.Drift > maxDrift || f.Bus.Drift < -maxDrift:
		return []Finding{{
			"clock", Problem, fmt.Sprintf("the bus' clock differs by %s", f.Bus.Drift.Round(time.Millisecond)),
			"records of several hosts can't be put in order, and conditions are taken as stale", mend + ", on both hosts",
		}}
	case !f.Host.ClockSynced:
		return []Finding{{"clock", Warning, "nothing keeps it in step", "it drifts: times in logs, Events and traces of several hosts do not fit", mend}}
	}
	return []Finding{ok("clock", "kept in step")}
}

// What a disk must have free: below low things soon stop, below none they have. evictd's own thresholds are higher.
const (
	lowPercent  = 10
	nonePercent = 2
)

func judgeDisks(f Facts) []Finding {
	var list []Finding
	for _, d := range f.Disks {
		list = append(list, judgeDisk(d))
	}
	return list
}

func judgeDisk(d Disk) Finding {
	const mend = "make room: podplane delete what is not needed, remove images (crictl rmi --prune), old logs, or give --root a larger disk"
	if d.Err != "" {
		return Finding{"disk", Problem, d.Err, "nothing can be stored in " + d.Path, "make the directory, or name another one"}
	}
	bytes, inodes := percent(d.FreeBytes, d.TotalBytes), percent(d.FreeInodes, d.TotalInodes)
	found := fmt.Sprintf("%s: %d GiB of %d free", d.Path, d.FreeBytes>>30, d.TotalBytes>>30)
	if d.TotalInodes > 0 {
		found += fmt.Sprintf(", %d%% of the inodes", inodes)
	}
	switch {
	case d.ReadOnly:
		return Finding{"disk", Problem, d.Path + ": read-only", "nothing can be stored", "mount it read-write; the kernel makes a broken file system read-only: look at dmesg"}
	case bytes < nonePercent || inodes < nonePercent:
		return Finding{"disk", Problem, found, "the bus refuses records and images can't be pulled", mend}
	case bytes < lowPercent || inodes < lowPercent:
		return Finding{"disk", Warning, found, "evictd evicts pods at its threshold (evictionHard)", mend}
	}
	return ok("disk", "%s", found)
}

// percent of a whole; what has no bound is all free.
func percent(part, whole uint64) uint64 {
	if whole == 0 {
		return 100
	}
	return uint64(float64(part) / float64(whole) * 100)
}

func judgePorts(f Facts) []Finding {
	var list []Finding
	for _, p := range f.Ports {
		holder := p.Holder
		if holder == "" {
			holder = "a process that can't be seen from here"
		}
		switch {
		case p.Err != "":
			list = append(list, Finding{"port", Problem, fmt.Sprintf("%s %s: %s", p.Flag, p.Address, p.Err), "Podplane can't listen there", "name another address with " + p.Flag})
		case p.Free && f.Up && f.Ready:
			list = append(list, Finding{
				"port", Problem, fmt.Sprintf("%s %s: nobody listens, though Podplane is up", p.Flag, p.Address), "it is being started again, or was started with another address",
				"podplane doctor takes the same flags as podplane up; look at the log of gateway, or nats, in the directory log below --root",
			})
		case p.Free && f.Up:
			list = append(list, Finding{"port", Warning, fmt.Sprintf("%s %s: nobody listens yet", p.Flag, p.Address), "Podplane is being started, or stopped", "look again in a moment"})
		case p.Free:
			list = append(list, ok("port", "%s is free for %s", p.Address, p.Flag))
		case p.Ours && f.Up:
			list = append(list, ok("port", "%s is held by %s", p.Address, holder))
		default:
			list = append(list, Finding{
				"port", Problem, fmt.Sprintf("%s %s is held by %s", p.Flag, p.Address, holder), "podplane up can't listen there",
				"stop that program, or name another address with " + p.Flag,
			})
		}
	}
	return list
}
