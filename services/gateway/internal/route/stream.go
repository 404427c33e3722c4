package route

import (
	"context"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/podplane/podplane/internal/rpc"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// NewStream makes a call with many answers. Lists and watches are the near service's, which knows all nodes; logs are on the pod's node.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := c.near.NewStream(ctx, desc, method, opts...)
	if err != nil || method != podplanev1.PodService_GetPodLog_FullMethodName {
		return s, err
	}
	return &logStream{ClientStream: s, again: func(node, seen string) (grpc.ClientStream, bool, error) {
		conn, there := c.nodes.Node(c.service, node)
		if !there {
			return nil, false, nil
		}
		s, err := conn.NewStream(rpc.Carry(ctx, seen), desc, method, opts...)
		return s, true, err
	}}, nil
}

// logStream is the stream of a pod's log, which goes over to the pod's node before its first message. It is used by one goroutine.
type logStream struct {
	grpc.ClientStream
	again   func(node, seen string) (s grpc.ClientStream, there bool, err error)
	request any
	settled bool
	err     error // of the near service, which stands
}

// SendMsg sends the request.
func (s *logStream) SendMsg(m any) error {
	s.request = m
	return s.ClientStream.SendMsg(m)
}

// Header waits for the headers of the service that has the log; one that refuses sends none.
func (s *logStream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	if s.settled || err != nil || md != nil {
		s.settled = true
		return md, err
	}
	s.settled = true
	if err := s.ClientStream.RecvMsg(new(httpbody.HttpBody)); err != nil {
		s.err = err
	}
	nodes, seen := rpc.ReadElsewhere(s.Trailer())
	if len(nodes) == 0 {
		return nil, nil
	}
	other, there, err := s.again(nodes[0], seen)
	if !there {
		return nil, nil
	}
	if err == nil {
		err = other.SendMsg(s.request)
	}
	if err == nil {
		err = other.CloseSend()
	}
	if err != nil {
		return nil, err
	}
	s.ClientStream, s.err = other, nil
	return other.Header()
}

// RecvMsg receives one piece.
func (s *logStream) RecvMsg(m any) error {
	if !s.settled {
		if _, err := s.Header(); err != nil {
			return err
		}
	}
	if s.err != nil {
		return s.err
	}
	return s.ClientStream.RecvMsg(m)
}
