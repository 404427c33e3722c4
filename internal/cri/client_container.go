package cri

import (
	"bytes"
	"context"
	"errors"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/internal/telemetry"
)

// CreateContainer implements [ContainerService].
func (c *Client) CreateContainer(ctx context.Context, sandboxID string, config *ContainerConfig, sandbox *SandboxConfig) (string, error) {
	op := operation{name: opCreateContainer, target: config.Name, kind: telemetry.ContainerName, podUID: sandbox.UID, timeout: c.timeouts.Request}
	containerConfig, err := c.containerConfig(config, sandbox)
	if err != nil {
		return "", &CallError{Op: op.name, Target: op.target, Err: err}
	}
	resp, err := invoke(ctx, c, op, c.runtime.CreateContainer, &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandboxID, Config: containerConfig, SandboxConfig: c.sandboxConfig(sandbox),
	})
	return resp.GetContainerId(), err
}

// StartContainer implements [ContainerService].
func (c *Client) StartContainer(ctx context.Context, id string) error {
	op := c.containerOp(opStartContainer, id)
	_, err := invoke(ctx, c, op, c.runtime.StartContainer, &runtimeapi.StartContainerRequest{ContainerId: id})
	return err
}

// StopContainer implements [ContainerService].
func (c *Client) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	timeout := seconds(grace)
	op := c.containerOp(opStopContainer, id).lasting(time.Duration(timeout) * time.Second)
	_, err := invoke(ctx, c, op, c.runtime.StopContainer, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: timeout})
	return gone(err)
}

// RemoveContainer implements [ContainerService].
func (c *Client) RemoveContainer(ctx context.Context, id string) error {
	op := c.containerOp(opRemoveContainer, id)
	_, err := invoke(ctx, c, op, c.runtime.RemoveContainer, &runtimeapi.RemoveContainerRequest{ContainerId: id})
	return gone(err)
}

// ReopenContainerLog implements [ContainerService].
func (c *Client) ReopenContainerLog(ctx context.Context, id string) error {
	op := c.containerOp(opReopenContainerLog, id)
	_, err := invoke(ctx, c, op, c.runtime.ReopenContainerLog, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	return err
}

// UpdateContainerResources implements [Resizer].
func (c *Client) UpdateContainerResources(ctx context.Context, id string, resources *pod.LinuxResources) error {
	op := c.containerOp(opUpdateContainerResources, id)
	_, err := invoke(ctx, c, op, c.runtime.UpdateContainerResources, &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: id, Linux: toResources(resources),
	})
	return err
}

// ListContainers implements [Lister].
func (c *Client) ListContainers(ctx context.Context, filter Filter) ([]pod.Container, error) {
	op := c.runtimeOp(opListContainers, filter.PodUID)
	return c.listContainers(ctx, op, filter)
}

func (c *Client) listContainers(ctx context.Context, op operation, filter Filter) ([]pod.Container, error) {
	req := &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		Id: filter.ID, PodSandboxId: filter.SandboxID, LabelSelector: c.selector(filter),
	}}
	if filter.State != nil {
		req.Filter.State = &runtimeapi.ContainerStateValue{State: toContainerState(*filter.State)}
	}
	resp, err := invoke(ctx, c, op, c.runtime.ListContainers, req)
	if err != nil {
		return nil, err
	}
	containers := make([]pod.Container, 0, len(resp.GetContainers()))
	for _, ctr := range resp.GetContainers() {
		containers = append(containers, fromContainer(ctr))
	}
	return containers, nil
}

// ContainerStatus implements [Lister]. CRI's status does not say which sandbox the container is in: SandboxID is empty.
func (c *Client) ContainerStatus(ctx context.Context, id string) (pod.Container, error) {
	return c.containerStatus(ctx, c.containerOp(opContainerStatus, id))
}

func (c *Client) containerStatus(ctx context.Context, op operation) (pod.Container, error) {
	resp, err := invoke(ctx, c, op, c.runtime.ContainerStatus, &runtimeapi.ContainerStatusRequest{ContainerId: op.target})
	if err != nil {
		return pod.Container{}, err
	}
	if resp.GetStatus() == nil {
		return pod.Container{}, &CallError{Op: op.name, Target: op.target, Err: fault.New(fault.Internal, "the container runtime sent no status")}
	}
	return fromContainerStatus(resp.GetStatus()), nil
}

// ExecSync implements [Execer].
func (c *Client) ExecSync(ctx context.Context, containerID string, command []string, timeout time.Duration) (ExecResult, error) {
	whole := time.Duration(seconds(timeout)) * time.Second
	op := c.containerOp(opExecSync, containerID).lasting(whole)
	if whole == 0 {
		op = op.within(0)
	}
	resp, err := invoke(ctx, c, op, c.runtime.ExecSync, &runtimeapi.ExecSyncRequest{
		ContainerId: containerID, Cmd: command, Timeout: int64(whole / time.Second),
	})
	if err != nil {
		var call *CallError
		// The runtime's own timeout, told apart from the end of the caller's context (which it sees too) and from a
		// runtime that does not answer.
		if errors.As(err, &call) && whole > 0 && ctx.Err() == nil && fault.Is(err, fault.DeadlineExceeded) &&
			call.After >= whole && call.After < op.timeout {
			return ExecResult{}, &ExecTimeoutError{Timeout: whole}
		}
		return ExecResult{}, err
	}
	result := ExecResult{ExitCode: resp.GetExitCode()}
	result.Stdout, result.StdoutTruncated = head(resp.GetStdout())
	result.Stderr, result.StderrTruncated = head(resp.GetStderr())
	if result.ExitCode != 0 {
		return result, &ExitError{Code: result.ExitCode}
	}
	return result, nil
}

// head keeps the beginning, in memory of its own: the message that it came in may be large.
func head(b []byte) ([]byte, bool) {
	if len(b) <= MaxExecOutput {
		return b, false
	}
	return bytes.Clone(b[:MaxExecOutput]), true
}

// ExecURL implements [Streamer].
func (c *Client) ExecURL(ctx context.Context, containerID string, command []string, streams Streams) (string, error) {
	op := c.containerOp(opExec, containerID)
	resp, err := invoke(ctx, c, op, c.runtime.Exec, &runtimeapi.ExecRequest{
		ContainerId: containerID, Cmd: command,
		Tty: streams.TTY, Stdin: streams.Stdin, Stdout: streams.Stdout, Stderr: streams.Stderr,
	})
	return resp.GetUrl(), err
}

// AttachURL implements [Streamer].
func (c *Client) AttachURL(ctx context.Context, containerID string, streams Streams) (string, error) {
	op := c.containerOp(opAttach, containerID)
	resp, err := invoke(ctx, c, op, c.runtime.Attach, &runtimeapi.AttachRequest{
		ContainerId: containerID, Tty: streams.TTY, Stdin: streams.Stdin, Stdout: streams.Stdout, Stderr: streams.Stderr,
	})
	return resp.GetUrl(), err
}
