package runtime

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/worker"
)

// mounts are the container's volumes, its hosts file and its termination message file. What belongs to the pod alone may be labelled for SELinux, which a
// runtime on a host without it leaves be.
func (e *Executor) mounts(ctx context.Context, r worker.StartRequest, c *v1.Container, env *environment) ([]pod.Mount, error) {
	list := make([]pod.Mount, 0, len(c.VolumeMounts)+2)
	ownHosts := false
	for i := range c.VolumeMounts {
		vm := &c.VolumeMounts[i]
		m, err := volumeMount(r, vm, env)
		if err != nil {
			return nil, err
		}
		ownHosts = ownHosts || filepath.Clean(vm.MountPath) == etcHosts
		m.ContainerPath = vm.MountPath
		if !strings.HasPrefix(m.ContainerPath, "/") {
			m.ContainerPath = "/" + m.ContainerPath
		}
		m.Propagation = propagation(vm)
		if m.RecursiveReadOnly, err = e.recursiveReadOnly(ctx, r, vm); err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	if !ownHosts && (len(r.Sandbox.IPs) > 0 || r.Pod.Spec.HostNetwork) {
		list = append(list, pod.Mount{ContainerPath: etcHosts, HostPath: filepath.Join(e.PodDir(string(r.Pod.UID)), "etc-hosts"), SELinuxRelabel: true})
	}
	if c.TerminationMessagePath != "" {
		name, err := randomName()
		if err != nil {
			return nil, err
		}
		list = append(list, pod.Mount{
			ContainerPath: c.TerminationMessagePath, HostPath: filepath.Join(e.containerDir(r.Pod, c.Name), name), SELinuxRelabel: true,
		})
	}
	return list, nil
}

func propagation(vm *v1.VolumeMount) pod.MountPropagation {
	if vm.MountPropagation == nil {
		return pod.MountPrivate
	}
	switch *vm.MountPropagation {
	case v1.MountPropagationHostToContainer:
		return pod.MountHostToContainer
	case v1.MountPropagationBidirectional:
		return pod.MountBidirectional
	}
	return pod.MountPrivate
}

// recursiveReadOnly says whether what is mounted below a read-only mount is to be read-only too, which only some runtimes and kernels can do.
func (e *Executor) recursiveReadOnly(ctx context.Context, r worker.StartRequest, vm *v1.VolumeMount) (bool, error) {
	if vm.RecursiveReadOnly == nil || *vm.RecursiveReadOnly == v1.RecursiveReadOnlyDisabled {
		return false, nil
	}
	able := false
	if e.cfg.Handlers != nil {
		handlers, err := e.cfg.Handlers(ctx)
		if err != nil {
			return false, fmt.Errorf("ask the runtime for what its handlers can do: %w", err)
		}
		able = handlers[r.Sandbox.RuntimeHandler].RecursiveReadOnlyMounts
	}
	if !able && *vm.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled {
		return false, fmt.Errorf("volume mount %s: recursiveReadOnly is not supported by the runtime handler %q", vm.MountPath, r.Sandbox.RuntimeHandler)
	}
	return able, nil
}

// volumeMount is the source of a mount.
func volumeMount(r worker.StartRequest, vm *v1.VolumeMount, env *environment) (pod.Mount, error) {
	sub, err := subPath(vm, env)
	if err != nil {
		return pod.Mount{}, fmt.Errorf("volume mount %s: %w", vm.MountPath, err)
	}
	if isImageVolume(r.Pod, vm.Name) {
		return imageMount(r, vm.Name, sub)
	}
	host := r.Volumes[vm.Name]
	if host == "" {
		return pod.Mount{}, fmt.Errorf("volume %q is not set up", vm.Name)
	}
	return pod.Mount{HostPath: host, ReadOnly: vm.ReadOnly || readOnlyVolume(r.Pod, vm.Name), SELinuxRelabel: !isHostPath(r.Pod, vm.Name)}, nil
}

// subPath is the part of the volume that is mounted, "" for all of it.
func subPath(vm *v1.VolumeMount, env *environment) (string, error) {
	if vm.SubPathExpr == "" {
		return vm.SubPath, nil
	}
	path, err := env.expandKnown(vm.SubPathExpr)
	if err != nil {
		return "", fmt.Errorf("expand subPathExpr: %w", err)
	}
	if path == "" || !filepath.IsLocal(path) {
		return "", errors.New("subPathExpr must become a relative path within the volume")
	}
	return path, nil
}

// readOnlyVolume says whether a volume is read-only whatever its mounts say: those that are made from objects are.
func readOnlyVolume(p *v1.Pod, name string) bool {
	v := volumeOf(p, name)
	return v != nil && (v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil)
}

// isHostPath says whether the volume is the node's, not the pod's own.
func isHostPath(p *v1.Pod, name string) bool {
	v := volumeOf(p, name)
	return v == nil || v.HostPath != nil
}

func volumeOf(p *v1.Pod, name string) *v1.Volume {
	for i := range p.Spec.Volumes {
		if p.Spec.Volumes[i].Name == name {
			return &p.Spec.Volumes[i]
		}
	}
	return nil
}
