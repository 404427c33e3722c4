package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
)

// floor drives the bare CRI calls that a pod needs, and nothing else.
type floor struct {
	cri        *cri.Client
	image      string
	logs       string
	cgroupRoot string
}

type floorPod struct {
	sandbox    string
	config     *cri.SandboxConfig
	containers []string
}

// start starts n pods, at most parallel at a time, and returns how long it
// took until the last container had started, by the runtime's own clock.
func (f *floor) start(ctx context.Context, n, parallel int) (took time.Duration, pods []*floorPod, err error) {
	pods = make([]*floorPod, n)
	for i := range pods {
		pods[i] = f.newPod(i)
		if err := os.MkdirAll(filepath.Join(pods[i].config.LogDirectory, "app"), 0o755); err != nil {
			return 0, pods, err
		}
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

func (f *floor) newPod(i int) *floorPod {
	uid := uuid.NewString()
	return &floorPod{config: &cri.SandboxConfig{
		Name: fmt.Sprintf("floor-%d", i), Namespace: "bench", UID: uid, Hostname: fmt.Sprintf("floor-%d", i),
		LogDirectory: filepath.Join(f.logs, uid), CgroupParent: filepath.Join(f.cgroupRoot, "floor", "pod"+uid),
		Labels: map[string]string{pod.LabelPodUID: uid},
	}}
}

func (f *floor) startPod(ctx context.Context, p *floorPod) error {
	id, err := f.cri.RunSandbox(ctx, p.config)
	if err != nil {
		return err
	}
	p.sandbox = id
	return f.startContainer(ctx, p, 0)
}

func (f *floor) startContainer(ctx context.Context, p *floorPod, attempt uint32) error {
	id, err := f.cri.CreateContainer(ctx, p.sandbox, &cri.ContainerConfig{
		Name: "app", Attempt: attempt, Image: cri.ImageSpec{Image: f.image}, Args: []string{"sleep", "forever"},
		LogPath: fmt.Sprintf("app/%d.log", attempt), Labels: map[string]string{pod.LabelPodUID: p.config.UID},
	}, p.config)
	if err != nil {
		return err
	}
	p.containers = append(p.containers, id)
	return f.cri.StartContainer(ctx, id)
}

// lastStart is when the last container started.
func (f *floor) lastStart(ctx context.Context, pods []*floorPod) (time.Time, error) {
	var last time.Time
	for _, p := range pods {
		st, err := f.cri.ContainerStatus(ctx, p.containers[len(p.containers)-1])
		if err != nil {
			return last, err
		}
		if st.StartedAt.After(last) {
			last = st.StartedAt
		}
	}
	return last, nil
}

// restart kills the pod's container and measures what no agent can avoid: from
// the container's exit, by the runtime's clock, over the runtime's own handling
// of it, until the one that replaces it has started.
func (f *floor) restart(ctx context.Context, p *floorPod, attempt uint32) (time.Duration, error) {
	old := p.containers[len(p.containers)-1]
	if err := f.cri.StopContainer(ctx, old, 0); err != nil {
		return 0, err
	}
	if err := f.startContainer(ctx, p, attempt); err != nil {
		return 0, err
	}
	ended, err := f.cri.ContainerStatus(ctx, old)
	if err != nil {
		return 0, err
	}
	next, err := f.cri.ContainerStatus(ctx, p.containers[len(p.containers)-1])
	return next.StartedAt.Sub(ended.FinishedAt), err
}

// remove removes what start made.
func (f *floor) remove(ctx context.Context, pods []*floorPod) error {
	var wg sync.WaitGroup
	errs := make([]error, len(pods))
	limit := make(chan struct{}, 4)
	for i, p := range pods {
		if p.sandbox == "" {
			continue
		}
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			errs[i] = f.cri.RemoveSandbox(ctx, p.sandbox)
			removeCgroup(p.config.CgroupParent)
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// removeCgroup removes a pod's empty cgroup from every hierarchy.
func removeCgroup(path string) {
	dirs, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", "*", path))
	for _, d := range append(dirs, filepath.Join("/sys/fs/cgroup", path)) {
		_ = os.Remove(d)
	}
}
