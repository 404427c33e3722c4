package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// floor makes the CRI calls that a pod needs, with the requests that Podplane
// makes, and nothing else: no agent can be faster.
type floor struct {
	runtime  runtimeapi.RuntimeServiceClient
	requests *requests
}

type floorPod struct {
	sandbox    string
	config     *runtimeapi.PodSandboxConfig
	container  *runtimeapi.ContainerConfig
	containers []string
	dirs       []string // to remove with the pod
}

// start starts n pods, at most parallel at a time, and returns how long it
// took until the last container had started, by the runtime's own clock.
func (f *floor) start(ctx context.Context, n, parallel int) (took time.Duration, pods []*floorPod, err error) {
	for i := range n {
		p, err := f.requests.forPod(i)
		if err != nil {
			return 0, pods, err
		}
		pods = append(pods, p)
	}
	began := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, p := range pods {
		g.Go(func() error { return f.startPod(gctx, p) })
	}
	if err := g.Wait(); err != nil {
		return 0, pods, err
	}
	last, err := f.lastStart(ctx, pods)
	return last.Sub(began), pods, err
}

func (f *floor) startPod(ctx context.Context, p *floorPod) error {
	r, err := f.runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: p.config})
	if err != nil {
		return err
	}
	p.sandbox = r.GetPodSandboxId()
	return f.startContainer(ctx, p, 0)
}

func (f *floor) startContainer(ctx context.Context, p *floorPod, attempt uint32) error {
	p.container.Metadata.Attempt = attempt
	r, err := f.runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: p.sandbox, Config: p.container, SandboxConfig: p.config})
	if err != nil {
		return err
	}
	p.containers = append(p.containers, r.GetContainerId())
	_, err = f.runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: r.GetContainerId()})
	return err
}

func (f *floor) status(ctx context.Context, id string) (*runtimeapi.ContainerStatus, error) {
	r, err := f.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	return r.GetStatus(), err
}

// lastStart is when the last container started.
func (f *floor) lastStart(ctx context.Context, pods []*floorPod) (time.Time, error) {
	var last time.Time
	for _, p := range pods {
		st, err := f.status(ctx, p.containers[len(p.containers)-1])
		if err != nil {
			return last, err
		}
		if at := time.Unix(0, st.GetStartedAt()); at.After(last) {
			last = at
		}
	}
	return last, nil
}

// restart kills the pod's container and measures what no agent can avoid: from
// the container's exit, by the runtime's clock, over the runtime's own handling
// of it, until the one that replaces it has started.
func (f *floor) restart(ctx context.Context, p *floorPod, attempt uint32) (time.Duration, error) {
	old := p.containers[len(p.containers)-1]
	if _, err := f.runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: old}); err != nil {
		return 0, err
	}
	if err := f.startContainer(ctx, p, attempt); err != nil {
		return 0, err
	}
	ended, err := f.status(ctx, old)
	if err != nil {
		return 0, err
	}
	next, err := f.status(ctx, p.containers[len(p.containers)-1])
	return time.Duration(next.GetStartedAt() - ended.GetFinishedAt()), err
}

// remove stops and removes what start made, at most parallel pods at a time, with the calls that Podplane makes, and returns how long it took.
func (f *floor) remove(ctx context.Context, pods []*floorPod, parallel int) (time.Duration, error) {
	began := time.Now()
	g := errgroup.Group{} // without a context: one that fails does not keep the others from being removed
	g.SetLimit(parallel)
	for _, p := range pods {
		g.Go(func() error { return f.removePod(ctx, p) })
	}
	err := g.Wait()
	return time.Since(began), err
}

func (f *floor) removePod(ctx context.Context, p *floorPod) error {
	defer func() {
		removeCgroup(p.config.GetLinux().GetCgroupParent())
		for _, dir := range p.dirs {
			_ = os.RemoveAll(dir)
		}
	}()
	if p.sandbox == "" {
		return nil
	}
	var errs []error
	if n := len(p.containers); n > 0 {
		_, err := f.runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: p.containers[n-1], Timeout: grace})
		errs = append(errs, err)
	}
	_, err := f.runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.sandbox})
	errs = append(errs, err)
	_, err = f.runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.sandbox})
	return errors.Join(append(errs, err)...)
}

// removeCgroup removes a pod's empty cgroup from every hierarchy.
func removeCgroup(path string) {
	dirs, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", "*", path))
	for _, d := range append(dirs, filepath.Join("/sys/fs/cgroup", path)) {
		_ = os.Remove(d)
	}
}

// removeCgroups removes a cgroup without processes, and those below it, from every hierarchy.
func removeCgroups(path string) {
	roots, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", "*", path))
	for _, root := range append(roots, filepath.Join("/sys/fs/cgroup", path)) {
		var dirs []string
		_ = filepath.WalkDir(root, func(dir string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, dir)
			}
			return nil // what is gone already needs no removal
		})
		for _, dir := range slices.Backward(dirs) {
			_ = os.Remove(dir)
		}
	}
}
