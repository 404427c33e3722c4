// Package route carries requests to the node that they are for.
//
// A service is asked on this node, or on any other where this one has none. One that can't do what it is asked, because a pod is on another
// node, names that node in the trailer of its answer (package rpc); the request is then made once more there. So nothing has to be known
// beforehand, what is for this node costs nothing more, and who decides is always the service.
//
// What was changed on another node is read once more from the first service before it is answered: so the caller gets a resourceVersion
// that this gateway's later answers can be compared with, and finds the change in every later answer of this gateway.
//
// It keeps nothing. A carried call has a bound of its own, and is made at most once on each node.
package route

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/rpc"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// carryTimeout bounds a call on another node: longer than the patience of a service with its bus.
const carryTimeout = 10 * time.Second

// Nodes finds the services of a node.
type Nodes interface {
	// Node gives the connection to a service on a node, false when none is registered there.
	Node(service, node string) (grpc.ClientConnInterface, bool)
}

// Conn is a connection to a service, on whichever node it has to be.
type Conn struct {
	service string
	near    grpc.ClientConnInterface
	nodes   Nodes
}

// New makes a connection that asks near first.
func New(service string, near grpc.ClientConnInterface, nodes Nodes) *Conn {
	return &Conn{service: service, near: near, nodes: nodes}
}

// Invoke makes a call with one answer.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	var trailer metadata.MD
	err := c.near.Invoke(ctx, method, args, reply, append(opts, grpc.Trailer(&trailer))...)
	nodes, seen := rpc.ReadElsewhere(trailer)
	switch {
	case len(nodes) == 0:
		return err
	case err == nil && method == podplanev1.PodService_DeletePods_FullMethodName:
		return c.rest(ctx, method, args, reply, nodes)
	}
	conn, there := c.nodes.Node(c.service, nodes[0])
	answer, isMessage := reply.(proto.Message)
	if !there || !isMessage {
		return err // which says what is missing, or is what is known without that node
	}
	known := proto.Clone(answer)
	proto.Reset(answer)
	carryErr := c.carry(ctx, conn, nodes[0], call{method, args, answer, seen, opts})
	if carryErr != nil && err == nil {
		proto.Reset(answer)
		proto.Merge(answer, known)
		return nil
	}
	return carryErr
}

// call is one that is carried on.
type call struct {
	method string
	args   any
	reply  proto.Message
	seen   string
	opts   []grpc.CallOption
}

// carry makes a call on the node that it is for.
func (c *Conn) carry(ctx context.Context, conn grpc.ClientConnInterface, node string, call call) error {
	bounded, cancel := context.WithTimeout(ctx, carryTimeout)
	defer cancel()
	var header metadata.MD
	err := conn.Invoke(rpc.Carry(bounded, call.seen), call.method, call.args, call.reply, append(call.opts, grpc.Header(&header))...)
	switch {
	case fault.Is(err, fault.DeadlineExceeded) && ctx.Err() == nil:
		return fault.WithRetryAfter(fault.New(fault.Unavailable, "%s on node %q did not answer in time: %w", c.service, node, err), time.Second)
	case err != nil:
		return err
	}
	if rev, body := rpc.ReadRevision(header), (*httpbody.HttpBody)(nil); rev > 0 {
		if body, _ = call.reply.(*httpbody.HttpBody); body != nil {
			c.reread(ctx, body, rev)
		}
	}
	return nil
}

type meta struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
}

// reread replaces a pod by what the near service shows of it once it has seen the revision. What can't be had so stays as it is: it is stored.
func (c *Conn) reread(ctx context.Context, body *httpbody.HttpBody, revision uint64) {
	var there, here meta
	if json.Unmarshal(body.GetData(), &there) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, carryTimeout)
	defer cancel()
	var answer httpbody.HttpBody
	get := &podplanev1.GetRequest{Namespace: there.Metadata.Namespace, Name: there.Metadata.Name}
	if c.near.Invoke(rpc.AskAfter(ctx, revision), podplanev1.PodService_GetPod_FullMethodName, get, &answer) != nil {
		return
	}
	if json.Unmarshal(answer.GetData(), &here) == nil && here.Metadata.UID == there.Metadata.UID {
		body.Data = answer.GetData()
	}
}

type list struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        json.RawMessage   `json:"metadata"`
	Items           []json.RawMessage `json:"items"`
}

// rest deletes on the other nodes too, and joins the answers. What can be deleted is deleted before a node that can't be reached is an error.
func (c *Conn) rest(ctx context.Context, method string, args, reply any, nodes []string) error {
	body, ok := reply.(*httpbody.HttpBody)
	if !ok {
		return fault.New(fault.Internal, "the answer to %s is a %T", method, reply)
	}
	var all list
	if err := json.Unmarshal(body.GetData(), &all); err != nil {
		return fault.New(fault.Internal, "the answer to %s can't be read: %w", method, err)
	}
	var errs []error
	for _, node := range nodes {
		conn, there := c.nodes.Node(c.service, node)
		if !there {
			errs = append(errs, fault.New(fault.Unavailable, "pods of node %q are not deleted: its %s can't be reached", node, c.service))
			continue
		}
		var more list
		answer := new(httpbody.HttpBody)
		err := c.carry(ctx, conn, node, call{method: method, args: args, reply: answer})
		if err == nil {
			err = json.Unmarshal(answer.GetData(), &more)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("delete pods of node %q: %w", node, err))
			continue
		}
		all.Items = append(all.Items, more.Items...)
	}
	if len(errs) > 0 {
		return fault.WithRetryAfter(fault.New(fault.Unavailable, "%w", errors.Join(errs...)), time.Second)
	}
	data, err := json.Marshal(all)
	if err != nil {
		return fault.New(fault.Internal, "join the answers to %s: %w", method, err)
	}
	body.Data = append(data, '\n')
	return nil
}
