package cri

import (
	"context"
	"time"

	"github.com/podplane/podplane/internal/pod"
)

// SandboxService makes and ends pod sandboxes.
type SandboxService interface {
	// RunSandbox makes and starts a sandbox and returns its ID. When the name (namespace, name, UID, attempt) is taken,
	// also by a call that is still under way, the error says so and nothing was made. A failed call leaves nothing
	// that holds resources, but may leave a sandbox that is not ready: list and remove it.
	RunSandbox(ctx context.Context, config *SandboxConfig) (string, error)
	// StopSandbox kills what runs in the sandbox and gives its network back. It may be repeated; a sandbox that does not
	// exist is stopped.
	StopSandbox(ctx context.Context, id string) error
	// RemoveSandbox stops and removes the sandbox and its containers. A sandbox that does not exist is removed.
	RemoveSandbox(ctx context.Context, id string) error
	// SandboxStatus returns all fields of one sandbox; NotFound when there is none.
	SandboxStatus(ctx context.Context, id string) (pod.Sandbox, error)
	// ListSandboxes returns the matching sandboxes in no particular order, without the fields that only a status has.
	ListSandboxes(ctx context.Context, filter Filter) ([]pod.Sandbox, error)
}

// ContainerService makes and ends containers.
type ContainerService interface {
	// CreateContainer makes a container in a ready sandbox, but does not start it. The sandbox's config must be the one
	// that it was run with. The image must be present.
	CreateContainer(ctx context.Context, sandboxID string, config *ContainerConfig, sandbox *SandboxConfig) (string, error)
	// StartContainer starts a created container. An error means that it does not run; it is then in state exited with
	// exit code 128 and a reason, or still created.
	StartContainer(ctx context.Context, id string) error
	// StopContainer sends the stop signal, waits for the grace period (rounded up to seconds, 0 kills at once), then
	// kills. It returns when the container has ended. It may be repeated; a container that does not exist is stopped.
	StopContainer(ctx context.Context, id string, grace time.Duration) error
	// RemoveContainer kills and removes the container. A container that does not exist is removed.
	RemoveContainer(ctx context.Context, id string) error
	// ReopenContainerLog makes the runtime open the log file again, after it was renamed. The container must run.
	ReopenContainerLog(ctx context.Context, id string) error
}

// Resizer changes limits in place.
type Resizer interface {
	// UpdateContainerResources changes a created or running container. Zero fields are left as they are.
	UpdateContainerResources(ctx context.Context, id string, resources *pod.LinuxResources) error
	// UpdateSandboxResources tells the runtime about new sums. Optional in runtimes: Unimplemented is an answer.
	UpdateSandboxResources(ctx context.Context, id string, overhead, resources *pod.LinuxResources) error
}

// Lister reads what the runtime has.
type Lister interface {
	// ListPods returns the matching pods with their sandboxes and containers, from two lists: without the fields that
	// only a status has. The order of pods is by UID.
	ListPods(ctx context.Context, filter Filter) ([]pod.RuntimePod, error)
	// PodStatus returns all fields of one pod: two lists, then a status of each sandbox and container, in parallel, each
	// with a deadline of its own. A pod that the runtime does not know is empty, not an error. With an *InspectError the
	// pod holds what could be read and the error names what could not: it must not be taken as complete.
	PodStatus(ctx context.Context, uid string) (pod.RuntimePod, error)
	// ListContainers returns the matching containers in no particular order, without the fields that only a status has.
	ListContainers(ctx context.Context, filter Filter) ([]pod.Container, error)
	// ContainerStatus returns all fields of one container; NotFound when there is none.
	ContainerStatus(ctx context.Context, id string) (pod.Container, error)
}

// ImageService pulls and removes images.
type ImageService interface {
	// PullImage pulls and returns the reference of what was pulled. It has no deadline but the context's. Errors
	// are *ImageError.
	PullImage(ctx context.Context, image ImageSpec, auth *AuthConfig, sandbox *SandboxConfig) (string, error)
	// ImageStatus returns one image; NotFound when it is not present.
	ImageStatus(ctx context.Context, image ImageSpec) (Image, error)
	// ListImages returns all images of the runtime.
	ListImages(ctx context.Context) ([]Image, error)
	// RemoveImage removes the image. One that does not exist is removed.
	RemoveImage(ctx context.Context, image ImageSpec) error
	// ImageFsInfo returns the use of the file systems that hold images and containers' writable layers.
	ImageFsInfo(ctx context.Context) (ImageFsInfo, error)
}

// DownloadLister says what a runtime downloads.
type DownloadLister interface {
	// Downloads returns what is being downloaded at this moment, of all pulls, and what pulls that were cut short left. Kind Unimplemented
	// where the runtime does not tell: CRI has no call for it, only some runtimes do.
	Downloads(ctx context.Context) ([]Download, error)
}

// Execer runs commands in containers.
type Execer interface {
	// ExecSync runs a command in a running container and waits for its end, for at most the timeout (rounded up to
	// seconds, 0: as long as the context). The result is valid, as far as it goes, with each of these errors:
	//   - *ExitError: the command ended with a code other than 0;
	//   - *ExecTimeoutError: it did not end in time and was killed;
	// Any other error means that it is not known to have run: NotFound, Unavailable, a *CallError…
	ExecSync(ctx context.Context, containerID string, command []string, timeout time.Duration) (ExecResult, error)
}

// ExecResult is what a command wrote: the first 16 KiB of each stream.
type ExecResult struct {
	Stdout   []byte
	Stderr   []byte
	ExitCode int32
	// StdoutTruncated and StderrTruncated say that there was more.
	StdoutTruncated bool
	StderrTruncated bool
}

// MaxExecOutput is how much of each stream an [ExecResult] keeps.
const MaxExecOutput = 16 << 10

// Streamer prepares streaming sessions: each call returns the URL of the runtime's streaming server.
type Streamer interface {
	ExecURL(ctx context.Context, containerID string, command []string, streams Streams) (string, error)
	AttachURL(ctx context.Context, containerID string, streams Streams) (string, error)
	PortForwardURL(ctx context.Context, sandboxID string, ports []int32) (string, error)
}

// Streams says what a streaming session connects.
type Streams struct {
	Stdin  bool
	Stdout bool
	Stderr bool
	TTY    bool
}

// EventSource streams what happens to sandboxes and containers.
type EventSource interface {
	// Events opens a stream of what happens from now on. It ends with the context, with Close, or when the runtime goes
	// away. Unimplemented when the runtime has no events.
	Events(ctx context.Context) (EventStream, error)
}

// EventStream is one open stream. It must be closed, and received from without delay: a reader that does not keep up
// holds the runtime up.
type EventStream interface {
	// Recv waits for the next event. After an error the stream is over: io.EOF when the runtime ended it, kind
	// Unavailable when the runtime went away, else the context's error.
	Recv() (Event, error)
	// Close ends the stream; a waiting Recv returns.
	Close()
}

// StatsSource measures.
type StatsSource interface {
	// ListPodStats returns the use of the matching pods' sandboxes with their containers.
	ListPodStats(ctx context.Context, filter Filter) ([]PodStats, error)
	// ListContainerStats returns the use of the matching containers.
	ListContainerStats(ctx context.Context, filter Filter) ([]ContainerStats, error)
	// ContainerStats returns the use of one container; NotFound when there is none.
	ContainerStats(ctx context.Context, id string) (ContainerStats, error)
}

// Health asks the runtime about itself.
type Health interface {
	// Version returns name and versions.
	Version(ctx context.Context) (Version, error)
	// Status returns the conditions, the runtime handlers and the features.
	Status(ctx context.Context) (Status, error)
	// RuntimeConfig returns settings that the agent must agree with. Optional in runtimes: Unimplemented is an answer.
	RuntimeConfig(ctx context.Context) (RuntimeConfig, error)
}

// Runtime is all of it, for those who wire things up. Consumers ask for the narrow interfaces.
type Runtime interface {
	SandboxService
	ContainerService
	Resizer
	Lister
	ImageService
	Execer
	Streamer
	EventSource
	StatsSource
	Health
}

// Filter selects sandboxes or containers; all conditions that are set must hold. The zero value selects everything
// that belongs to the client's node.
type Filter struct {
	ID        string
	PodUID    string
	SandboxID string // containers only
	Labels    map[string]string
	// Ready, when not nil, selects sandboxes that are ready or not.
	Ready *bool
	// State, when not nil, selects containers in this state.
	State *pod.ContainerState
}

// Version names the runtime.
type Version struct {
	RuntimeName       string // containerd
	RuntimeVersion    string // v2.4.2
	RuntimeAPIVersion string // v1
}

// Status is the runtime's own view of its health.
type Status struct {
	Conditions []Condition
	// Handlers are the runtime handlers by name; the default one is "".
	Handlers map[string]HandlerFeatures
	// SupplementalGroupsPolicy: the policy of a security context is honoured.
	SupplementalGroupsPolicy bool
	// UserNamespacesHostNetwork: user namespaces work together with the host's network.
	UserNamespacesHostNetwork bool
}

// Types of conditions that every runtime reports.
const (
	ConditionRuntimeReady = "RuntimeReady"
	ConditionNetworkReady = "NetworkReady"
)

// Condition is one condition of the runtime.
type Condition struct {
	Type    string
	Status  bool
	Reason  string
	Message string
}

// Condition returns the condition of the type; one that is not reported is false and has the reason NotReported.
func (s *Status) Condition(conditionType string) Condition {
	for _, c := range s.Conditions {
		if c.Type == conditionType {
			return c
		}
	}
	return Condition{Type: conditionType, Reason: "NotReported", Message: "the runtime does not report this condition"}
}

// HandlerFeatures is what a runtime handler can do.
type HandlerFeatures struct {
	RecursiveReadOnlyMounts bool
	UserNamespaces          bool
}

// CgroupDriver is who manages the cgroup tree.
type CgroupDriver string

// The drivers.
const (
	CgroupDriverSystemd  CgroupDriver = "systemd"
	CgroupDriverCgroupfs CgroupDriver = "cgroupfs"
)

// RuntimeConfig holds settings that the agent must agree with.
type RuntimeConfig struct {
	CgroupDriver CgroupDriver // empty when not reported
}
