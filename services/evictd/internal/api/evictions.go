// Package api serves evictd's gRPC: what is ordered, how the node is, and who would go next. It decides nothing and
// changes nothing.
package api

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/rpc"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/evictd/internal/policy"
)

// Source is what is asked; the manager.
type Source interface {
	Orders() []*podplanev1.EvictionRecord
	Conditions() ([]*podplanev1.ConditionRecord, []*podplanev1.Signal)
	Rank(ctx context.Context, s policy.Signal) ([]policy.Ranked, error)
}

// Stored reads from the bus what all writers have stored about a node, or every node ("").
type Stored struct {
	Conditions func(ctx context.Context, node string) ([]*podplanev1.ConditionRecord, error)
	Orders     func(ctx context.Context, node string) ([]*podplanev1.EvictionRecord, error)
}

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

// ListEvictions answers the orders that are not obeyed yet, this node's first, the oldest first. While the bus is away it answers its own.
func (e *Evictions) ListEvictions(ctx context.Context, req *podplanev1.ListEvictionsRequest) (*podplanev1.ListEvictionsResponse, error) {
	var orders []*podplanev1.EvictionRecord
	here := req.GetNode() == "" || req.GetNode() == e.node
	if here {
		orders = e.source.Orders()
	}
	if req.GetNode() != e.node {
		stored, err := e.stored.Orders(ctx, req.GetNode())
		if err != nil && !here {
			return nil, err
		} else if err != nil {
			e.log.DebugContext(ctx, "the other nodes' orders are not read from the bus", "error", err)
		}
		for _, o := range stored {
			if o.GetNode() != e.node {
				orders = append(orders, o)
			}
		}
	}
	other := func(want, have string) bool { return want != "" && want != have }
	return &podplanev1.ListEvictionsResponse{Evictions: slices.DeleteFunc(orders, func(o *podplanev1.EvictionRecord) bool {
		return other(req.GetNamespace(), o.GetNamespace()) || other(req.GetName(), o.GetName()) || other(req.GetUid(), o.GetUid())
	})}, nil
}

// ListConditions answers the conditions of one node or all, whoever wrote them, and this node's signals; those of another node are there to
// be asked for. While the bus is away it answers its own.
func (e *Evictions) ListConditions(ctx context.Context, req *podplanev1.ListConditionsRequest) (*podplanev1.ListConditionsResponse, error) {
	here := req.GetNode() == "" || req.GetNode() == e.node
	own, signals := e.source.Conditions()
	if !here {
		rpc.SayElsewhere(ctx, "", req.GetNode())
		signals = nil
	}
	conditions, err := e.stored.Conditions(ctx, req.GetNode())
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
	if node := req.GetNode(); node != "" && node != e.node {
		rpc.SayElsewhere(ctx, "", node)
		err := fault.New(fault.Unavailable, "pods are measured on their node: evictd on node %q can't be reached", node)
		return nil, fault.WithRetryAfter(err, time.Second)
	}
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
