package crifake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
)

// RunSandbox implements [cri.SandboxService].
func (r *Runtime) RunSandbox(ctx context.Context, config *cri.SandboxConfig) (string, error) {
	target := config.Namespace + "/" + config.Name
	if err := r.enter(ctx, "run_podsandbox", target); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sandboxes {
		if s.Namespace == config.Namespace && s.Name == config.Name && s.UID == config.UID && s.Attempt == config.Attempt {
			return "", callError("run_podsandbox", target, fault.AlreadyExists, "name is reserved for %q", s.ID)
		}
	}
	copied := *config
	s := &sandbox{config: &copied, Sandbox: pod.Sandbox{
		ID: r.newID("sandbox"), Namespace: config.Namespace, Name: config.Name, UID: config.UID, Attempt: config.Attempt,
		Ready: true, CreatedAt: r.clock.Now(), RuntimeHandler: config.RuntimeHandler,
		Labels: r.labels(config.Labels, config, ""), Annotations: maps.Clone(config.Annotations),
		HostNetwork: config.Security.Namespaces.Network == cri.NamespaceNode,
		HostPID:     config.Security.Namespaces.PID == cri.NamespaceNode,
		HostIPC:     config.Security.Namespaces.IPC == cri.NamespaceNode,
	}}
	if !s.HostNetwork {
		s.IPs = []string{fmt.Sprintf("10.88.%d.%d", r.sequence/250, r.sequence%250+2)}
	}
	r.sandboxes[s.ID] = s
	r.emit(cri.EventCreated, s.ID, s)
	r.emit(cri.EventStarted, s.ID, s)
	return s.ID, nil
}

// labels adds those that the client of the real runtime adds.
func (r *Runtime) labels(labels map[string]string, s *cri.SandboxConfig, container string) map[string]string {
	all := make(map[string]string, len(labels)+5)
	maps.Copy(all, labels)
	all[pod.LabelPodName], all[pod.LabelPodNamespace], all[pod.LabelPodUID] = s.Name, s.Namespace, s.UID
	if container != "" {
		all[pod.LabelContainerName] = container
	}
	if r.node != "" {
		all[pod.LabelNode] = r.node
	}
	return all
}

// StopSandbox implements [cri.SandboxService].
func (r *Runtime) StopSandbox(ctx context.Context, id string) error {
	if err := r.enter(ctx, "stop_podsandbox", id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sandboxes[id]; s != nil {
		r.stopSandbox(s)
	}
	return nil
}

// stopSandbox kills what runs in it. The caller holds the mutex.
func (s *store) stopSandbox(sb *sandbox) {
	for _, c := range s.inSandbox(sb) {
		s.exit(c, killed)
	}
	if sb.Ready {
		sb.Ready, sb.IPs = false, nil
		s.emit(cri.EventStopped, sb.ID, sb)
	}
}

// inSandbox returns the sandbox's containers by age. The caller holds the mutex.
func (s *store) inSandbox(sb *sandbox) []*container {
	var in []*container
	for _, c := range s.containers {
		if c.sandbox == sb {
			in = append(in, c)
		}
	}
	slices.SortFunc(in, func(a, b *container) int { return strings.Compare(a.ID, b.ID) })
	return in
}

// RemoveSandbox implements [cri.SandboxService].
func (r *Runtime) RemoveSandbox(ctx context.Context, id string) error {
	if err := r.enter(ctx, "remove_podsandbox", id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		return nil
	}
	r.stopSandbox(s)
	for _, c := range r.inSandbox(s) {
		r.remove(c)
	}
	r.emit(cri.EventDeleted, id, s)
	delete(r.sandboxes, id)
	return nil
}

// CrashSandbox ends a sandbox and what runs in it, as if its processes had been killed.
func (r *Runtime) CrashSandbox(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sandboxes[id]; s != nil {
		r.stopSandbox(s)
	}
}

// SandboxStatus implements [cri.SandboxService].
func (r *Runtime) SandboxStatus(ctx context.Context, id string) (pod.Sandbox, error) {
	if err := r.enter(ctx, "podsandbox_status", id); err != nil {
		return pod.Sandbox{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		return pod.Sandbox{}, callError("podsandbox_status", id, fault.NotFound, "no such sandbox")
	}
	return s.Sandbox, nil
}

// ListSandboxes implements [cri.SandboxService].
func (r *Runtime) ListSandboxes(ctx context.Context, filter cri.Filter) ([]pod.Sandbox, error) {
	if err := r.enter(ctx, "list_podsandbox", ""); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	list := []pod.Sandbox{}
	for _, s := range r.sandboxes {
		if !r.selects(filter, s.ID, s.Labels) || filter.Ready != nil && *filter.Ready != s.Ready {
			continue
		}
		listed := s.Sandbox
		listed.IPs, listed.HostNetwork, listed.HostPID, listed.HostIPC = nil, false, false, false // only in a status
		list = append(list, listed)
	}
	slices.SortFunc(list, func(a, b pod.Sandbox) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

func (r *Runtime) selects(filter cri.Filter, id string, labels map[string]string) bool {
	if filter.ID != "" && filter.ID != id ||
		r.node != "" && labels[pod.LabelNode] != r.node ||
		filter.PodUID != "" && labels[pod.LabelPodUID] != filter.PodUID {
		return false
	}
	for k, v := range filter.Labels {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// UpdateSandboxResources implements [cri.Resizer].
func (r *Runtime) UpdateSandboxResources(ctx context.Context, id string, overhead, resources *pod.LinuxResources) error {
	if err := r.enter(ctx, "update_podsandbox_resources", id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		return callError("update_podsandbox_resources", id, fault.NotFound, "no such sandbox")
	}
	s.config.Overhead, s.config.Resources = overhead, resources
	return nil
}

// PortForwardURL implements [cri.Streamer].
func (r *Runtime) PortForwardURL(ctx context.Context, sandboxID string, _ []int32) (string, error) {
	if err := r.enter(ctx, "port_forward", sandboxID); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sandboxes[sandboxID] == nil {
		return "", callError("port_forward", sandboxID, fault.NotFound, "no such sandbox")
	}
	return "http://127.0.0.1:0/portforward/" + sandboxID, nil
}
