// Package runtime carries out what a worker decided: it builds the configurations of sandboxes and containers from the pod, drives the container runtime, runs
// lifecycle hooks, and keeps the pod's files.
//
// # Files
//
// <root>/pods/<uid> (0750) belongs to the pod: etc-hosts and containers/<name>/<8 hex> (termination messages) are written here, volumes/ by
// volumed. <pod log dir>/<namespace>_<name>_<uid>/<container>/<restart count>.log is written by the runtime. Cleanup removes all of it, and never
// follows a mount: what is under volumes/ is only removed as far as it is empty directories.
//
// # Bounds
//
// Calls have the deadlines of the cri client. A preStop hook has the container's grace period, a postStart hook ends with its context. Nothing is tried again here: that is the
// worker's business. No goroutine outlives a call.
package runtime

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/cgroup"
	"github.com/podplane/podplane/services/syncd/internal/hosts"
	"github.com/podplane/podplane/services/syncd/internal/images"
	"github.com/podplane/podplane/services/syncd/internal/keylock"
	"github.com/podplane/podplane/services/syncd/internal/worker"
)

// Config is how pods are run on this node.
type Config struct {
	Node string
	// Root is the directory of all that must survive a restart, PodLogDir that of the containers' logs.
	Root      string
	PodLogDir string
	// LogLinkDir has a link to each container's log, for log shippers that look there; empty: there are none.
	LogLinkDir string
	// HostIPs are the node's addresses, the primary one first.
	HostIPs []string
	// Cluster is the cluster's resolver; empty without one. ResolvConf and HostsFile are the node's files.
	Cluster    hosts.Cluster
	ResolvConf string
	HostsFile  string
	Cgroups    Cgroups
	// PidsLimit is the number of processes that each pod may have; 0: no limit.
	PidsLimit int64
	// SeccompDefault: containers that do not say which seccomp profile they want get the runtime's instead of none.
	SeccompDefault bool
	// Handlers says what the runtime's handlers can do; nil: nothing that not all can.
	Handlers func(context.Context) (map[string]cri.HandlerFeatures, error)
	// RuntimeHandler is the runtime's handler for a pod; nil: the default one.
	RuntimeHandler func(*v1.Pod) (string, error)
	// Driver says which cgroup driver the runtime uses; nil: that of Cgroups.
	Driver func(context.Context) (cri.CgroupDriver, error)
	// Capacity is what the machine has, Allocatable what of it is for pods. Without a Capacity they are the same.
	Capacity, Allocatable v1.ResourceList
	// Memory is how memory is shared with cgroup v2.
	Memory Memory
}

// Objects looks up ConfigMaps and Secrets.
type Objects interface {
	ConfigMap(namespace, name string) (*v1.ConfigMap, bool)
	Secret(namespace, name string) (*v1.Secret, bool)
}

// CRI is what an Executor needs of the container runtime.
type CRI interface {
	cri.SandboxService
	cri.ContainerService
	cri.Resizer
	cri.Execer
	ContainerStatus(ctx context.Context, id string) (pod.Container, error)
	ListContainers(ctx context.Context, filter cri.Filter) ([]pod.Container, error)
	DeleteTask(ctx context.Context, containerID string) error
	DeleteRecord(ctx context.Context, containerID string) error
}

// Executor carries out actions. Its methods may be called from many goroutines.
type Executor struct {
	cfg     Config
	cri     CRI
	images  *images.Puller
	objects Objects
	events  worker.Recorder
	client  *http.Client
	now     func() time.Time
	// mounting has the sandboxes in which images are being mounted.
	mounting keylock.Locks

	// classes guards the cgroups of many pods: those of the quality-of-service classes and the one of all. set is what was last set there, all the
	// limits of the one of all.
	classes sync.Mutex
	set     map[string]settings
	all     cgroup.Limits
}

var (
	_ worker.Starter = (*Executor)(nil)
	_ worker.Resizer = (*Executor)(nil)
	_ worker.Ender   = (*Executor)(nil)
	_ worker.Files   = (*Executor)(nil)
)

// New makes an Executor.
func New(cfg Config, runtime CRI, puller *images.Puller, objects Objects, events worker.Recorder) *Executor {
	return &Executor{cfg: cfg, cri: runtime, images: puller, objects: objects, events: events, client: hookClient(), now: time.Now, set: make(map[string]settings)}
}

// CreateSandbox runs the pod's sandbox and returns its status.
func (e *Executor) CreateSandbox(ctx context.Context, p *v1.Pod, attempt uint32, trace string) (pod.Sandbox, error) {
	config, complaint, err := e.sandboxConfig(ctx, p, attempt, trace)
	if err != nil {
		return pod.Sandbox{}, fmt.Errorf("configure the sandbox of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	if complaint != "" {
		e.events.PodEvent(p, "", v1.EventTypeWarning, "DNSConfigForming", complaint)
	}
	if err := e.makePodDirs(p); err != nil {
		return pod.Sandbox{}, err
	}
	if err := e.limitPod(ctx, p, e.podLimits(p)); err != nil {
		return pod.Sandbox{}, err
	}
	id, err := e.cri.RunSandbox(ctx, config)
	if err != nil {
		return pod.Sandbox{}, err
	}
	return e.cri.SandboxStatus(ctx, id)
}

// EnsureImage makes the image of a container or of an image volume present by its pull policy.
func (e *Executor) EnsureImage(ctx context.Context, p *v1.Pod, image images.Want) (cri.Image, error) {
	return e.images.Ensure(ctx, p, image)
}

// StartContainer creates and starts a container, or starts one that was created before. Once the runtime was asked to start it, the
// answer is waited for even when ctx ends, bounded by the call's own deadline: a start that is cancelled half-way can leave containerd
// with a task that it neither lists nor removes.
func (e *Executor) StartContainer(ctx context.Context, r worker.StartRequest) (pod.Container, error) {
	id, begin := r.ID, func(ctx context.Context) error { return e.resume(ctx, string(r.Pod.UID), r.ID) }
	if id == "" {
		var err error
		begin = func(ctx context.Context) error { return e.cri.StartContainer(ctx, id) }
		if id, err = e.create(ctx, r); err != nil {
			return pod.Container{}, err
		}
		e.events.PodEvent(r.Pod, r.Container, v1.EventTypeNormal, "Created", "Container created")
	}
	if err := ctx.Err(); err != nil {
		return pod.Container{}, &worker.StartError{Stage: worker.StageStart, Reason: worker.ReasonRunContainerError, ContainerID: id, Err: err}
	}
	ctx = context.WithoutCancel(ctx)
	if err := begin(ctx); err != nil {
		return pod.Container{}, &worker.StartError{Stage: worker.StageStart, Reason: worker.ReasonRunContainerError, ContainerID: id, Err: err}
	}
	e.events.PodEvent(r.Pod, r.Container, v1.EventTypeNormal, "Started", "Container started")
	c, err := e.cri.ContainerStatus(ctx, id)
	if err != nil {
		return pod.Container{}, &worker.StartError{Stage: worker.StageStart, Reason: worker.ReasonRunContainerError, ContainerID: id, Err: err}
	}
	c.SandboxID = r.Sandbox.ID // a status does not say it
	e.linkLog(r.Pod, &c)
	return c, nil
}

func (e *Executor) create(ctx context.Context, r worker.StartRequest) (string, error) {
	spec, err := find(r.Pod, r.Container)
	if err != nil {
		return "", configError(err)
	}
	config, err := e.containerConfig(ctx, r, spec)
	if err != nil {
		return "", configError(err)
	}
	if err := e.makeContainerDirs(r, spec, config); err != nil {
		return "", configError(err)
	}
	sandbox, _, err := e.sandboxConfig(ctx, r.Pod, r.Sandbox.Attempt, r.Sandbox.Annotations[pod.AnnotationTraceparent])
	if err != nil {
		return "", configError(err)
	}
	unlock, err := e.lockImageMounts(ctx, r.Sandbox.ID, config)
	if err != nil {
		return "", &worker.StartError{Stage: worker.StageCreate, Reason: worker.ReasonCreateContainerError, Err: err}
	}
	defer unlock()
	id, err := e.cri.CreateContainer(ctx, r.Sandbox.ID, config, sandbox)
	if err != nil {
		return "", &worker.StartError{Stage: worker.StageCreate, Reason: worker.ReasonCreateContainerError, Err: err}
	}
	return id, nil
}

func configError(err error) error {
	return &worker.StartError{Stage: worker.StageConfig, Reason: worker.ReasonCreateContainerConfigError, Err: err}
}

// StopSandbox stops a sandbox.
func (e *Executor) StopSandbox(ctx context.Context, id string) error {
	return e.cri.StopSandbox(ctx, id)
}

// RemoveSandbox removes a sandbox and its containers.
func (e *Executor) RemoveSandbox(ctx context.Context, id string) error {
	return e.removeSandbox(ctx, id)
}

// find returns the container's spec.
func find(p *v1.Pod, name string) (*v1.Container, error) {
	if c := pod.FindContainer(p, name); c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("pod %s/%s has no container %q", p.Namespace, p.Name, name)
}
