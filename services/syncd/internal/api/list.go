package api

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

const (
	jsonType = "application/json"
	// pieceBytes is how much of a list one message holds.
	pieceBytes = 512 << 10
)

// resource is one kind of object to list and watch.
type resource struct {
	kind   string // Pod
	plural string // pods
	table  *watchcache.Table
	fields []string
	// nodeField is the field that says on which node an object is; empty where objects are on none.
	nodeField string
	// ready says whether the table has the whole present state.
	ready func(context.Context) error
}

type bodyStream = grpc.ServerStreamingServer[httpbody.HttpBody]

// serve answers a list or a watch.
func (r *resource) serve(req *podplanev1.ListRequest, stream bodyStream) error {
	if err := r.ready(stream.Context()); err != nil {
		return err
	}
	match, err := selector(req.GetLabelSelector(), req.GetFieldSelector(), r.fields)
	if err != nil {
		return err
	}
	match = r.onNode(req.GetNode(), match)
	if req.GetWatch() {
		return r.watch(req, match, stream)
	}
	return r.list(req, match, stream)
}

// onNode narrows a filter to what is on a node; "" is every node.
func (r *resource) onNode(node string, match func(*watchcache.Object) bool) func(*watchcache.Object) bool {
	if node == "" || r.nodeField == "" {
		return match
	}
	return func(o *watchcache.Object) bool {
		return o.Fields[r.nodeField] == node && (match == nil || match(o))
	}
}

func (r *resource) get(ctx context.Context, namespace, name string) (*httpbody.HttpBody, error) {
	if err := r.ready(ctx); err != nil {
		return nil, err
	}
	o, ok := r.table.Get(namespace, name)
	if !ok {
		return nil, fault.For(fault.NotFound, fault.Object{Resource: r.plural, Name: name}, "")
	}
	return body(o)
}

func body(o *watchcache.Object) (*httpbody.HttpBody, error) {
	data, err := o.JSON()
	if err != nil {
		return nil, err
	}
	return &httpbody.HttpBody{ContentType: jsonType, Data: data}, nil
}

// position is what a continue token holds: the last object that was answered.
type position struct {
	Namespace string `json:"ns"`
	Name      string `json:"n"`
}

func (p position) token() (string, error) {
	raw, err := json.Marshal(p)
	if err != nil {
		return "", fmt.Errorf("encode continue token: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(raw), nil
}

func parseToken(token string) (position, error) {
	var p position
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(raw, &p)
	}
	if err != nil {
		return p, fault.New(fault.BadRequest, "continue: must be the token of the answer before")
	}
	return p, nil
}

func (p position) before(o *watchcache.Object) bool {
	if p.Namespace != o.Namespace {
		return p.Namespace < o.Namespace
	}
	return p.Name < o.Name
}

func (r *resource) list(req *podplanev1.ListRequest, match func(*watchcache.Object) bool, stream bodyStream) error {
	asked, err := watchcache.ParseVersion(req.GetResourceVersion())
	if err != nil {
		return err
	}
	objects, version := r.table.List(req.GetNamespace(), match)
	if asked > version {
		return fault.New(fault.Expired, "too large resource version: %d, current: %d", asked, version)
	}
	if req.GetContinue() != "" {
		from, err := parseToken(req.GetContinue())
		if err != nil {
			return err
		}
		for len(objects) > 0 && !from.before(objects[0]) {
			objects = objects[1:]
		}
	}
	meta := metav1.ListMeta{ResourceVersion: watchcache.FormatVersion(version)}
	if n := req.GetLimit(); n > 0 && int64(len(objects)) > n {
		left := int64(len(objects)) - n
		objects = objects[:n]
		last := objects[n-1]
		if meta.Continue, err = (position{last.Namespace, last.Name}).token(); err != nil {
			return err
		}
		meta.RemainingItemCount = &left
	}
	return r.sendList(meta, objects, stream)
}

func (r *resource) sendList(meta metav1.ListMeta, objects []*watchcache.Object, stream bodyStream) error {
	p := pieces{send: func(data []byte) error {
		return stream.Send(&httpbody.HttpBody{ContentType: jsonType, Data: data})
	}}
	return r.writeList(meta, objects, &p)
}

func (r *resource) writeList(meta metav1.ListMeta, objects []*watchcache.Object, p *pieces) error {
	head, err := json.Marshal(meta)
	if err != nil {
		return fmt.Errorf("encode list: %w", err)
	}
	if err := p.write([]byte(`{"kind":"` + r.kind + `List","apiVersion":"v1","metadata":` + string(head) + `,"items":[`)); err != nil {
		return err
	}
	for i, o := range objects {
		data, err := o.JSON()
		if err != nil {
			return err
		}
		if i > 0 {
			data = append([]byte(","), data...)
		}
		if err := p.write(data); err != nil {
			return err
		}
	}
	if err := p.write([]byte("]}\n")); err != nil {
		return err
	}
	return p.flush()
}

// whole gives a list as one message.
func (r *resource) whole(objects []*watchcache.Object) (*httpbody.HttpBody, error) {
	var all bytes.Buffer
	p := pieces{send: func(data []byte) error { all.Write(data); return nil }}
	err := r.writeList(metav1.ListMeta{ResourceVersion: watchcache.FormatVersion(r.table.Version())}, objects, &p)
	return &httpbody.HttpBody{ContentType: jsonType, Data: all.Bytes()}, err
}

// pieces cuts what is written into messages of bounded size.
type pieces struct {
	send func([]byte) error
	data []byte
}

func (p *pieces) write(data []byte) error {
	for len(data) > 0 {
		n := min(pieceBytes-len(p.data), len(data))
		p.data = append(p.data, data[:n]...)
		data = data[n:]
		if len(p.data) == pieceBytes {
			if err := p.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// flush sends what is there. The message takes the buffer over.
func (p *pieces) flush() error {
	if len(p.data) == 0 {
		return nil
	}
	data := p.data
	p.data = nil
	return p.send(data)
}
