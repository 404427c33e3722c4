package evictd

import (
	"context"
	"sync/atomic"

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/evictd/internal/api"
)

// whenLeading answers once this replica leads. Clients prefer the replica that does (package rpc).
type whenLeading struct {
	podplanev1.UnimplementedEvictionServiceServer
	leads atomic.Pointer[api.Evictions]
}

func (w *whenLeading) leader() (*api.Evictions, error) {
	if e := w.leads.Load(); e != nil {
		return e, nil
	}
	return nil, fault.New(fault.Unavailable, "this replica of evictd is a spare and does not lead yet")
}

// ListEvictions is described at the service.
func (w *whenLeading) ListEvictions(ctx context.Context, r *podplanev1.ListEvictionsRequest) (*podplanev1.ListEvictionsResponse, error) {
	e, err := w.leader()
	if err != nil {
		return nil, err
	}
	return e.ListEvictions(ctx, r)
}

// ListConditions is described at the service.
func (w *whenLeading) ListConditions(ctx context.Context, r *podplanev1.ListConditionsRequest) (*podplanev1.ListConditionsResponse, error) {
	e, err := w.leader()
	if err != nil {
		return nil, err
	}
	return e.ListConditions(ctx, r)
}

// RankPods is described at the service.
func (w *whenLeading) RankPods(ctx context.Context, r *podplanev1.RankPodsRequest) (*podplanev1.RankPodsResponse, error) {
	e, err := w.leader()
	if err != nil {
		return nil, err
	}
	return e.RankPods(ctx, r)
}
