package api

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/genproto/googleapis/api/httpbody"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/rpc"
	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/admission"
	"github.com/podplane/podplane/services/syncd/internal/decode"
	"github.com/podplane/podplane/services/syncd/internal/store"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

var tracer = telemetry.Tracer("syncd/api")

type pods struct {
	podplanev1.UnimplementedPodServiceServer
	resource
	store *store.Store
	node  admission.Node
	logs  Logs
	// conditions may be nil.
	conditions func() []v1.NodeCondition
	rejected   func(error) // may be nil
	nodeNames  func(context.Context) ([]string, error)
}

func (p *pods) ListPods(req *podplanev1.ListRequest, stream bodyStream) error {
	return p.serve(req, stream)
}

func (p *pods) GetPod(ctx context.Context, req *podplanev1.GetRequest) (*httpbody.HttpBody, error) {
	if after := rpc.After(ctx); after > 0 {
		if err := p.store.WaitRevision(ctx, after); err != nil {
			return nil, err
		}
	}
	return p.get(ctx, req.GetNamespace(), req.GetName())
}

func (p *pods) GetPodStatus(ctx context.Context, req *podplanev1.GetRequest) (*httpbody.HttpBody, error) {
	return p.get(ctx, req.GetNamespace(), req.GetName())
}

func input(b *httpbody.HttpBody) decode.Input {
	return decode.Input{Data: b.GetData(), ContentType: b.GetContentType()}
}

// dry reads dryRun as Kubernetes does.
func dry(values []string) (bool, error) {
	for _, v := range values {
		if v != metav1.DryRunAll {
			return false, fault.New(fault.BadRequest, "dryRun: must be %q", metav1.DryRunAll)
		}
	}
	return len(values) > 0, nil
}

func (p *pods) CreatePod(ctx context.Context, req *podplanev1.CreateRequest) (_ *httpbody.HttpBody, err error) {
	ctx, span := telemetry.Start(ctx, tracer, "pod.create", telemetry.NamespaceName.String(req.GetNamespace()))
	defer func() { telemetry.End(span, err) }()
	dryRun, err := dry(req.GetDryRun())
	if err != nil {
		return nil, err
	}
	pod, err := decode.Pod(input(req.GetBody()))
	if err != nil {
		return nil, err
	}
	if pod.ResourceVersion != "" {
		return nil, fault.New(fault.BadRequest, "metadata.resourceVersion must not be set on objects to be created")
	}
	if err := p.place(ctx, pod, req.GetNamespace(), req.GetNode()); err != nil {
		return nil, err
	}
	name := pod.Name
	if name == "" && pod.GenerateName != "" {
		pod.Name = generate(pod.GenerateName)
	}
	if err := p.node.Pod(pod, req.GetNamespace()); err != nil {
		return nil, err
	}
	if p.conditions != nil {
		if err := admission.FitPressure(pod, p.conditions()); err != nil {
			if p.rejected != nil {
				p.rejected(err)
			}
			return nil, err
		}
	}
	n := store.NewPod{Pod: pod, Source: podplanev1.Source_SOURCE_API, Traceparent: telemetry.Traceparent(ctx), DryRun: dryRun}
	for try := 0; ; try++ {
		o, err := p.store.CreatePod(ctx, n)
		if fault.Is(err, fault.AlreadyExists) && name == "" && try < 8 {
			pod.Name, pod.UID = generate(pod.GenerateName), ""
			continue
		}
		if err != nil {
			return nil, err
		}
		p.stored(ctx, o.UID)
		tell(ctx, o)
		return body(o)
	}
}

// tell says which pod a call is about.
func tell(ctx context.Context, o *watchcache.Object) {
	rpc.Tell(ctx, telemetry.About{PodUID: o.UID, Namespace: o.Namespace, PodName: o.Name})
}

// generate appends five random characters, as Kubernetes does.
func generate(base string) string {
	const most = 58
	if len(base) > most {
		base = base[:most]
	}
	return base + rand.String(5)
}

func (p *pods) ReplacePod(ctx context.Context, req *podplanev1.ReplaceRequest) (*httpbody.HttpBody, error) {
	dryRun, err := dry(req.GetDryRun())
	if err != nil {
		return nil, err
	}
	pod, err := decode.Pod(input(req.GetBody()))
	if err != nil {
		return nil, err
	}
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	if err := p.fromAPI(req.GetNamespace(), req.GetName()); err != nil {
		return nil, err
	}
	if pod.Name != req.GetName() {
		return nil, fault.New(fault.BadRequest, "metadata.name must be the name of the request, %q", req.GetName())
	}
	return p.update(ctx, req.GetNamespace(), pod, dryRun, func(old *v1.Pod) (*v1.Pod, error) {
		pod.Status = old.Status
		return pod, p.node.Update(pod, old)
	})
}

// update stores what change makes of the pod that is stored; sent is what the client sent, of which the preconditions count here.
func (p *pods) update(ctx context.Context, namespace string, sent *v1.Pod, dryRun bool, change func(old *v1.Pod) (*v1.Pod, error)) (*httpbody.HttpBody, error) {
	pre, err := carried(ctx, preconditionsOf(sent))
	if err != nil {
		return nil, err
	}
	o, err := p.store.UpdatePod(ctx, namespace, sent.Name, pre, dryRun, change)
	if err != nil {
		return nil, point(ctx, err)
	}
	if !dryRun {
		p.stored(ctx, o.UID)
	}
	tell(ctx, o)
	return body(o)
}

// preconditionsOf reads from an object's metadata what it was made from.
func preconditionsOf(o metav1.Object) store.Preconditions {
	var pre store.Preconditions
	if uid := string(o.GetUID()); uid != "" {
		pre.UID = &uid
	}
	if v := o.GetResourceVersion(); v != "" {
		pre.ResourceVersion = &v
	}
	return pre
}

// fromAPI refuses to change what a manifest file owns: the next scan would not agree.
func (p *pods) fromAPI(namespace, name string) error {
	c, ok := p.store.PodByName(namespace, name)
	if !ok || c.Record.GetSource() == podplanev1.Source_SOURCE_API {
		return nil
	}
	return fault.For(fault.PermissionDenied, fault.Object{Resource: "pods", Name: name},
		"pods %q is forbidden: it comes from %s; change or remove that instead", name, c.Record.GetOrigin())
}

func (p *pods) DeletePod(ctx context.Context, req *podplanev1.DeleteRequest) (*httpbody.HttpBody, error) {
	opts, err := deleteOptions(req.GetBody(), req.GracePeriodSeconds, req.GetDryRun())
	if err != nil {
		return nil, err
	}
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	if err := p.fromAPI(req.GetNamespace(), req.GetName()); err != nil {
		return nil, err
	}
	if opts.Preconditions, err = carried(ctx, opts.Preconditions); err != nil {
		return nil, err
	}
	o, err := p.store.DeletePod(ctx, req.GetNamespace(), req.GetName(), opts)
	if err != nil {
		return nil, point(ctx, err)
	}
	if !opts.DryRun {
		p.stored(ctx, o.UID)
	}
	tell(ctx, o)
	return body(o)
}

// deleteOptions joins what the body and the query say; the query counts.
func deleteOptions(b *httpbody.HttpBody, grace *int64, dryRun []string) (store.DeleteOptions, error) {
	var opts store.DeleteOptions
	o, err := decode.DeleteOptions(input(b))
	if err != nil {
		return opts, err
	}
	opts.GracePeriod = o.GracePeriodSeconds
	if grace != nil {
		opts.GracePeriod = grace
	}
	if opts.GracePeriod != nil && *opts.GracePeriod < 0 {
		return opts, fault.New(fault.BadRequest, "gracePeriodSeconds must be greater than or equal to 0")
	}
	if pre := o.Preconditions; pre != nil {
		opts.ResourceVersion = pre.ResourceVersion
		if pre.UID != nil {
			uid := string(*pre.UID)
			opts.UID = &uid
		}
	}
	opts.DryRun, err = dry(append(slices.Clone(o.DryRun), dryRun...))
	return opts, err
}

func (p *pods) DeletePods(ctx context.Context, req *podplanev1.DeleteCollectionRequest) (*httpbody.HttpBody, error) {
	opts, err := deleteOptions(req.GetBody(), req.GracePeriodSeconds, req.GetDryRun())
	if err != nil {
		return nil, err
	}
	_, carried := rpc.Carried(ctx)
	others := map[string]bool{}
	list, err := p.deleteAll(ctx, req, func(o *watchcache.Object) (*watchcache.Object, error) {
		if node := o.Fields[p.nodeField]; node != p.node.Name {
			others[node] = true
			return nil, nil
		}
		if p.fromAPI(o.Namespace, o.Name) != nil {
			return nil, nil
		}
		opts := opts
		opts.UID = &o.UID
		return p.store.DeletePod(ctx, o.Namespace, o.Name, opts)
	})
	if err == nil && !carried && len(others) > 0 {
		rpc.SayElsewhere(ctx, "", slices.Sorted(maps.Keys(others))...)
	}
	return list, err
}

// deleteAll deletes what the selectors find; del gives nil for what is to be left.
func (r *resource) deleteAll(ctx context.Context, req *podplanev1.DeleteCollectionRequest, del func(*watchcache.Object) (*watchcache.Object, error)) (*httpbody.HttpBody, error) {
	if err := r.ready(ctx); err != nil {
		return nil, err
	}
	match, err := selector(req.GetLabelSelector(), req.GetFieldSelector(), r.fields)
	if err != nil {
		return nil, err
	}
	match = r.onNode(req.GetNode(), match)
	found, _ := r.table.List(req.GetNamespace(), match)
	deleted := make([]*watchcache.Object, 0, len(found))
	for _, o := range found {
		d, err := del(o)
		switch {
		case fault.Is(err, fault.NotFound), fault.Is(err, fault.Conflict):
			continue // somebody else was quicker
		case err != nil:
			return nil, err
		case d != nil:
			deleted = append(deleted, d)
		}
	}
	return r.whole(deleted)
}

func (p *pods) GetPodLog(req *podplanev1.PodLogRequest, stream bodyStream) error {
	if err := p.ready(stream.Context()); err != nil {
		return err
	}
	c, ok := p.store.PodByName(req.GetNamespace(), req.GetName())
	if !ok {
		return fault.For(fault.NotFound, fault.Object{Resource: "pods", Name: req.GetName()}, "")
	}
	if err := p.store.Elsewhere(req.GetNamespace(), req.GetName()); err != nil {
		return point(stream.Context(), err)
	}
	rpc.Tell(stream.Context(), telemetry.About{PodUID: string(c.Pod.UID), Namespace: c.Pod.Namespace, PodName: c.Pod.Name})
	return p.logs.Stream(stream.Context(), c.Pod, req, func(data []byte) error {
		if data == nil {
			return stream.SendHeader(nil)
		}
		return stream.Send(&httpbody.HttpBody{ContentType: "text/plain", Data: data})
	})
}
