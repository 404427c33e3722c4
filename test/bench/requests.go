package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podplane/podplane/internal/pod"
)

// requests are what Podplane asked the runtime for one of its pods. The floor
// asks for the same, so that what is compared is the agent and not the pod.
type requests struct {
	uid, name string
	sandbox   []byte // JSON of runtimeapi.PodSandboxConfig
	container []byte // JSON of runtimeapi.ContainerConfig
	// files of the pod's own that the container has mounted, by path.
	files map[string][]byte
}

// recordRequests reads from the runtime what it was asked for a container and its sandbox.
func recordRequests(ctx context.Context, rt runtimeapi.RuntimeServiceClient, containerID string) (*requests, error) {
	c, err := rt.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: containerID, Verbose: true})
	if err != nil {
		return nil, fmt.Errorf("read what was asked for container %s: %w", containerID, err)
	}
	var ofContainer struct {
		SandboxID string          `json:"sandboxID"`
		Config    json.RawMessage `json:"config"`
	}
	if err := json.Unmarshal([]byte(c.GetInfo()["info"]), &ofContainer); err != nil {
		return nil, fmt.Errorf("decode what was asked for container %s: %w", containerID, err)
	}
	s, err := rt.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: ofContainer.SandboxID, Verbose: true})
	if err != nil {
		return nil, fmt.Errorf("read what was asked for sandbox %s: %w", ofContainer.SandboxID, err)
	}
	var ofSandbox struct {
		Config json.RawMessage `json:"config"`
	}
	if err := json.Unmarshal([]byte(s.GetInfo()["info"]), &ofSandbox); err != nil {
		return nil, fmt.Errorf("decode what was asked for sandbox %s: %w", ofContainer.SandboxID, err)
	}
	m := s.GetStatus().GetMetadata()
	r := &requests{uid: m.GetUid(), name: m.GetName(), sandbox: ofSandbox.Config, container: ofContainer.Config, files: map[string][]byte{}}
	for _, m := range c.GetStatus().GetMounts() {
		if !strings.Contains(m.GetHostPath(), r.uid) {
			continue
		}
		if r.files[m.GetHostPath()], err = os.ReadFile(m.GetHostPath()); err != nil {
			return nil, fmt.Errorf("read a file that container %s has mounted: %w", containerID, err)
		}
	}
	return r, nil
}

// forPod are the requests of another pod, which is not Podplane's: it does not
// have the node's label. The files that the requests refer to are made.
func (r *requests) forPod(i int) (*floorPod, error) {
	uid := uuid.NewString()
	replace := strings.NewReplacer(r.uid, uid, r.name, fmt.Sprintf("floor-%d", i))
	p := &floorPod{config: new(runtimeapi.PodSandboxConfig), container: new(runtimeapi.ContainerConfig)}
	if err := json.Unmarshal([]byte(replace.Replace(string(r.sandbox))), p.config); err != nil {
		return nil, fmt.Errorf("make a sandbox's config: %w", err)
	}
	if err := json.Unmarshal([]byte(replace.Replace(string(r.container))), p.container); err != nil {
		return nil, fmt.Errorf("make a container's config: %w", err)
	}
	delete(p.config.Labels, pod.LabelNode)
	delete(p.container.Labels, pod.LabelNode)
	p.dirs = []string{p.config.GetLogDirectory()}
	if err := os.MkdirAll(filepath.Join(p.config.GetLogDirectory(), filepath.Dir(p.container.GetLogPath())), 0o755); err != nil {
		return nil, err
	}
	for of, data := range r.files {
		path := replace.Replace(of)
		root, _, _ := strings.Cut(path, uid)
		p.dirs = append(p.dirs, filepath.Join(root, uid))
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return nil, err
		}
	}
	return p, nil
}
