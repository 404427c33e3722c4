package chain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// Kinds of a step.
const (
	KindEvent    = "event"
	KindDecision = "decision"
	KindAction   = "action"
	KindReport   = "report"
)

// Decided is a record of the stream of decisions.
type Decided struct {
	Sequence uint64
	Record   *podplanev1.DecisionsRecord
}

// Reported is a Kubernetes Event.
type Reported struct {
	Sequence uint64
	Event    *v1.Event
	// At is when it was stored first: an Event's own times have no more than seconds. Zero: take those.
	At    time.Time
	Trace string // traceparent
}

// Input is all that is known of one pod.
type Input struct {
	Lifecycle []*podplanev1.LifecycleEvent
	Decisions []Decided
	Events    []Reported
	// Container leaves out what is about another one; Since what ended before; Limit all but the newest chains (0: none).
	Container string
	Since     time.Time
	Limit     int
}

// Compose returns the chains, oldest first, and how many more there would be without the limit.
func Compose(in Input) (chains []*podplanev1.WhyChain, leftOut int) {
	c := &composer{events: make(map[string]*link), causes: make(map[string]*link), starts: make(map[string]*act), ends: make(map[string]*act)}
	for _, x := range c.sorted(in) {
		switch {
		case x.lifecycle != nil:
			c.lifecycle(x.lifecycle)
		case x.decision != nil:
			c.decision(x)
		default:
			c.report(x.reported)
		}
	}
	for _, l := range c.all {
		if l.about(in.Container) && !l.end().Before(in.Since) {
			chains = append(chains, l.chain())
		}
	}
	slices.SortStableFunc(chains, func(a, b *podplanev1.WhyChain) int { return a.GetAt().AsTime().Compare(b.GetAt().AsTime()) })
	if in.Limit > 0 && len(chains) > in.Limit {
		leftOut = len(chains) - in.Limit
		chains = chains[leftOut:]
	}
	return chains, leftOut
}

// item is one thing of the input; exactly one of the pointers is set.
type item struct {
	at        time.Time
	rank      int // among those of one moment: what is asked for comes before what comes of it
	lifecycle *podplanev1.LifecycleEvent
	decision  *podplanev1.Decision
	sequence  uint64
	trace     string // of the decision's record
	reported  *Reported
}

type composer struct {
	all    []*link
	events map[string]*link // by the ID of the lifecycle event
	causes map[string]*link // by what makes a cause that is no event of the runtime the same one
	starts map[string]*act  // what was asked for and has not been seen to happen: by container and attempt
	ends   map[string]*act  // by action and the ID of the container or sandbox
}

// link is a chain that is being made.
type link struct {
	steps      []*podplanev1.WhyStep
	containers []string
}

// act is an action's step: what comes of it is put there.
type act struct {
	link *link
	step *podplanev1.WhyStep
}

func (c *composer) sorted(in Input) []item {
	var items []item
	for _, e := range in.Lifecycle {
		items = append(items, item{at: e.GetOccurredAt().AsTime(), rank: 1, lifecycle: e})
	}
	for _, d := range in.Decisions {
		for _, x := range d.Record.GetDecisions() {
			items = append(items, item{at: x.GetDecidedAt().AsTime(), rank: 2, decision: x, sequence: d.Sequence, trace: d.Record.GetTrace().GetTraceparent()})
		}
	}
	for i := range in.Events {
		items = append(items, item{at: in.Events[i].time(), rank: 3, reported: &in.Events[i]})
	}
	slices.SortStableFunc(items, func(a, b item) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.rank, b.rank)) })
	return items
}

func (c *composer) begin(container string, s *podplanev1.WhyStep) *link {
	l := &link{steps: []*podplanev1.WhyStep{s}}
	l.concerns(container)
	c.all = append(c.all, l)
	return l
}

func (l *link) concerns(container string) {
	if container != "" && !slices.Contains(l.containers, container) {
		l.containers = append(l.containers, container)
	}
}

func (l *link) about(container string) bool {
	return container == "" || len(l.containers) == 0 || slices.Contains(l.containers, container)
}

func (l *link) end() time.Time {
	var end time.Time
	for _, s := range l.steps {
		if t := s.GetAt().AsTime(); t.After(end) {
			end = t
		}
	}
	return end
}

// add appends a step, unless the chain says the same already.
func (l *link) add(s *podplanev1.WhyStep) *podplanev1.WhyStep {
	for _, have := range l.steps {
		if have.GetKind() == s.GetKind() && have.GetText() == s.GetText() {
			return have
		}
	}
	l.steps = append(l.steps, s)
	return s
}

func (l *link) chain() *podplanev1.WhyChain {
	out := &podplanev1.WhyChain{At: l.steps[0].GetAt(), Steps: l.steps}
	if len(l.containers) == 1 {
		out.Container = l.containers[0]
	}
	for _, s := range l.steps {
		out.TraceId = cmp.Or(out.TraceId, s.GetTraceId())
	}
	return out
}

func step(kind, text, source string, at *timestamppb.Timestamp, traceparent string) *podplanev1.WhyStep {
	return &podplanev1.WhyStep{Kind: kind, Text: text, Source: source, At: at, TraceId: TraceID(traceparent)}
}

// TraceID is the trace that a traceparent belongs to, "" for none.
func TraceID(traceparent string) string {
	if parts := strings.Split(traceparent, "-"); len(parts) == 4 {
		return parts[1]
	}
	return ""
}

func attemptKey(container string, attempt uint32) string {
	return fmt.Sprintf("%s/%d", container, attempt)
}

// decision puts a decision into the chain of what it was taken upon.
func (c *composer) decision(x item) {
	d := x.decision
	source := fmt.Sprintf("DECISIONS/%d", x.sequence)
	l := c.cause(d, source, x.trace)
	l.concerns(d.GetContainer())
	if d.GetMessage() != "" {
		l.add(step(KindDecision, d.GetMessage(), source, d.GetDecidedAt(), x.trace))
	}
	text := asked(d)
	if text == "" {
		return
	}
	a := &act{l, l.add(step(KindAction, text, source, d.GetDecidedAt(), x.trace))}
	switch d.GetAction() {
	case plan.StartContainer.String(), plan.CreateSandbox.String():
		c.starts[attemptKey(d.GetContainer(), d.GetAttempt())] = a
	default:
		c.ends[d.GetAction()+"/"+d.GetObjectId()] = a
	}
}

// cause finds or begins the chain that a decision belongs to.
func (c *composer) cause(d *podplanev1.Decision, source, trace string) *link {
	b := d.GetCause()
	if l := c.events[b.GetEventId()]; l != nil && b.GetEventId() != "" {
		return l
	}
	key := strings.Join([]string{b.GetKind(), b.GetContainer(), b.GetObjectId(), b.GetEventId(), b.GetMessage(), b.GetOccurredAt().AsTime().String()}, "\x00")
	if l := c.causes[key]; l != nil && !ofThePod(b.GetKind()) {
		return l
	}
	at := d.GetDecidedAt()
	if t := b.GetOccurredAt(); t != nil {
		at = t
	}
	text := cmp.Or(b.GetMessage(), "decided")
	l := c.begin(cmp.Or(b.GetContainer(), d.GetContainer()), step(KindEvent, text, source, at, cmp.Or(b.GetTrace().GetTraceparent(), trace)))
	c.causes[key] = l
	if id := b.GetEventId(); id != "" {
		c.events[id] = l
	}
	return l
}

// ofThePod says whether a cause is about the pod as a whole: what follows for each container is a chain of its own.
func ofThePod(kind string) bool {
	switch kind {
	case plan.BecauseDeletion, plan.BecauseEviction, plan.BecauseDeadline, plan.BecauseCompletion:
		return true
	}
	return false
}

// asked is what a decision has done, "" when that is nothing.
func asked(d *podplanev1.Decision) string {
	switch d.GetAction() {
	case plan.StartContainer.String():
		return "start of container " + d.GetContainer() + restart(d.GetAttempt())
	case plan.KillContainer.String():
		return "stop of container " + d.GetContainer()
	case plan.CreateSandbox.String():
		return "creation of the sandbox"
	case plan.StopSandbox.String():
		return "stop of the sandbox"
	case plan.RemoveSandbox.String():
		return "removal of the sandbox"
	case plan.RemoveContainer.String():
		return "removal of container " + d.GetContainer() + restart(d.GetAttempt())
	case plan.RemoveRecord.String():
		return "the pod is gone"
	}
	return ""
}

func restart(attempt uint32) string {
	if attempt == 0 {
		return ""
	}
	return fmt.Sprintf(" as restart %d", attempt)
}

// happened replaces an action's text by what came of it.
func (a *act) happened(text string, e *podplanev1.LifecycleEvent) {
	a.step.Text, a.step.At, a.step.Source = text, e.GetOccurredAt(), lifecycleSource(e)
	a.step.TraceId = cmp.Or(TraceID(e.GetTrace().GetTraceparent()), a.step.GetTraceId())
	a.link.concerns(e.GetContainer())
}

func lifecycleSource(e *podplanev1.LifecycleEvent) string {
	return fmt.Sprintf("LIFECYCLE/%d", e.GetSequence())
}
