package pod

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Labels and annotations that the runtime keeps on sandboxes and containers. The io.kubernetes ones are the
// kubelet's own, so that tools which read them (crictl, log shippers, monitoring) work unchanged.
const (
	// LabelPodName, LabelPodNamespace and LabelPodUID say which pod a sandbox or container belongs to.
	LabelPodName      = "io.kubernetes.pod.name"
	LabelPodNamespace = "io.kubernetes.pod.namespace"
	LabelPodUID       = "io.kubernetes.pod.uid"
	// LabelContainerName is the name in the pod's spec. Sandboxes do not have it.
	LabelContainerName = "io.kubernetes.container.name"
	// LabelNode names the Podplane node that made the sandbox or container. What does not carry the node's own name
	// there is foreign: it is neither listed nor touched.
	LabelNode = "podplane.io/node"

	// AnnotationContainerHash holds the (versioned) hash of the container's spec.
	AnnotationContainerHash = "io.kubernetes.container.hash"
	// AnnotationRestartCount holds the restart count that the container was created with.
	AnnotationRestartCount = "io.kubernetes.container.restartCount"
	// AnnotationTerminationMessagePath and AnnotationTerminationMessagePolicy repeat the container's spec, so that the
	// message is found even when the pod's spec is gone.
	AnnotationTerminationMessagePath   = "io.kubernetes.container.terminationMessagePath"
	AnnotationTerminationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	// AnnotationContainerPorts holds the container's ports as JSON.
	AnnotationContainerPorts = "io.kubernetes.container.ports"
	// AnnotationPreStopHandler holds the preStop hook as JSON, so that it runs even when the pod's spec is gone.
	AnnotationPreStopHandler = "io.kubernetes.container.preStopHandler"
	// AnnotationPodDeletionGracePeriod and AnnotationPodTerminationGracePeriod hold the grace periods in seconds.
	AnnotationPodDeletionGracePeriod    = "io.kubernetes.pod.deletionGracePeriod"
	AnnotationPodTerminationGracePeriod = "io.kubernetes.pod.terminationGracePeriod"
	// AnnotationTraceparent holds the W3C trace context of the pod, so that whoever sees the sandbox or the container
	// later (pleg in an event, syncd after a restart) continues the pod's trace.
	AnnotationTraceparent = "podplane.io/traceparent"
)

// ContainerState is where a container is in its life. It only moves forward: created -> running -> exited, or
// created -> exited when the start failed.
type ContainerState uint8

// The states that a runtime reports.
const (
	// ContainerUnknown: the runtime lost track of the container. Transitions to: ContainerExited, or gone.
	ContainerUnknown ContainerState = iota
	// ContainerCreated: it exists, nothing ran yet. Transitions to: ContainerRunning, ContainerExited, or gone.
	ContainerCreated
	// ContainerRunning: its process runs. Transitions to: ContainerExited, ContainerUnknown.
	ContainerRunning
	// ContainerExited: its process ended, or could not be started. Transitions to: gone.
	ContainerExited
)

var containerStates = [...]string{"Unknown", "Created", "Running", "Exited"}

// String returns the state's name.
func (s ContainerState) String() string {
	if int(s) < len(containerStates) {
		return containerStates[s]
	}
	return fmt.Sprintf("ContainerState(%d)", uint8(s))
}

// MarshalText writes the state's name.
func (s ContainerState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a state's name.
func (s *ContainerState) UnmarshalText(text []byte) error {
	for i, name := range containerStates {
		if name == string(text) {
			*s = ContainerState(i)
			return nil
		}
	}
	return fmt.Errorf("container state %q: want one of %v", text, containerStates)
}

// Sandbox is a pod sandbox as the runtime reports it.
type Sandbox struct {
	ID             string
	Namespace      string
	Name           string
	UID            string
	Attempt        uint32
	Ready          bool
	CreatedAt      time.Time
	RuntimeHandler string
	Labels         map[string]string
	Annotations    map[string]string

	// The fields below are only known from a status, not from a list.

	// IPs are the sandbox's addresses, the primary one first. Empty with the host's network.
	IPs []string
	// HostNetwork, HostPID and HostIPC say which namespaces are the node's.
	HostNetwork bool
	HostPID     bool
	HostIPC     bool
}

// Container is a container as the runtime reports it.
type Container struct {
	ID           string
	Name         string
	SandboxID    string
	PodUID       string
	PodNamespace string
	PodName      string
	// Attempt is the restart count that the container was created with.
	Attempt   uint32
	State     ContainerState
	CreatedAt time.Time
	// Image is what the container was created from, as the creator wrote it; ImageRef is the digested reference (or the
	// ID when there is none), ImageID the runtime's ID of it.
	Image       string
	ImageRef    string
	ImageID     string
	Labels      map[string]string
	Annotations map[string]string

	// The fields below are only known from a status, not from a list.

	StartedAt  time.Time // zero until it ran
	FinishedAt time.Time // zero until it ended; may be a few milliseconds before StartedAt when it ended at once
	ExitCode   int32
	// Reason is the runtime's word for the state: Completed, Error, OOMKilled, StartError, ContainerCannotRun…
	Reason  string
	Message string
	LogPath string
	Mounts  []Mount
	// Resources are those in force, nil where the runtime does not report them.
	Resources *LinuxResources
	// User is who the first process ran as at its start, nil where the runtime does not report it.
	User *LinuxUser
	// StopSignal is the effective stop signal (SIGTERM), empty where the runtime does not report it.
	StopSignal string
}

// LinuxUser is the identity of a container's first process.
type LinuxUser struct {
	UID                int64
	GID                int64
	SupplementalGroups []int64
}

// LinuxResources are the limits of a container or a sandbox. A zero number or an empty string means "not set".
type LinuxResources struct {
	CPUPeriod        int64
	CPUQuota         int64
	CPUShares        int64
	MemoryLimitBytes int64
	MemorySwapLimit  int64
	OOMScoreAdj      int64
	CPUSetCPUs       string
	CPUSetMems       string
	HugepageLimits   []HugepageLimit
	Unified          map[string]string // cgroup v2 files, by name
}

// HugepageLimit limits the use of one huge page size.
type HugepageLimit struct {
	PageSize string // as the kernel names it: 2MB, 1GB
	Limit    uint64 // bytes
}

// MountPropagation says which mount events pass between host and container.
type MountPropagation uint8

// The propagations of a mount.
const (
	MountPrivate         MountPropagation = iota // none
	MountHostToContainer                         // rslave
	MountBidirectional                           // rshared
)

// Mount is one mount of a container: of a host path, or of an image when Image is set.
type Mount struct {
	ContainerPath     string
	HostPath          string
	ReadOnly          bool
	RecursiveReadOnly bool
	SELinuxRelabel    bool
	Propagation       MountPropagation
	UIDMappings       []IDMapping
	GIDMappings       []IDMapping
	// Image is the reference (or ID) of the image to mount; ImageSubPath a path in it.
	Image        string
	ImageSubPath string
}

// IDMapping maps a range of user or group IDs of a user namespace.
type IDMapping struct {
	HostID      uint32
	ContainerID uint32
	Length      uint32
}

// RuntimePod is what the runtime knows of one pod at one moment.
type RuntimePod struct {
	UID       string
	Namespace string
	Name      string
	// Sandboxes and Containers are sorted newest first: by attempt, then by creation time. Dead ones are among them until
	// they are removed.
	Sandboxes  []Sandbox
	Containers []Container
	// ObservedAt is the time just before the runtime was asked: what happened later may be missing.
	ObservedAt time.Time
}

// Empty reports that the runtime has nothing of the pod.
func (p *RuntimePod) Empty() bool { return len(p.Sandboxes) == 0 && len(p.Containers) == 0 }

// Newest returns the newest container of the name, nil when there is none.
func (p *RuntimePod) Newest(name string) *Container {
	for i := range p.Containers {
		if p.Containers[i].Name == name {
			return &p.Containers[i]
		}
	}
	return nil
}

// Container returns the container of the ID, nil when there is none.
func (p *RuntimePod) Container(id string) *Container {
	for i := range p.Containers {
		if p.Containers[i].ID == id {
			return &p.Containers[i]
		}
	}
	return nil
}

// Running returns the containers that run, newest first.
func (p *RuntimePod) Running() []*Container {
	var running []*Container
	for i := range p.Containers {
		if p.Containers[i].State == ContainerRunning {
			running = append(running, &p.Containers[i])
		}
	}
	return running
}

// NewestSandbox returns the newest sandbox, ready or not, nil when there is none.
func (p *RuntimePod) NewestSandbox() *Sandbox {
	if len(p.Sandboxes) == 0 {
		return nil
	}
	return &p.Sandboxes[0]
}

// ReadySandbox returns the newest ready sandbox, nil when there is none.
func (p *RuntimePod) ReadySandbox() *Sandbox {
	for i := range p.Sandboxes {
		if p.Sandboxes[i].Ready {
			return &p.Sandboxes[i]
		}
	}
	return nil
}

// Sandbox returns the sandbox of the ID, nil when there is none.
func (p *RuntimePod) Sandbox(id string) *Sandbox {
	for i := range p.Sandboxes {
		if p.Sandboxes[i].ID == id {
			return &p.Sandboxes[i]
		}
	}
	return nil
}

// IPs returns the addresses of the newest ready sandbox that has some.
func (p *RuntimePod) IPs() []string {
	for i := range p.Sandboxes {
		if p.Sandboxes[i].Ready && len(p.Sandboxes[i].IPs) > 0 {
			return p.Sandboxes[i].IPs
		}
	}
	return nil
}

// Sort puts sandboxes and containers newest first: by attempt (per name), then by creation time, then by ID, so that
// the order is the same each time.
func (p *RuntimePod) Sort() {
	slices.SortFunc(p.Sandboxes, func(a, b Sandbox) int {
		return newestFirst(a.Attempt, b.Attempt, a.CreatedAt, b.CreatedAt, a.ID, b.ID)
	})
	slices.SortFunc(p.Containers, func(a, b Container) int {
		return newestFirst(a.Attempt, b.Attempt, a.CreatedAt, b.CreatedAt, a.ID, b.ID)
	})
}

func newestFirst(attemptA, attemptB uint32, createdA, createdB time.Time, idA, idB string) int {
	return cmp.Or(cmp.Compare(attemptB, attemptA), createdB.Compare(createdA), strings.Compare(idA, idB))
}
