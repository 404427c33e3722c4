package doctor

import "time"

// Facts are what was seen. An Err is why something could not be seen; empty: it was.
type Facts struct {
	Now  time.Time
	Host Host
	// Up says whether a Podplane of this run directory is up; Ready that everything in it has been ready.
	Up, Ready bool
	UpErr     string
	Ports     []Port
	Disks     []Disk
	Runtime   Runtime
	Bus       Bus
	Leftovers Leftovers
}

// Host is the kernel and this process' place in it.
type Host struct {
	UID    int
	Kernel string
	// Capabilities are the numbers of the effective ones.
	Capabilities uint64
	// CgroupV2 says that /sys/fs/cgroup is the unified hierarchy, Controllers which controllers there are, CgroupsErr why nothing is known.
	CgroupV2    bool
	Controllers []string
	CgroupsErr  string
	// Systemd says that the host was started by systemd, which then manages its cgroups.
	Systemd bool
	// CgroupsReadOnly says that no cgroup can be made.
	CgroupsReadOnly bool
	// SharedRoot says that mounts below the root directory propagate.
	SharedRoot bool
	// Forwarding is net.ipv4.ip_forward, BridgeFilter whether bridges' packets pass the filters (-1: the module is not there).
	Forwarding   bool
	BridgeFilter int
	// InotifyInstances and InotifyWatches are the limits for each user.
	InotifyInstances, InotifyWatches int64
	// Iptables says that the program is there.
	Iptables bool
	// Pressure says that /proc/pressure is there.
	Pressure bool
	// ClockSynced says that the kernel's clock is disciplined.
	ClockSynced bool
	// NewestFile is when the newest of Podplane's own files was written.
	NewestFile time.Time
}

// Port is an address that Podplane listens on, or would.
type Port struct {
	Flag, Address string
	// Free says that it can be listened on; Holder who does: a process' name and number, "" when that can't be seen; Ours that it is a podplane.
	Free   bool
	Holder string
	Ours   bool
	Err    string
}

// Disk is where Podplane writes.
type Disk struct {
	Path                    string
	FreeBytes, TotalBytes   uint64
	FreeInodes, TotalInodes uint64
	ReadOnly                bool
	Err                     string
}

// Runtime is the container runtime.
type Runtime struct {
	// Own says that Podplane runs one of its own; Missing are programs that it lacks for that.
	Own     bool
	Missing []string
	// Endpoint is where it is, or would be; Asked that it should be there now.
	Endpoint string
	Asked    bool
	Err      string
	// Name and Version are what it says of itself, API the version of CRI.
	Name, Version, API string
	// Driver is how it makes cgroups, "" when it does not say.
	Driver     string
	Conditions []Condition
	// CNI are network configurations without their plugins, of a runtime that is not our own.
	CNIConfigs []string
	CNIMissing []string
}

// Condition is what a runtime says of itself.
type Condition struct {
	Type            string
	True            bool
	Reason, Message string
}

// Bus is the bus with its records.
type Bus struct {
	URL string
	// Asked says that it should be there now; Err why it can't be reached.
	Asked bool
	Err   string
	// Drift is how far the server's clock is before ours.
	Drift time.Duration
	// Own says that it is the host's own: KeyFile is the file with the key of its records, KeyErr what is wrong with it.
	Own     bool
	KeyFile string
	KeyErr  string
	// StreamsErr is why the extents are not known.
	Streams    []Stream
	StreamsErr string
	Services   []Service
	Conditions []NodeCondition
	// RecordsErr is why the records could not be read.
	RecordsErr string
}

// Stream is the extent of a bucket or stream.
type Stream struct {
	Name            string
	Bytes, MaxBytes uint64
	// Rolling streams drop their oldest messages at the bound; others refuse new ones.
	Rolling bool
	// Last is when the newest message was stored.
	Last time.Time
}

// Service is a registered replica.
type Service struct {
	Name, Node, Instance, Version string
	Ready                         bool
	Message                       string
}

// NodeCondition is a condition that a service keeps current.
type NodeCondition struct {
	Type, Status, Reason, Message string
	Heartbeat                     time.Time
}

// Leftovers are things of pods that no record wants.
type Leftovers struct {
	// Looked says that it could be seen which pods are wanted; Err why not.
	Looked bool
	Err    string
	// Directories, Mounts, Cgroups and Sandboxes are paths and names.
	Directories, Mounts, Cgroups, Sandboxes []string
}
