package decisions

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// Bounds of a Journal.
const (
	// MaxPending is how many decisions may wait for the bus.
	MaxPending = 8192
	// maxTogether and maxBytes bound how many decisions go into one message: the bus refuses messages that are larger than a stream's.
	maxTogether = 32
	maxBytes    = 48 << 10
	// maxMessage bounds each text.
	maxMessage = 1024

	parallel     = 4
	retryMin     = 50 * time.Millisecond
	retryMax     = 2 * time.Second
	flushTimeout = time.Second
	schema       = 1
)

// Publisher is what a Journal needs of a bus.Stream.
type Publisher interface {
	Publish(ctx context.Context, m bus.Message) (seq uint64, duplicate bool, err error)
}

// Journal stores decisions. Its methods may be called from any goroutine.
type Journal struct {
	stream Publisher
	node   string
	// life tells the messages of this process from those of others.
	life string
	log  *slog.Logger

	stored, dropped prometheus.Counter

	mu      sync.Mutex
	queues  map[string]*queue // by UID
	ready   []string          // UIDs with decisions that nobody publishes now
	wake    chan struct{}
	pending int
	count   uint64
	failing bool
}

type queue struct {
	list []*message
	busy bool // it is in ready, or somebody publishes it
}

// message gets its ID when it is published for the first time; nothing is added to it from then on.
type message struct {
	id   string
	rec  *podplanev1.DecisionsRecord
	size int // of its decisions, in bytes
}

// takes says whether a decision of so many bytes may go into the message.
func (m *message) takes(size int) bool {
	return m.id == "" && len(m.rec.GetDecisions()) < maxTogether && m.size+size <= maxBytes
}

// New makes a Journal; Run stores.
func New(stream Publisher, node string, registry prometheus.Registerer, log *slog.Logger) *Journal {
	var life [8]byte
	_, _ = rand.Read(life[:]) // never fails
	j := &Journal{
		stream: stream, node: node, life: hex.EncodeToString(life[:]), log: log, queues: make(map[string]*queue), wake: make(chan struct{}, parallel),
		stored: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "podplane_syncd_decisions_total", Help: "Decisions that the journal of decisions has stored.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "podplane_syncd_decisions_dropped_total", Help: "Decisions that were not stored: the bus was away for too long, or refused them.",
		}),
	}
	if registry != nil {
		registry.MustRegister(j.stored, j.dropped)
	}
	return j
}

// Decided takes what was decided for a pod; it never blocks.
func (j *Journal) Decided(p *v1.Pod, trace string, at time.Time, list []plan.Decision) {
	uid, rec := string(p.UID), Record(j.node, p, trace, at, list)
	made := rec.GetDecisions()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.pending+len(made) > MaxPending {
		j.dropped.Add(float64(len(made)))
		return
	}
	j.pending += len(made)
	q := j.queues[uid]
	if q == nil {
		q = &queue{}
		j.queues[uid] = q
	}
	rec.Decisions = nil
	for _, d := range made {
		q.add(rec, d)
	}
	if !q.busy {
		q.busy = true
		j.ready = append(j.ready, uid)
		j.poke()
	}
}

// add puts a decision into the last message, or a new one like the empty record.
func (q *queue) add(empty *podplanev1.DecisionsRecord, d *podplanev1.Decision) {
	size := proto.Size(d)
	if n := len(q.list); n == 0 || !q.list[n-1].takes(size) {
		q.list = append(q.list, &message{rec: &podplanev1.DecisionsRecord{
			Schema: empty.GetSchema(), Node: empty.GetNode(), Uid: empty.GetUid(), Namespace: empty.GetNamespace(), Name: empty.GetName(), Trace: empty.GetTrace(),
		}})
	}
	last := q.list[len(q.list)-1]
	last.rec.Decisions = append(last.rec.Decisions, d)
	last.size += size
}

func (j *Journal) poke() {
	select {
	case j.wake <- struct{}{}:
	default: // everybody is woken already
	}
}

// Record encodes what was decided for a pod of the node at one moment.
func Record(node string, p *v1.Pod, trace string, at time.Time, list []plan.Decision) *podplanev1.DecisionsRecord {
	rec := &podplanev1.DecisionsRecord{Schema: schema, Node: node, Uid: string(p.UID), Namespace: p.Namespace, Name: p.Name}
	if trace != "" {
		rec.Trace = &podplanev1.TraceContext{Traceparent: trace}
	}
	for i := range list {
		rec.Decisions = append(rec.Decisions, encode(&list[i], at))
	}
	return rec
}

func encode(d *plan.Decision, at time.Time) *podplanev1.Decision {
	out := &podplanev1.Decision{
		DecidedAt: timestamppb.New(at), Action: d.Action, Container: d.Container, ObjectId: d.ID, Attempt: d.Attempt, Message: cut(d.Message),
	}
	if d.Period > 0 {
		out.Period = durationpb.New(d.Period)
	}
	b := &d.Because
	if b.Kind == "" {
		return out
	}
	out.Cause = &podplanev1.DecisionCause{Kind: b.Kind, ObjectId: b.ID, Container: b.Container, Message: cut(b.Message)}
	if b.Kind == plan.BecauseLifecycle && b.ID != "" {
		out.Cause.EventId = pod.LifecycleEventID(b.ID, b.Event)
	}
	if !b.At.IsZero() {
		out.Cause.OccurredAt = timestamppb.New(b.At)
	}
	if b.Trace != "" {
		out.Cause.Trace = &podplanev1.TraceContext{Traceparent: b.Trace}
	}
	return out
}

func cut(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxMessage)], "")
}

// Run stores until ctx ends, then, for at most a second, what is left.
func (j *Journal) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for range parallel {
		wg.Go(func() { j.work(ctx) })
	}
	wg.Wait()
	left, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	for left.Err() == nil { // drain hands back what did not get through
		uid := j.next()
		if uid == "" {
			break
		}
		j.drain(left, uid)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.dropped.Add(float64(j.pending))
	return nil
}

// work publishes one pod's decisions at a time.
func (j *Journal) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.wake:
		}
		for uid := j.next(); uid != ""; uid = j.next() {
			j.drain(ctx, uid)
			if ctx.Err() != nil {
				return
			}
		}
	}
}

// next takes a pod that has decisions, "" when none has.
func (j *Journal) next() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.ready) == 0 {
		return ""
	}
	uid := j.ready[0]
	j.ready = j.ready[1:]
	if len(j.ready) > 0 {
		j.poke()
	}
	return uid
}

// drain publishes a pod's decisions until there are none, or hands them back when the context ends.
func (j *Journal) drain(ctx context.Context, uid string) {
	for {
		j.mu.Lock()
		q := j.queues[uid]
		if len(q.list) == 0 {
			delete(j.queues, uid)
			j.mu.Unlock()
			return
		}
		m := q.list[0]
		q.list = q.list[1:]
		if m.id == "" {
			j.count++
			m.id = j.life + "/" + strconv.FormatUint(j.count, 10)
		}
		j.mu.Unlock()
		done := j.publish(ctx, m.id, m.rec)
		j.mu.Lock()
		if !done {
			q.list = append([]*message{m}, q.list...)
			j.ready = append(j.ready, uid)
			j.mu.Unlock()
			return
		}
		j.pending -= len(m.rec.GetDecisions())
		j.mu.Unlock()
	}
}

// publish stores one message, however often it takes. It returns false when the context ended before.
func (j *Journal) publish(ctx context.Context, id string, rec *podplanev1.DecisionsRecord) bool {
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		err := j.try(ctx, id, rec)
		switch fault.KindOf(err) {
		case fault.None:
			j.stored.Add(float64(len(rec.GetDecisions())))
			j.note(nil)
			return true
		case fault.TooLarge, fault.Invalid, fault.PermissionDenied:
			j.dropped.Add(float64(len(rec.GetDecisions())))
			j.log.WarnContext(ctx, "decisions can't be stored", string(telemetry.PodUID), rec.GetUid(), "error", err)
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		j.note(err)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		}
	}
}

func (j *Journal) try(ctx context.Context, id string, rec *podplanev1.DecisionsRecord) error {
	data, err := proto.Marshal(rec)
	if err != nil {
		return errors.Join(fault.New(fault.Invalid, "encode the decisions for pod %s", rec.GetUid()), err)
	}
	ctx = telemetry.ContextWithRecord(ctx, rec)
	_, _, err = j.stream.Publish(ctx, bus.Message{
		Subject: bus.DecisionsSubject(j.node, rec.GetUid(), rec.GetNamespace(), rec.GetName()), ID: id, Data: data,
	})
	if err != nil {
		return fmt.Errorf("store the decisions for pod %s: %w", rec.GetUid(), err)
	}
	return nil
}

// note logs the first of a series of failures and its end.
func (j *Journal) note(err error) {
	j.mu.Lock()
	was, pending := j.failing, j.pending
	j.failing = err != nil
	j.mu.Unlock()
	switch {
	case err != nil && !was:
		j.log.Warn("decisions can't be stored now, they are kept", "error", err)
	case err == nil && was:
		j.log.Info("decisions are stored again", "pending", pending)
	}
}

// Decode reads a message of the stream.
func Decode(m bus.Message) (*podplanev1.DecisionsRecord, error) {
	rec := new(podplanev1.DecisionsRecord)
	if err := proto.Unmarshal(m.Data, rec); err != nil {
		return nil, fmt.Errorf("decode decisions %d: %w", m.Sequence, err)
	}
	return rec, nil
}
