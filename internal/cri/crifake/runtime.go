// Package crifake is the in-memory twin of a container runtime: it implements all interfaces of package cri, passes the
// same conformance suite as the real one, and lets a test decide what containers do, what goes wrong and when.
//
// # What it owns, and what it promises
//
// A Runtime holds sandboxes, containers and images in memory behind one mutex; nothing runs. A container is a
// [Behavior]: how long it runs, what it does when told to stop, what its commands answer. Time comes from the given
// clock (or from package time, which testing/synctest controls), so that a test of a day's crash loop takes no time.
//
// Events are sent under the same mutex that changes the state: the order per stream is the order of what happened. A
// stream that is not read drops events when its buffer of 4096 is full, as runtimes do. Goroutines: none, except timers of the
// clock. Values that are returned share maps and slices with the store and must not be changed.
package crifake

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
)

// Options of a [Runtime]. The zero value works.
type Options struct {
	// Node is put on what is created and selects what is listed, as with cri.Options.
	Node string
	// Clock tells the time. Nil: package time.
	Clock clock.WithDelayedExecution
	// Behavior decides what a container does when it is started. Nil: it runs until it is stopped.
	Behavior func(container pod.Container, config *cri.ContainerConfig) Behavior
	// AnyImage makes every image pullable. Else only those of AddRemoteImage are.
	AnyImage bool
}

// Behavior is what a container does.
type Behavior struct {
	// StartError fails the start: the container is then exited with code 128 and reason StartError.
	StartError error
	// Exits says that the container ends by itself, After its start, with ExitCode. Reason is Completed or Error unless given.
	Exits    bool
	After    time.Duration
	ExitCode int32
	Reason   string
	// IgnoreStop: the stop signal is ignored, only the kill at the end of the grace period helps.
	IgnoreStop bool
	// StopTakes is how long it takes from the stop signal to the end; StopCode is the exit code then.
	StopTakes time.Duration
	StopCode  int32
	// Stdout lines are written to the log file at the start.
	Stdout []string
	// Exec answers commands. Nil: they end with 0 and no output.
	Exec func(ctx context.Context, command []string) Exec
}

// Exec is what a command does.
type Exec struct {
	Stdout, Stderr string
	ExitCode       int32
	// Takes is how long it runs. Longer than the timeout: it is killed.
	Takes time.Duration
	// Err: it could not be run at all.
	Err error
}

// Runtime is the fake, seen from one node. It may be used from many goroutines.
type Runtime struct {
	*store
	node string
}

var _ cri.Runtime = (*Runtime)(nil)

type store struct {
	clock    clock.WithDelayedExecution
	behavior func(pod.Container, *cri.ContainerConfig) Behavior
	anyImage bool

	mu         sync.Mutex
	sequence   int
	sandboxes  map[string]*sandbox
	containers map[string]*container
	images     map[string]*cri.Image // by reference
	remote     map[string]RemoteImage
	streams    map[*stream]struct{}
	dropEvents bool
	down       bool
	rules      []*rule
	calls      []Call
	conditions map[string]cri.Condition
	usage      func(pod.Container) cri.ContainerStats
	imageFs    cri.ImageFsInfo
}

type sandbox struct {
	pod.Sandbox
	config *cri.SandboxConfig
}

type container struct {
	pod.Container
	config   *cri.ContainerConfig
	sandbox  *sandbox
	behavior Behavior
	stopping bool
	done     chan struct{} // closed at the exit
}

// New makes an empty runtime.
func New(options Options) *Runtime {
	s := &store{
		clock:      options.Clock,
		behavior:   options.Behavior,
		anyImage:   options.AnyImage,
		sandboxes:  map[string]*sandbox{},
		containers: map[string]*container{},
		images:     map[string]*cri.Image{},
		remote:     map[string]RemoteImage{},
		streams:    map[*stream]struct{}{},
		conditions: map[string]cri.Condition{},
	}
	if s.clock == nil {
		s.clock = clock.RealClock{}
	}
	if s.behavior == nil {
		s.behavior = func(pod.Container, *cri.ContainerConfig) Behavior { return Behavior{} }
	}
	for _, t := range []string{cri.ConditionRuntimeReady, cri.ConditionNetworkReady} {
		s.conditions[t] = cri.Condition{Type: t, Status: true}
	}
	s.imageFs.Images = []cri.FilesystemUsage{{Mountpoint: "/var/lib/crifake", UsedBytes: 1 << 20, InodesUsed: 100}}
	s.imageFs.Containers = s.imageFs.Images
	return &Runtime{store: s, node: options.Node}
}

// For returns the same runtime as another node's client sees it; the empty name sees everything.
func (r *Runtime) For(node string) *Runtime { return &Runtime{store: r.store, node: node} }

// SetCondition changes a condition that Status reports.
func (r *Runtime) SetCondition(c cri.Condition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conditions[c.Type] = c
}

// newID returns an ID that sorts by age. The caller holds the mutex.
func (s *store) newID(kind string) string {
	s.sequence++
	return fmt.Sprintf("%s-%06d", kind, s.sequence)
}

// Version implements [cri.Health].
func (r *Runtime) Version(ctx context.Context) (cri.Version, error) {
	if err := r.enter(ctx, "version", ""); err != nil {
		return cri.Version{}, err
	}
	return cri.Version{RuntimeName: "crifake", RuntimeVersion: "v0", RuntimeAPIVersion: "v1"}, nil
}

// Status implements [cri.Health].
func (r *Runtime) Status(ctx context.Context) (cri.Status, error) {
	if err := r.enter(ctx, "status", ""); err != nil {
		return cri.Status{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := cri.Status{Handlers: map[string]cri.HandlerFeatures{"": {RecursiveReadOnlyMounts: true, UserNamespaces: true}}, SupplementalGroupsPolicy: true}
	for _, c := range r.conditions {
		s.Conditions = append(s.Conditions, c)
	}
	return s, nil
}

// RuntimeConfig implements [cri.Health].
func (r *Runtime) RuntimeConfig(ctx context.Context) (cri.RuntimeConfig, error) {
	if err := r.enter(ctx, "runtime_config", ""); err != nil {
		return cri.RuntimeConfig{}, err
	}
	return cri.RuntimeConfig{CgroupDriver: cri.CgroupDriverCgroupfs}, nil
}
