// Package history answers why: it reads what the journals have about one pod (LIFECYCLE, DECISIONS, EVENTS), has it joined by package chain,
// and adds what the pod waits for now. It keeps nothing between two questions.
//
// # Bounds
//
// Of each journal the newest maxRead messages about the pod are looked at. A journal that can't be read is named in the answer, which then has
// the rest; only without any of them is there no answer.
package history

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/chain"
	"github.com/podplane/podplane/services/syncd/internal/decisions"
)

const (
	maxRead      = 10000
	defaultLimit = 500
	maxLimit     = 5000
	gone         = "Gone"
)

// Stream is what is needed of a bus.Stream.
type Stream interface {
	Read(ctx context.Context, from bus.ReadFrom, f func(context.Context, bus.Message) error) error
}

// Pods knows the pods that there are.
type Pods interface {
	// Find returns the UID of the pod that has the name now.
	Find(namespace, name string) (uid string, ok bool)
	Status(uid string) (*podplanev1.StatusRecord, bool)
	WaitSynced(ctx context.Context) error
}

// History implements podplanev1.WhyServiceServer.
type History struct {
	podplanev1.UnimplementedWhyServiceServer
	pods Pods
	log  *slog.Logger

	lifecycle, decisions, events source
}

// source is a journal that is opened at some time.
type source struct {
	what   string
	stream atomic.Pointer[Stream]
}

// New makes a History of the pods of every node. Its journals are opened by Open.
func New(pods Pods, log *slog.Logger) *History {
	h := &History{pods: pods, log: log}
	h.lifecycle.what, h.decisions.what, h.events.what = "lifecycle events", "decisions", "Events"
	return h
}

// Use gives the journals; nil leaves one as it is.
func (h *History) Use(lifecycle, decided, events Stream) {
	for _, x := range []struct {
		to *source
		s  Stream
	}{{&h.lifecycle, lifecycle}, {&h.decisions, decided}, {&h.events, events}} {
		if x.s != nil {
			x.to.stream.Store(&x.s)
		}
	}
}

// Open opens the journals that other services make, as soon as they exist.
func (h *History) Open(ctx context.Context, conn *bus.Conn) error {
	e, err := bus.OpenStream(ctx, conn, bus.Events)
	if err != nil {
		return fmt.Errorf("open the stream of events: %w", err)
	}
	h.Use(nil, nil, e)
	l, err := bus.OpenStream(ctx, conn, bus.Lifecycle)
	if err != nil {
		return fmt.Errorf("open the stream of lifecycle events: %w", err)
	}
	h.Use(l, nil, nil)
	return nil
}

// Why answers what happened to a pod and why.
func (h *History) Why(ctx context.Context, req *podplanev1.WhyRequest) (*podplanev1.WhyResponse, error) {
	since, err := parseSince(req.GetSince(), time.Now())
	if err != nil {
		return nil, err
	}
	if req.GetPod() == "" && req.GetUid() == "" {
		return nil, fault.New(fault.BadRequest, "pod: the name of a pod is required")
	}
	if err := h.pods.WaitSynced(ctx); err != nil {
		return nil, err
	}
	q := &question{h: h, out: &podplanev1.WhyResponse{Namespace: cmp.Or(req.GetNamespace(), v1.NamespaceDefault), Name: req.GetPod(), Uid: req.GetUid()}}
	if err := q.find(ctx); err != nil {
		return nil, err
	}
	in, err := q.read(ctx)
	if err != nil {
		return nil, err
	}
	in.Container, in.Since, in.Limit = req.GetContainer(), since, defaultLimit
	if n := req.GetLimit(); n > 0 {
		in.Limit = int(min(n, maxLimit))
	}
	chains, left := chain.Compose(in)
	q.out.Chains, q.out.LeftOut = chains, uint32(left)
	q.present()
	for i := len(chains) - 1; i >= 0 && q.out.TraceId == ""; i-- {
		q.out.TraceId = chains[i].GetTraceId()
	}
	return q.out, nil
}

// question is one pod that is asked about.
type question struct {
	h   *History
	out *podplanev1.WhyResponse
}

// find settles which pod is meant.
func (q *question) find(ctx context.Context) error {
	if q.out.GetUid() != "" {
		return nil
	}
	uid, live := q.h.pods.Find(q.out.GetNamespace(), q.out.GetName())
	last := make(map[string]time.Time)
	var order []string
	err := q.h.decisions.each(ctx, bus.DecisionsNamePattern(q.out.GetNamespace(), q.out.GetName()), func(m bus.Message) {
		parts, err := bus.SplitKey(m.Subject)
		if err != nil || len(parts) < 4 {
			return
		}
		if _, known := last[parts[3]]; !known {
			order = append(order, parts[3])
		}
		last[parts[3]] = m.Time
	})
	if !live && len(order) > 0 {
		uid = slices.MaxFunc(order, func(a, b string) int { return last[a].Compare(last[b]) })
	}
	if uid == "" && err == nil {
		uid, err = q.findInLifecycle(ctx)
	}
	if uid == "" {
		if err != nil {
			return err
		}
		return fault.For(fault.NotFound, fault.Object{Resource: "pods", Name: q.out.GetName()},
			"pods %q not found: there is none of this name in the namespace %q, and the journals know of none either", q.out.GetName(), q.out.GetNamespace())
	}
	q.out.Uid = uid
	for _, other := range order {
		if other != uid {
			q.out.EarlierUids = append(q.out.EarlierUids, other)
		}
	}
	return nil
}

// findInLifecycle finds a pod that is gone and of which no decision is left.
func (q *question) findInLifecycle(ctx context.Context) (uid string, err error) {
	err = q.h.lifecycle.each(ctx, bus.LifecycleEverywhere(""), func(m bus.Message) {
		if e := decodeLifecycle(m); e != nil && e.GetNamespace() == q.out.GetNamespace() && e.GetName() == q.out.GetName() {
			uid = e.GetUid()
		}
	})
	return uid, err
}

// read reads all that is known of the pod.
func (q *question) read(ctx context.Context) (chain.Input, error) {
	var in chain.Input
	uid := q.out.GetUid()
	var errs []error
	take := func(s *source, pattern string, f func(bus.Message)) {
		if err := s.each(ctx, pattern, f); err != nil {
			errs = append(errs, err)
			q.out.Missing = append(q.out.Missing, s.what+": "+err.Error())
		}
	}
	take(&q.h.decisions, bus.DecisionsPodPattern(uid), func(m bus.Message) {
		rec, err := decisions.Decode(m)
		if err != nil || !q.belongs(rec.GetNamespace(), rec.GetName()) {
			return
		}
		in.Decisions = bounded(append(in.Decisions, chain.Decided{Sequence: m.Sequence, Record: rec}))
	})
	take(&q.h.lifecycle, bus.LifecycleEverywhere(uid), func(m bus.Message) {
		if e := decodeLifecycle(m); e != nil && q.belongs(e.GetNamespace(), e.GetName()) {
			in.Lifecycle = bounded(append(in.Lifecycle, e))
		}
	})
	newest := make(map[string]int)
	take(&q.h.events, bus.EventsEverywhere(uid), func(m bus.Message) {
		e := new(v1.Event)
		if json.Unmarshal(m.Data, e) != nil || !q.belongs(e.InvolvedObject.Namespace, e.InvolvedObject.Name) {
			return
		}
		r := chain.Reported{Sequence: m.Sequence, Event: e, At: m.Time, Trace: telemetry.Traceparent(m.Context(ctx))}
		if i, known := newest[e.Name]; known {
			r.At = in.Events[i].At
			in.Events[i] = r
			return
		}
		newest[e.Name] = len(in.Events)
		in.Events = append(in.Events, r) // an object's Events are few: the recorder limits them
	})
	if len(errs) == 3 {
		return in, errs[0]
	}
	if len(in.Decisions)+len(in.Lifecycle)+len(in.Events) == 0 {
		if _, live := q.h.pods.Status(uid); !live {
			return in, fault.For(fault.NotFound, fault.Object{Resource: "pods", Name: cmp.Or(q.out.GetName(), uid)},
				"pods %q not found: the journals know nothing of it in the namespace %q", cmp.Or(q.out.GetName(), uid), q.out.GetNamespace())
		}
	}
	return in, nil
}

// belongs says whether a message is about the pod of the namespace that was asked for: whoever may read one namespace must not read another by
// a UID. It learns the name of a pod that was asked for by UID.
func (q *question) belongs(namespace, name string) bool {
	if namespace != q.out.GetNamespace() {
		return false
	}
	if q.out.GetName() == "" {
		q.out.Name = name
	}
	return name == q.out.GetName()
}

func bounded[T any](list []T) []T {
	if len(list) > 2*maxRead {
		return append(list[:0:0], list[len(list)-maxRead:]...)
	}
	return list
}

// present adds what the pod is now.
func (q *question) present() {
	rec, ok := q.h.pods.Status(q.out.GetUid())
	if !ok || !q.belongs(rec.GetNamespace(), rec.GetName()) {
		q.out.Phase = gone
		return
	}
	var s v1.PodStatus
	if err := json.Unmarshal(rec.GetStatus(), &s); err != nil {
		q.h.log.Warn("a pod's status can't be read", string(telemetry.PodUID), q.out.GetUid(), "error", err)
	}
	q.out.Phase, q.out.Waiting = string(s.Phase), rec.GetWaiting()
	q.out.TraceId = chain.TraceID(rec.GetTrace().GetTraceparent())
}

// each reads what is stored.
func (s *source) each(ctx context.Context, pattern string, f func(bus.Message)) error {
	stream := s.stream.Load()
	if stream == nil {
		return fault.WithRetryAfter(fault.New(fault.Unavailable, "the journal of %s is not open yet: waiting for the bus", s.what), time.Second)
	}
	return (*stream).Read(ctx, bus.ReadFrom{Filter: pattern}, func(_ context.Context, m bus.Message) error {
		f(m)
		return nil
	})
}

func decodeLifecycle(m bus.Message) *podplanev1.LifecycleEvent {
	e := new(podplanev1.LifecycleEvent)
	if (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(m.Data, e) != nil {
		return nil
	}
	e.Sequence = m.Sequence
	return e
}

// parseSince reads an RFC 3339 time, or a duration back from now. Empty is the zero time.
func parseSince(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return time.Time{}, fault.New(fault.BadRequest, "since: want an RFC 3339 time (2026-01-02T15:04:05Z) or a duration back from now (10m)")
	}
	return now.Add(-d), nil
}
