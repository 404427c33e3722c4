package cri

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podplane/podplane/internal/pod"
)

// Events implements [EventSource]. The runtime begins to send a moment after Events has returned and does not say when,
// so a list right after it may miss what the stream misses too: list again.
func (c *Client) Events(ctx context.Context) (EventStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := c.runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		defer cancel()
		return nil, &CallError{Op: opGetContainerEvents, Err: streamFault(ctx, err)}
	}
	return &eventStream{ctx: ctx, cancel: cancel, stream: stream, node: c.node}, nil
}

type eventStream struct {
	ctx    context.Context
	cancel context.CancelFunc
	stream grpc.ServerStreamingClient[runtimeapi.ContainerEventResponse]
	node   string
}

// Recv implements [EventStream].
func (s *eventStream) Recv() (Event, error) {
	for {
		resp, err := s.stream.Recv()
		if errors.Is(err, io.EOF) {
			return Event{}, io.EOF
		}
		if err != nil {
			return Event{}, &CallError{Op: opGetContainerEvents, Err: streamFault(s.ctx, err)}
		}
		sandbox := resp.GetPodSandboxStatus()
		if sandbox != nil && s.node != "" && sandbox.GetLabels()[pod.LabelNode] != s.node {
			continue // somebody else's
		}
		return fromEvent(resp), nil
	}
}

// Close implements [EventStream].
func (s *eventStream) Close() { s.cancel() }

func streamFault(ctx context.Context, err error) error {
	if ctxErr := ctx.Err(); ctxErr != nil {
		return ctxErr
	}
	return statusFault(status.Convert(err))
}
