package api

import (
	"context"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/admission"
	"github.com/podplane/podplane/services/syncd/internal/eventlog"
	"github.com/podplane/podplane/services/syncd/internal/store"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

// Logs reads the logs of containers.
type Logs interface {
	// Stream sends what the request asks for, in pieces that belong to the receiver, until the end or, when following, until ctx ends. A
	// nil piece comes first, when the request is accepted and before there may be anything to send.
	Stream(ctx context.Context, pod *v1.Pod, req *podplanev1.PodLogRequest, send func([]byte) error) error
}

// View is a table of objects that somebody else feeds.
type View interface {
	Table() *watchcache.Table
	// Ready says why the table can't be read yet.
	Ready(ctx context.Context) error
	// Fields are what its objects can be selected by.
	Fields() []string
}

// Backends are what the services are made of.
type Backends struct {
	Store  *store.Store
	Node   admission.Node
	Logs   Logs
	Events View
	Nodes  View
	// Conditions are the node's present ones, which may keep pods out; nil for none.
	Conditions func() []v1.NodeCondition
	// Rejected is told of pods that the conditions kept out; nil: nobody is.
	Rejected func(err error)
	// NodeNames gives the names of all nodes; nil: there is this one only.
	NodeNames func(context.Context) ([]string, error)
}

// Register serves syncd's services on s.
func Register(s grpc.ServiceRegistrar, b Backends) {
	podplanev1.RegisterPodServiceServer(s, &pods{
		resource: resource{
			kind: "Pod", plural: "pods", table: b.Store.Pods(), fields: store.PodFields(), nodeField: store.FieldNodeName, ready: b.Store.WaitSynced,
		},
		store: b.Store, node: b.Node, logs: b.Logs, conditions: b.Conditions, rejected: b.Rejected, nodeNames: b.NodeNames,
	})
	podplanev1.RegisterConfigMapServiceServer(s, newConfigMaps(b.Store))
	podplanev1.RegisterSecretServiceServer(s, newSecrets(b.Store))
	podplanev1.RegisterEventServiceServer(s, &eventService{resource: viewed("Event", "events", eventlog.NodeField, b.Events)})
	podplanev1.RegisterNodeServiceServer(s, &nodeService{resource: viewed("Node", "nodes", store.FieldName, b.Nodes)})
}

func viewed(kind, plural, nodeField string, v View) resource {
	return resource{kind: kind, plural: plural, nodeField: nodeField, table: v.Table(), fields: v.Fields(), ready: v.Ready}
}

type eventService struct {
	podplanev1.UnimplementedEventServiceServer
	resource
}

func (e *eventService) ListEvents(req *podplanev1.ListRequest, stream bodyStream) error {
	return e.serve(req, stream)
}

func (e *eventService) GetEvent(ctx context.Context, req *podplanev1.GetRequest) (*httpbody.HttpBody, error) {
	return e.get(ctx, req.GetNamespace(), req.GetName())
}

type nodeService struct {
	podplanev1.UnimplementedNodeServiceServer
	resource
}

func (n *nodeService) ListNodes(req *podplanev1.ListRequest, stream bodyStream) error {
	return n.serve(req, stream)
}

func (n *nodeService) GetNode(ctx context.Context, req *podplanev1.GetRequest) (*httpbody.HttpBody, error) {
	return n.get(ctx, "", req.GetName())
}
