package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/internal/telemetry"
)

// RunSandbox implements [SandboxService].
func (c *Client) RunSandbox(ctx context.Context, config *SandboxConfig) (string, error) {
	op := operation{
		name: opRunSandbox, target: config.Namespace + "/" + config.Name, kind: telemetry.PodName, podUID: config.UID,
		handler: config.RuntimeHandler, timeout: 2 * c.timeouts.Request,
	}
	resp, err := invoke(ctx, c, op, c.runtime.RunPodSandbox, &runtimeapi.RunPodSandboxRequest{
		Config: c.sandboxConfig(config), RuntimeHandler: config.RuntimeHandler,
	})
	return resp.GetPodSandboxId(), err
}

// StopSandbox implements [SandboxService].
func (c *Client) StopSandbox(ctx context.Context, id string) error {
	op := c.sandboxOp(opStopSandbox, id)
	_, err := invoke(ctx, c, op, c.runtime.StopPodSandbox, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	return gone(err)
}

// RemoveSandbox implements [SandboxService].
func (c *Client) RemoveSandbox(ctx context.Context, id string) error {
	op := c.sandboxOp(opRemoveSandbox, id)
	_, err := invoke(ctx, c, op, c.runtime.RemovePodSandbox, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return gone(err)
}

// gone takes NotFound for success: what does not exist is stopped and removed.
func gone(err error) error {
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// SandboxStatus implements [SandboxService].
func (c *Client) SandboxStatus(ctx context.Context, id string) (pod.Sandbox, error) {
	return c.sandboxStatus(ctx, c.sandboxOp(opSandboxStatus, id))
}

func (c *Client) sandboxStatus(ctx context.Context, op operation) (pod.Sandbox, error) {
	resp, err := invoke(ctx, c, op, c.runtime.PodSandboxStatus, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: op.target})
	if err != nil {
		return pod.Sandbox{}, err
	}
	if resp.GetStatus() == nil {
		return pod.Sandbox{}, &CallError{Op: op.name, Target: op.target, Err: fault.New(fault.Internal, "the container runtime sent no status")}
	}
	return fromSandboxStatus(resp.GetStatus()), nil
}

// ListSandboxes implements [SandboxService].
func (c *Client) ListSandboxes(ctx context.Context, filter Filter) ([]pod.Sandbox, error) {
	op := c.runtimeOp(opListSandboxes, filter.PodUID)
	return c.listSandboxes(ctx, op, filter)
}

func (c *Client) listSandboxes(ctx context.Context, op operation, filter Filter) ([]pod.Sandbox, error) {
	req := &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: filter.ID, LabelSelector: c.selector(filter)}}
	if filter.Ready != nil {
		req.Filter.State = &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY}
		if *filter.Ready {
			req.Filter.State.State = runtimeapi.PodSandboxState_SANDBOX_READY
		}
	}
	resp, err := invoke(ctx, c, op, c.runtime.ListPodSandbox, req)
	if err != nil {
		return nil, err
	}
	sandboxes := make([]pod.Sandbox, 0, len(resp.GetItems()))
	for _, s := range resp.GetItems() {
		sandboxes = append(sandboxes, fromSandbox(s))
	}
	return sandboxes, nil
}

// UpdateSandboxResources implements [Resizer].
func (c *Client) UpdateSandboxResources(ctx context.Context, id string, overhead, resources *pod.LinuxResources) error {
	op := c.sandboxOp(opUpdateSandboxResources, id)
	_, err := invoke(ctx, c, op, c.runtime.UpdatePodSandboxResources, &runtimeapi.UpdatePodSandboxResourcesRequest{
		PodSandboxId: id, Overhead: toResources(overhead), Resources: toResources(resources),
	})
	return err
}

// PortForwardURL implements [Streamer].
func (c *Client) PortForwardURL(ctx context.Context, sandboxID string, ports []int32) (string, error) {
	op := c.sandboxOp(opPortForward, sandboxID)
	resp, err := invoke(ctx, c, op, c.runtime.PortForward, &runtimeapi.PortForwardRequest{PodSandboxId: sandboxID, Port: ports})
	return resp.GetUrl(), err
}

// selector returns the labels that a list asks for; the runtime filters.
func (c *Client) selector(filter Filter) map[string]string {
	labels := make(map[string]string, len(filter.Labels)+2)
	for k, v := range filter.Labels {
		labels[k] = v
	}
	if c.node != "" {
		labels[pod.LabelNode] = c.node
	}
	if filter.PodUID != "" {
		labels[pod.LabelPodUID] = filter.PodUID
	}
	return labels
}
