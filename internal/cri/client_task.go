package cri

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// containerdNamespace is where containerd's CRI keeps what it makes.
	containerdNamespace       = "k8s.io"
	containerdNamespaceHeader = "containerd-namespace"

	// These take a message of one field, 1, the container's ID, as a StringValue has it; nothing of the answer is needed.
	// The module that declares them brings a second RPC system and a logger along, which each service would carry for two calls.
	containerdDeleteTask      = "/containerd.services.tasks.v1.Tasks/Delete"
	containerdDeleteContainer = "/containerd.services.containers.v1.Containers/Delete"

	opDeleteTask   = "delete_task"
	opDeleteRecord = "delete_container_record"
)

// DeleteTask makes containerd forget the ended process of a container that its CRI has lost track of, because the caller that had the
// container started went away meanwhile: until then the container is refused to be removed ("cannot delete running task"). CRI has no
// call for that, so containerd's own is used, which it serves on the same socket. A process that runs is an error of kind
// FailedPrecondition; none is not an error; kind Unimplemented means that the runtime is another one.
func (c *Client) DeleteTask(ctx context.Context, containerID string) error {
	return c.forget(ctx, opDeleteTask, containerdDeleteTask, containerID)
}

// DeleteRecord makes containerd forget a container, of CRI's containers or sandboxes, that its CRI does not know any more: it has no process, and
// would come back when containerd starts again. None is not an error; kind Unimplemented means that the runtime is another one.
func (c *Client) DeleteRecord(ctx context.Context, containerID string) error {
	return c.forget(ctx, opDeleteRecord, containerdDeleteContainer, containerID)
}

func (c *Client) forget(ctx context.Context, operation, method, containerID string) error {
	op := c.containerOp(operation, containerID)
	ctx = metadata.AppendToOutgoingContext(ctx, containerdNamespaceHeader, containerdNamespace)
	call := func(ctx context.Context, id *wrapperspb.StringValue, options ...grpc.CallOption) (*emptypb.Empty, error) {
		answer := new(emptypb.Empty)
		return answer, c.conn.Invoke(ctx, method, id, answer, options...)
	}
	_, err := invoke(ctx, c, op, call, wrapperspb.String(containerID))
	return gone(err)
}
