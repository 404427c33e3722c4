package worker

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/images"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// Observer reads the runtime. A cri.Client is one.
type Observer interface {
	ListPods(ctx context.Context, filter cri.Filter) ([]pod.RuntimePod, error)
	PodStatus(ctx context.Context, uid string) (pod.RuntimePod, error)
	ContainerStatus(ctx context.Context, id string) (pod.Container, error)
}

// Starter makes things run.
type Starter interface {
	// CreateSandbox runs the pod's sandbox and returns its status.
	CreateSandbox(ctx context.Context, p *v1.Pod, attempt uint32, trace string) (pod.Sandbox, error)
	// EnsureImage makes the image of a container or of an image volume present by its pull policy.
	EnsureImage(ctx context.Context, p *v1.Pod, image images.Want) (cri.Image, error)
	// StartContainer creates and starts a container, or starts one that was created before. Errors are *StartError.
	StartContainer(ctx context.Context, r StartRequest) (pod.Container, error)
	// PostStart runs the container's postStart hook, if there is one.
	PostStart(ctx context.Context, p *v1.Pod, container, id string, podIP string) error
}

// Resizer changes what runs.
type Resizer interface {
	// Resize gives the pod's cgroup and its running containers the resources that the pod has, but for those that need a restart for it.
	Resize(ctx context.Context, p *v1.Pod, running []pod.Container) error
}

// Ender ends things. Ending what is gone is not an error.
type Ender interface {
	// KillContainer runs the preStop hook and stops the container. The grace period covers both.
	KillContainer(ctx context.Context, r KillRequest) error
	StopSandbox(ctx context.Context, id string) error
	RemoveSandbox(ctx context.Context, id string) error
	// RemoveContainer removes a dead container with its log.
	RemoveContainer(ctx context.Context, p *v1.Pod, c *pod.Container) error
}

// Files keeps what pods leave on the node.
type Files interface {
	// Cleanup removes the pod's directories, logs and cgroups.
	Cleanup(ctx context.Context, p *v1.Pod) error
	// Logged is the highest restart count of each container of which a log is left.
	Logged(p *v1.Pod) map[string]uint32
	// TerminationMessage reads what an ended container left to say.
	TerminationMessage(p *v1.Pod, c *pod.Container) string
}

// Records removes the pod's record from the bus.
type Records interface {
	Remove(ctx context.Context, uid string) error
}

// StatusSink stores status records: the newest wins, Set never blocks.
type StatusSink interface {
	Set(rec *podplanev1.StatusRecord)
	// Remove forgets a pod: nothing is stored for it afterwards.
	Remove(uid string)
}

// Settings are what the runtime says about itself.
type Settings interface {
	// RuntimeName is the scheme of container IDs. It is asked for once the runtime has answered about a pod.
	RuntimeName() string
}

// Recorder records Events about pods. It never blocks.
type Recorder interface {
	PodEvent(p *v1.Pod, container, eventType, reason, message string)
}

// StartRequest describes a container to start.
type StartRequest struct {
	Pod       *v1.Pod
	Container string
	// ID is set when the container was created already.
	ID      string
	Sandbox pod.Sandbox
	Attempt uint32
	// RestartDelay and Decided, when they are not zero, go into the container's annotations.
	RestartDelay time.Duration
	Decided      time.Time
	Image        cri.Image
	// TargetID is the container whose processes an ephemeral container sees.
	TargetID string
	// Volumes maps the pod's volumes to where they are on the host.
	Volumes map[string]string
	// ImageVolumes maps the pod's image volumes to their images.
	ImageVolumes map[string]cri.Image
	Trace        string
}

// KillRequest describes a container to stop.
type KillRequest struct {
	Pod       *v1.Pod
	Container string
	ID        string
	Grace     time.Duration
	NoHook    bool
	PodIP     string
}

// Stage is how far a start came.
type Stage uint8

// The stages of a start.
const (
	StageConfig Stage = iota
	StageCreate
	StageStart
)

// Waiting reasons of containers that could not be started.
const (
	ReasonCreateContainerConfigError = "CreateContainerConfigError"
	ReasonCreateContainerError       = "CreateContainerError"
	ReasonRunContainerError          = "RunContainerError"
)

// StartError is why a container could not be started.
type StartError struct {
	Stage Stage
	// Reason is the container's waiting reason: CreateContainerConfigError, CreateContainerError, RunContainerError.
	Reason string
	// ContainerID is set when the container was created.
	ContainerID string
	Err         error
}

// Error returns the cause's message.
func (e *StartError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// PodChange is news about a desired pod.
type PodChange struct {
	UID string
	// Pod is shared and never changed. It is the last known one when Deleted.
	Pod *v1.Pod
	// Trace is the traceparent that all work for the pod belongs to.
	Trace   string
	Deleted bool
	// Preempted is set when the pod has to make room for another one.
	Preempted *plan.Eviction
	// After are UIDs of pods that have to end before this one may start.
	After []string
	// Status is what was published last, before this process; only looked at when the pod is new to the Manager.
	Status *podplanev1.StatusRecord
	// Fresh: the pod was stored by this process, so that the runtime can have nothing of it yet.
	Fresh bool
}

// HintType is what a hint says has happened.
type HintType uint8

// The types of hints.
const (
	HintLook HintType = iota // look at everything
	HintContainerCreated
	HintContainerStarted
	HintContainerDied
	HintContainerRemoved
	HintSandboxStarted
	HintSandboxStopped
	HintSandboxRemoved
)

// Hint says that something may have happened to a pod in the runtime.
type Hint struct {
	Type HintType
	// ID of the container, or of the sandbox.
	ID        string
	Container string
}

// Config is the Manager's settings. Zero values are replaced by defaults.
type Config struct {
	Node string
	// HostIPs are the node's addresses, the primary one first.
	HostIPs []string
	// ShardOf, when not nil, cuts the pods into shards: only the pods of those that were gained have workers, which act only
	// while Holds says that the shard is held at this moment.
	ShardOf func(uid string) int
	Holds   func(shard int) bool
	// StartSlots bounds the sandboxes and containers that are being started at one time.
	StartSlots int
	// Resync is how often all pods are compared with the runtime.
	Resync time.Duration
	// MaxDead is how many dead containers all pods together may keep; nil: any number.
	MaxDead *int
	// MaxRestartDelay caps the crash-loop back-off.
	MaxRestartDelay time.Duration
}

// Deps is what the Manager works with.
type Deps struct {
	Observer Observer
	Starter  Starter
	Resizer  Resizer
	// Room says why the node has no room for the pod's requests (Deferred or Infeasible, and in words), "" when it has; held are the pods whose
	// allocation is newer than what their statuses tell. nil: there always is room.
	Room func(p *v1.Pod, held map[string]*v1.Pod) (reason, message string)
	// Ended says whether a pod of the node has ended, wherever its worker is; nil: all others have.
	Ended   func(uid string) bool
	Ender   Ender
	Files   Files
	Records Records
	Sink    StatusSink
	Events  Recorder
	// Decisions may be nil.
	Decisions Decisions
	Settings  Settings
	Metrics   *Metrics
	Tracer    trace.Tracer
	// Now is the clock.
	Now func() time.Time
}
