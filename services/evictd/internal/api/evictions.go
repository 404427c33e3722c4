// Package api serves evictd's gRPC: what is ordered, how the node is, and who would go next. It decides nothing and
// changes nothing.
package api

import (
	"context"
	"log/slog"
	"slices"

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/evictd/internal/policy"
)

// Source is what is asked; the manager.
type Source interface {
	Orders() []*podplanev1.EvictionRecord
	Conditions() ([]*podplanev1.ConditionRecord, []*podplanev1.Signal)
	Rank(ctx context.Context, s policy.Signal) ([]policy.Ranked, error)
}

// Stored reads the conditions of all writers from the bus.
type Stored func(ctx context.Context, node string) ([]*podplanev1.ConditionRecord, error)

// Evictions implements podplanev1.EvictionServiceServer.
type Evictions struct {
	podplanev1.UnimplementedEvictionServiceServer
	node   string
	source Source
	stored Stored
	log    *slog.Logger
}

// NewEvictions makes the server of a node.
func NewEvictions(node string, source Source, stored Stored, log *slog.Logger) *Evictions {
	return &Evictions{node: node, source: source, stored: stored, log: log}
}

// ListEvictions answers the orders that are not obeyed yet, the oldest first.
func (e *Evictions) ListEvictions(_ context.Context, req *podplanev1.ListEvictionsRequest) (*podplanev1.ListEvictionsResponse, error) {
	other := func(want, have string) bool { return want != "" && want != have }
	return &podplanev1.ListEvictionsResponse{Evictions: slices.DeleteFunc(e.source.Orders(), func(o *podplanev1.EvictionRecord) bool {
		return other(req.GetNamespace(), o.GetNamespace()) || other(req.GetName(), o.GetName()) || other(req.GetUid(), o.GetUid())
	})}, nil
}

// ListConditions answers the conditions of one node or all, whoever wrote them, and this node's signals. While the bus is
// away it answers its own.
func (e *Evictions) ListConditions(ctx context.Context, req *podplanev1.ListConditionsRequest) (*podplanev1.ListConditionsResponse, error) {
	here := req.GetNode() == "" || req.GetNode() == e.node
	own, signals := e.source.Conditions()
	if !here {
		signals = nil
	}
	conditions, err := e.stored(ctx, req.GetNode())
	if err != nil {
		if !here {
			return nil, err
		}
		e.log.DebugContext(ctx, "conditions are not read from the bus", "error", err)
		conditions = own
	}
	return &podplanev1.ListConditionsResponse{Conditions: conditions, Signals: signals}, nil
}

// RankPods answers in which order pods would be evicted now for a signal. It measures them, and evicts none.
func (e *Evictions) RankPods(ctx context.Context, req *podplanev1.RankPodsRequest) (*podplanev1.RankPodsResponse, error) {
	signal := policy.Signal(req.GetSignal())
	if signal == "" {
		signal = policy.MemoryAvailable
	}
	if !slices.Contains(policy.Signals, signal) {
		return nil, fault.New(fault.BadRequest, "signal: no signal %q; there are %v", signal, policy.Signals)
	}
	ranked, err := e.source.Rank(ctx, signal)
	if err != nil {
		e.log.WarnContext(ctx, "statistics of pods are incomplete", "error", err)
	}
	out := &podplanev1.RankPodsResponse{}
	for _, r := range ranked {
		out.Pods = append(out.Pods, &podplanev1.RankedPod{
			Uid: r.Pod.UID, Namespace: r.Pod.Namespace, Name: r.Pod.Name, Priority: r.Pod.Priority, Usage: r.Usage, Request: r.Request,
			Reason: r.Reason, Critical: r.Pod.Critical(),
		})
	}
	return out, nil
}
