package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/rpc"
	"github.com/podplane/podplane/services/syncd/internal/admission"
	"github.com/podplane/podplane/services/syncd/internal/store"
)

// Every replica of every node shows all pods; changes are made by those of the pod's own node. What is asked of another one is refused with
// the name of the node in the trailer, by which the gateway finds its way.

// place finds the node of a new pod and sees to it that it is this one.
func (p *pods) place(ctx context.Context, pod *v1.Pod, namespace, asked string) error {
	nodes := []string{p.node.Name}
	if p.nodeNames != nil && pod.Spec.NodeName != p.node.Name {
		var err error
		if nodes, err = p.nodeNames(ctx); err != nil {
			return err
		}
	}
	node, err := admission.Place(pod, asked, nodes)
	if err != nil {
		if _, taken := p.store.PodByName(cmp.Or(pod.Namespace, namespace), pod.Name); taken && pod.Spec.NodeName == "" && asked == "" {
			// So that whoever applies a manifest once more learns that the pod is there, and where.
			return fault.For(fault.AlreadyExists, fault.Object{Resource: "pods", Name: pod.Name}, "")
		}
		return err
	}
	pod.Spec.NodeName = node
	if node == p.node.Name {
		return nil
	}
	return point(ctx, store.NewElsewhere(node, "pods %q is for another node", pod.Name))
}

// point says in the trailer where a request has to go that the error is of.
func point(ctx context.Context, err error) error {
	var e *store.Elsewhere
	if errors.As(err, &e) {
		rpc.SayElsewhere(ctx, formatSeen(e.Seen), e.Node)
	}
	return err
}

func formatSeen(s store.Seen) string {
	if s == (store.Seen{}) {
		return ""
	}
	return fmt.Sprintf("%s %d %d", s.Version, s.Pod, s.Status)
}

// carried completes preconditions with what the replica saw that carried the request here.
func carried(ctx context.Context, pre store.Preconditions) (store.Preconditions, error) {
	text, _ := rpc.Carried(ctx)
	if text == "" {
		return pre, nil
	}
	var s store.Seen
	if _, err := fmt.Sscanf(text, "%s %d %d", &s.Version, &s.Pod, &s.Status); err != nil {
		return pre, fault.New(fault.Internal, "what another replica saw of the pod, %q, can't be read: %w", text, err)
	}
	pre.Seen = &s
	return pre, nil
}

// stored says at which revision a changed pod is stored, so that who carried the request here can wait for it elsewhere.
func (p *pods) stored(ctx context.Context, uid string) {
	if rev := p.store.Revision(uid); rev > 0 {
		rpc.SayRevision(ctx, rev)
	}
}
