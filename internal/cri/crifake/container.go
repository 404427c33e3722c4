package crifake

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
)

// ending is how a container ended.
type ending struct {
	code   int32
	reason string
}

var killed = ending{code: 137, reason: "Error"}

// CreateContainer implements [cri.ContainerService].
func (r *Runtime) CreateContainer(ctx context.Context, sandboxID string, config *cri.ContainerConfig, sandboxConfig *cri.SandboxConfig) (string, error) {
	const op = "create_container"
	if err := r.enter(ctx, op, config.Name); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[sandboxID]
	if s == nil {
		return "", callError(op, config.Name, fault.NotFound, "no such sandbox %s", sandboxID)
	}
	if !s.Ready {
		return "", callError(op, config.Name, fault.Internal, "sandbox %s is not ready", sandboxID)
	}
	for _, c := range r.containers {
		if c.Name == config.Name && c.Attempt == config.Attempt && c.PodUID == sandboxConfig.UID {
			return "", callError(op, config.Name, fault.AlreadyExists, "name is reserved for %q", c.ID)
		}
	}
	image := r.findImage(config.Image.Image)
	if image == nil {
		return "", callError(op, config.Name, fault.NotFound, "image %q is not present", config.Image.Image)
	}
	copied := *config
	c := &container{config: &copied, sandbox: s, done: make(chan struct{}), Container: pod.Container{
		ID: r.newID("container"), Name: config.Name, SandboxID: sandboxID,
		PodUID: sandboxConfig.UID, PodNamespace: sandboxConfig.Namespace, PodName: sandboxConfig.Name,
		Attempt: config.Attempt, State: pod.ContainerCreated, CreatedAt: r.clock.Now(),
		Image: config.Image.Image, ImageRef: imageRef(image), ImageID: image.ID,
		Labels: r.labels(config.Labels, sandboxConfig, config.Name), Annotations: maps.Clone(config.Annotations),
		Mounts: slices.Clone(config.Mounts), Resources: cloneResources(config.Resources), StopSignal: config.StopSignal,
		User: userOf(&config.Security),
	}}
	if config.LogPath != "" {
		c.LogPath = s.config.LogDirectory + "/" + config.LogPath
	}
	if c.StopSignal == "" {
		c.StopSignal = "SIGTERM"
	}
	r.containers[c.ID] = c
	r.emit(cri.EventCreated, c.ID, s)
	return c.ID, nil
}

func userOf(s *cri.ContainerSecurity) *pod.LinuxUser {
	u := &pod.LinuxUser{SupplementalGroups: slices.Clone(s.SupplementalGroups)}
	if s.RunAsUser != nil {
		u.UID = *s.RunAsUser
	}
	if s.RunAsGroup != nil {
		u.GID = *s.RunAsGroup
	}
	return u
}

func cloneResources(r *pod.LinuxResources) *pod.LinuxResources {
	if r == nil {
		return nil
	}
	c := *r
	return &c
}

// StartContainer implements [cri.ContainerService].
func (r *Runtime) StartContainer(ctx context.Context, id string) error {
	const op = "start_container"
	if err := r.enter(ctx, op, id); err != nil {
		return err
	}
	r.mu.Lock()
	c := r.containers[id]
	var snapshot pod.Container
	if c != nil {
		snapshot = c.Container
	}
	r.mu.Unlock()
	if c == nil {
		return callError(op, id, fault.NotFound, "no such container")
	}
	behavior := r.behavior(snapshot, c.config) // without the mutex, so that it may ask the runtime

	r.mu.Lock()
	defer r.mu.Unlock()
	if c.State != pod.ContainerCreated {
		return callError(op, id, fault.Internal, "container is in state %s", c.State)
	}
	if !c.sandbox.Ready {
		return callError(op, id, fault.Internal, "sandbox %s is not running", c.SandboxID)
	}
	c.behavior = behavior
	err := c.behavior.StartError
	if err == nil {
		err = c.writeLog(r.clock.Now())
	}
	if err != nil {
		c.State, c.ExitCode, c.Reason, c.Message, c.FinishedAt = pod.ContainerExited, 128, "StartError", err.Error(), r.clock.Now()
		close(c.done)
		return callError(op, id, fault.Internal, "start failed: %w", err)
	}
	c.State, c.StartedAt = pod.ContainerRunning, r.clock.Now()
	r.emit(cri.EventStarted, id, c.sandbox)
	if b := c.behavior; b.Exits {
		r.later(b.After, c, ending{code: b.ExitCode, reason: b.Reason})
	}
	return nil
}

// later ends the container after a while. The caller holds the mutex.
func (s *store) later(d time.Duration, c *container, e ending) {
	if d <= 0 {
		s.exit(c, e)
		return
	}
	s.clock.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.exit(c, e)
	})
}

// exit ends the container, if it runs. The caller holds the mutex.
func (s *store) exit(c *container, e ending) {
	if c.State != pod.ContainerRunning {
		return
	}
	c.State, c.FinishedAt, c.ExitCode, c.Reason = pod.ContainerExited, s.clock.Now(), e.code, e.reason
	if c.Reason == "" {
		c.Reason = "Completed"
		if e.code != 0 {
			c.Reason = "Error"
		}
	}
	close(c.done)
	s.emit(cri.EventStopped, c.ID, c.sandbox)
}

// Exit ends a running container, with the reason OOMKilled, or Completed and Error when it is empty.
func (r *Runtime) Exit(id string, code int32, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[id]; c != nil {
		r.exit(c, ending{code: code, reason: reason})
	}
}

// StopContainer implements [cri.ContainerService].
func (r *Runtime) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	const op = "stop_container"
	if err := r.enter(ctx, op, id); err != nil {
		return err
	}
	r.mu.Lock()
	c := r.containers[id]
	if c == nil || c.State != pod.ContainerRunning {
		r.mu.Unlock()
		return nil
	}
	if grace <= 0 {
		r.exit(c, killed)
	} else if !c.stopping && !c.behavior.IgnoreStop {
		c.stopping = true // the signal is sent only once
		r.later(c.behavior.StopTakes, c, ending{code: c.behavior.StopCode})
	}
	r.mu.Unlock()

	timer := r.clock.NewTimer((grace + time.Second - 1).Truncate(time.Second))
	defer timer.Stop()
	select {
	case <-c.done:
	case <-ctx.Done():
		return &cri.CallError{Op: op, Target: id, Err: ctx.Err()}
	case <-timer.C():
		r.mu.Lock()
		r.exit(c, killed)
		r.mu.Unlock()
	}
	return nil
}

// DeleteTask is not there: that is containerd's.
func (r *Runtime) DeleteTask(ctx context.Context, id string) error {
	if err := r.enter(ctx, "delete_task", id); err != nil {
		return err
	}
	return fault.New(fault.Unimplemented, "delete task %s: this is not containerd", id)
}

// DeleteRecord is not there: that is containerd's.
func (r *Runtime) DeleteRecord(ctx context.Context, id string) error {
	if err := r.enter(ctx, "delete_container_record", id); err != nil {
		return err
	}
	return fault.New(fault.Unimplemented, "delete the record of container %s: this is not containerd", id)
}

// RemoveContainer implements [cri.ContainerService].
func (r *Runtime) RemoveContainer(ctx context.Context, id string) error {
	if err := r.enter(ctx, "remove_container", id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[id]; c != nil {
		r.exit(c, killed)
		r.remove(c)
	}
	return nil
}

// remove forgets a container. The caller holds the mutex.
func (s *store) remove(c *container) {
	delete(s.containers, c.ID)
	s.emit(cri.EventDeleted, c.ID, c.sandbox)
}

// UpdateContainerResources implements [cri.Resizer].
func (r *Runtime) UpdateContainerResources(ctx context.Context, id string, resources *pod.LinuxResources) error {
	const op = "update_container_resources"
	if err := r.enter(ctx, op, id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return callError(op, id, fault.NotFound, "no such container")
	}
	if c.State != pod.ContainerRunning && c.State != pod.ContainerCreated {
		return callError(op, id, fault.Internal, "container is in state %s", c.State)
	}
	c.Resources = mergeResources(c.Resources, resources)
	return nil
}

// mergeResources leaves alone what is zero in the change.
func mergeResources(old, change *pod.LinuxResources) *pod.LinuxResources {
	merged := pod.LinuxResources{}
	if old != nil {
		merged = *old
	}
	if change == nil {
		return &merged
	}
	for _, n := range []struct{ to, from *int64 }{
		{&merged.CPUPeriod, &change.CPUPeriod},
		{&merged.CPUQuota, &change.CPUQuota},
		{&merged.CPUShares, &change.CPUShares},
		{&merged.MemoryLimitBytes, &change.MemoryLimitBytes},
		{&merged.MemorySwapLimit, &change.MemorySwapLimit},
		{&merged.OOMScoreAdj, &change.OOMScoreAdj},
	} {
		if *n.from != 0 {
			*n.to = *n.from
		}
	}
	if change.CPUSetCPUs != "" {
		merged.CPUSetCPUs = change.CPUSetCPUs
	}
	if change.CPUSetMems != "" {
		merged.CPUSetMems = change.CPUSetMems
	}
	return &merged
}

// ContainerStatus implements [cri.Lister].
func (r *Runtime) ContainerStatus(ctx context.Context, id string) (pod.Container, error) {
	if err := r.enter(ctx, "container_status", id); err != nil {
		return pod.Container{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return pod.Container{}, callError("container_status", id, fault.NotFound, "no such container")
	}
	status := c.Container
	status.SandboxID = "" // a status does not say it
	return status, nil
}

// ListContainers implements [cri.Lister].
func (r *Runtime) ListContainers(ctx context.Context, filter cri.Filter) ([]pod.Container, error) {
	if err := r.enter(ctx, "list_containers", ""); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	list := []pod.Container{}
	for _, c := range r.containers {
		if !r.selects(filter, c.ID, c.Labels) || filter.SandboxID != "" && filter.SandboxID != c.SandboxID ||
			filter.State != nil && *filter.State != c.State {
			continue
		}
		list = append(list, listed(c.Container))
	}
	slices.SortFunc(list, func(a, b pod.Container) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

// listed leaves out what only a status has.
func listed(c pod.Container) pod.Container {
	return pod.Container{
		ID: c.ID, Name: c.Name, SandboxID: c.SandboxID, PodUID: c.PodUID, PodNamespace: c.PodNamespace, PodName: c.PodName,
		Attempt: c.Attempt, State: c.State, CreatedAt: c.CreatedAt, Image: c.Image, ImageRef: c.ImageRef, ImageID: c.ImageID,
		Labels: c.Labels, Annotations: c.Annotations,
	}
}

// ListPods implements [cri.Lister].
func (r *Runtime) ListPods(ctx context.Context, filter cri.Filter) ([]pod.RuntimePod, error) {
	observedAt := r.clock.Now()
	sandboxes, err := r.ListSandboxes(ctx, filter)
	if err != nil {
		return nil, err
	}
	containers, err := r.ListContainers(ctx, filter)
	if err != nil {
		return nil, err
	}
	return cri.GroupPods(sandboxes, containers, observedAt), nil
}

// PodStatus implements [cri.Lister]. It asks for one status after the other.
func (r *Runtime) PodStatus(ctx context.Context, uid string) (pod.RuntimePod, error) {
	ctx = context.WithValue(ctx, inspectKey{}, true)
	pods, err := r.ListPods(ctx, cri.Filter{PodUID: uid})
	if err != nil || len(pods) == 0 {
		return pod.RuntimePod{UID: uid, ObservedAt: r.clock.Now()}, err
	}
	p := pods[0]
	inspectErr := &cri.InspectError{PodUID: uid}
	keep := func(err error) bool {
		if err != nil && !fault.Is(err, fault.NotFound) {
			inspectErr.Failed = append(inspectErr.Failed, err)
		}
		return err == nil
	}
	sandboxes := p.Sandboxes[:0]
	for _, listed := range p.Sandboxes {
		if s, err := r.SandboxStatus(ctx, listed.ID); keep(err) {
			sandboxes = append(sandboxes, s)
		}
	}
	containers := p.Containers[:0]
	for _, listed := range p.Containers {
		if c, err := r.ContainerStatus(ctx, listed.ID); keep(err) {
			c.SandboxID = listed.SandboxID
			containers = append(containers, c)
		}
	}
	p.Sandboxes, p.Containers = sandboxes, containers
	if len(inspectErr.Failed) > 0 {
		return p, inspectErr
	}
	return p, nil
}
