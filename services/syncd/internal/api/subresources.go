package api

import (
	"context"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/decode"
)

func (p *pods) GetPodEphemeralContainers(ctx context.Context, req *podplanev1.GetRequest) (*httpbody.HttpBody, error) {
	return p.get(ctx, req.GetNamespace(), req.GetName())
}

func (p *pods) GetPodResize(ctx context.Context, req *podplanev1.GetRequest) (*httpbody.HttpBody, error) {
	return p.get(ctx, req.GetNamespace(), req.GetName())
}

func (p *pods) ReplacePodEphemeralContainers(ctx context.Context, req *podplanev1.ReplaceRequest) (*httpbody.HttpBody, error) {
	return p.replacePart(ctx, req, p.node.EphemeralContainers)
}

func (p *pods) ReplacePodResize(ctx context.Context, req *podplanev1.ReplaceRequest) (*httpbody.HttpBody, error) {
	if err := p.fromAPI(req.GetNamespace(), req.GetName()); err != nil {
		return nil, err
	}
	return p.replacePart(ctx, req, p.node.Resize)
}

func (p *pods) ReplacePodStatus(ctx context.Context, req *podplanev1.ReplaceRequest) (*httpbody.HttpBody, error) {
	now := metav1.NewTime(time.Now()).Rfc3339Copy()
	return p.replacePart(ctx, req, func(sent, old *v1.Pod) (*v1.Pod, error) { return p.node.Conditions(sent, old, now) })
}

// replacePart stores what change makes of the pod that was sent and the one that is stored. Pods of manifests may be changed so too, as nothing of
// what the manifest says is touched.
func (p *pods) replacePart(ctx context.Context, req *podplanev1.ReplaceRequest, change func(sent, old *v1.Pod) (*v1.Pod, error)) (*httpbody.HttpBody, error) {
	dryRun, err := dry(req.GetDryRun())
	if err != nil {
		return nil, err
	}
	sent, err := decode.Pod(input(req.GetBody()))
	if err != nil {
		return nil, err
	}
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	if sent.Name != req.GetName() {
		return nil, fault.New(fault.BadRequest, "metadata.name must be the name of the request, %q", req.GetName())
	}
	return p.update(ctx, req.GetNamespace(), sent, dryRun, func(old *v1.Pod) (*v1.Pod, error) { return change(sent, old) })
}
