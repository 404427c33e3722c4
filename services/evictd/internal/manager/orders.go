package manager

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/codes"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/events"
	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/evictd/internal/policy"
)

const (
	reasonEvicted      = "Evicted"
	reasonThresholdMet = "EvictionThresholdMet"
	spanOrder          = "eviction.pod.order"
)

// settle ends the orders whose pods are gone, or have ended and are clean: until then what they took is not free again, and another pod
// would pay for it. A cleaning that takes too long is not waited for.
func (m *Manager) settle(ctx context.Context, now time.Time) {
	if !m.deps.Pods.Synced() {
		return
	}
	m.mu.Lock()
	var done []*podplanev1.EvictionRecord
	for uid, o := range m.orders {
		if p, ok := m.deps.Pods.Get(uid); !ok || p.Clean || p.Ended && now.Sub(o.GetOrderedAt().AsTime()) > hangsAfter {
			done = append(done, o)
			delete(m.orders, uid)
		}
	}
	m.mu.Unlock()
	for _, o := range done {
		m.deps.Records.RemoveOrder(o.GetUid())
		m.state.LastOrderEnd, m.notBefore = now, now.Add(settlePause)
		m.opts.Log.InfoContext(telemetry.ContextWithRecord(ctx, o), "eviction done", "after", now.Sub(o.GetOrderedAt().AsTime()).String())
	}
}

// outstanding says which orders are open, and whether they hold up another one.
func (m *Manager) outstanding(now time.Time) policy.Outstanding {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := policy.Outstanding{Open: make(map[string]bool, len(m.orders))}
	for uid, o := range m.orders {
		out.Open[uid] = true
		p, _ := m.deps.Pods.Get(uid)
		hangs := p.Phase == podplanev1.WorkerPhase_WORKER_PHASE_TERMINATING && now.Sub(o.GetOrderedAt().AsTime()) > hangsAfter
		out.Blocked = out.Blocked || !hangs
	}
	return out
}

// order writes the order and says so.
func (m *Manager) order(ctx context.Context, o *policy.Order, now time.Time) {
	p, ok := m.deps.Pods.Get(o.Pod.UID)
	if !ok || p.Ended {
		return // it ended while it was measured: the next round sees what that freed
	}
	ctx = telemetry.ContextWithAbout(telemetry.ContextWithTrace(ctx, p.Trace.GetTraceparent(), p.Trace.GetTracestate()),
		telemetry.About{PodUID: o.Pod.UID, Namespace: o.Pod.Namespace, PodName: o.Pod.Name})
	ctx, span := telemetry.Start(ctx, telemetry.Tracer("evictd/manager"), spanOrder, telemetry.Signal.String(string(o.Signal)))
	defer span.End()
	span.SetStatus(codes.Error, "evicted: "+o.Message) // it is what went wrong with this pod
	record := &podplanev1.EvictionRecord{
		Schema: 1, Node: m.opts.Node, Uid: o.Pod.UID, Namespace: o.Pod.Namespace, Name: o.Pod.Name, Reason: reasonEvicted,
		Message: o.Message, Signal: string(o.Signal), Threshold: o.Threshold.Text, GracePeriodSeconds: int64(o.Grace / time.Second),
		Usage:     map[string]string{o.Signal.StarvedResource(): o.Signal.Format(o.Usage)},
		OrderedAt: timestamppb.New(now), Trace: p.Trace,
	}
	m.mu.Lock()
	m.orders[o.Pod.UID] = record
	m.mu.Unlock()
	m.deps.Records.SetOrder(ctx, record)
	m.metrics.evictions.WithLabelValues(string(o.Signal)).Inc()
	m.opts.Log.WarnContext(ctx, "evicting a pod", "signal", string(o.Signal), "message", o.Message)
	m.deps.Events.AnnotatedEvent(ctx, o.Annotations, events.Pod(o.Pod.Namespace, o.Pod.Name, o.Pod.UID, ""), corev1.EventTypeWarning, reasonEvicted, "%s", o.Message)
}

// noteCrossed tells of thresholds that are crossed now and were not before.
func (m *Manager) noteCrossed(ctx context.Context, crossed []policy.Crossed) {
	now := make(map[policy.Signal]bool, len(crossed))
	for _, c := range crossed {
		s := c.Threshold.Signal
		now[s] = true
		if m.crossed[s] {
			continue
		}
		m.opts.Log.WarnContext(ctx, "eviction threshold met", "threshold", c.Threshold.String(), "available", s.Format(c.Observation.Available))
		m.deps.Events.AnnotatedEvent(ctx, nil, events.Node(m.opts.Node), corev1.EventTypeWarning, reasonThresholdMet, "Attempting to reclaim %s", s.StarvedResource())
	}
	maps.DeleteFunc(m.unmet, func(s policy.Signal, _ bool) bool { return !now[s] })
	m.crossed = now
}

// noteErrors says once what can't be measured here, and when it can again.
func (m *Manager) noteErrors(ctx context.Context, observations []policy.Observation) {
	for _, o := range observations {
		said, before := m.silent[o.Signal]
		switch {
		case o.Err == nil && before:
			delete(m.silent, o.Signal)
			m.opts.Log.InfoContext(ctx, "a signal can be measured", "signal", string(o.Signal))
		case o.Err != nil && said != o.Err.Error():
			m.silent[o.Signal] = o.Err.Error()
			m.opts.Log.WarnContext(ctx, "a signal can't be measured", "signal", string(o.Signal), "error", o.Err)
		}
	}
}

// setConditions writes what changed, and all when it is time for a sign of life.
func (m *Manager) setConditions(ctx context.Context, conditions []policy.Condition, now time.Time) {
	for _, c := range conditions {
		old := m.conditions[c.Type]
		same := old.GetStatus() == c.Status && old.GetReason() == c.Reason && old.GetMessage() == c.Message
		if same && now.Sub(old.GetHeartbeat().AsTime()) < heartbeat {
			continue
		}
		r := &podplanev1.ConditionRecord{
			Schema: 1, Node: m.opts.Node, Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message,
			Heartbeat: timestamppb.New(now), Transition: old.GetTransition(), Observation: c.Observation,
		}
		changed := old.GetStatus() != c.Status || r.Transition == nil
		if changed {
			r.Transition = r.Heartbeat
		}
		m.mu.Lock()
		m.conditions[c.Type] = r
		m.mu.Unlock()
		m.deps.Records.SetCondition(r)
		if changed {
			m.noteCondition(ctx, r, old != nil)
		}
	}
}

// noteCondition tells of a change. That a new node is fine is no news.
func (m *Manager) noteCondition(ctx context.Context, r *podplanev1.ConditionRecord, before bool) {
	m.opts.Log.InfoContext(ctx, "node condition", "condition", r.GetType(), "status", r.GetStatus(), "reason", r.GetReason(), "message", r.GetMessage())
	if r.GetStatus() == policy.True || before && r.GetStatus() == policy.False {
		reason := "NodeHas" + strings.TrimPrefix(r.GetReason(), "KubeletHas")
		m.deps.Events.AnnotatedEvent(ctx, nil, events.Node(m.opts.Node), corev1.EventTypeNormal, reason, "Node %s status is now: %s", m.opts.Node, reason)
	}
}

func (m *Manager) setSignals(observations []policy.Observation) {
	list := make([]*podplanev1.Signal, 0, len(observations))
	for _, o := range observations {
		s := &podplanev1.Signal{Name: string(o.Signal), Available: o.Available, Capacity: o.Capacity, ObservedAt: timestamppb.New(o.At)}
		if o.Err != nil {
			s.Error = o.Err.Error()
		}
		for _, t := range m.opts.Thresholds {
			if t.Signal == o.Signal {
				s.Threshold, s.ThresholdValue = t.Text, t.Value(o.Capacity)
				s.Crossed = o.Err == nil && o.Available < s.ThresholdValue
			}
		}
		list = append(list, s)
	}
	m.mu.Lock()
	m.signals = list
	m.mu.Unlock()
}

// Orders returns the open orders, the oldest first. They must not be changed.
func (m *Manager) Orders() []*podplanev1.EvictionRecord {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Values(m.orders), func(a, b *podplanev1.EvictionRecord) int {
		return a.GetOrderedAt().AsTime().Compare(b.GetOrderedAt().AsTime())
	})
}

// Conditions returns the newest conditions by type, and the newest measurements. They must not be changed.
func (m *Manager) Conditions() ([]*podplanev1.ConditionRecord, []*podplanev1.Signal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Values(m.conditions), func(a, b *podplanev1.ConditionRecord) int {
		return strings.Compare(a.GetType(), b.GetType())
	}), m.signals
}

// Rank measures the pods now and puts them into the order in which they would be evicted for the signal.
func (m *Manager) Rank(ctx context.Context, s policy.Signal) ([]policy.Ranked, error) {
	pods, err := m.deps.Usage.Collect(ctx, m.deps.Pods.List(), s.IsDisk())
	return policy.Rank(s, pods, m.deps.Sensors.OneFS()), err
}
