package health

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/cri"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

const (
	defaultPeriod  = 5 * time.Second
	defaultTimeout = 3 * time.Minute
	heartbeat      = 8 * time.Second // and the rest of a period: at most 10 s with defaults
	retryPeriod    = 500 * time.Millisecond
	maxCheck       = 10 * time.Second
)

// Runtime is what is asked.
type Runtime interface {
	Status(ctx context.Context) (cri.Status, error)
}

// Conditions takes the records; it never blocks, and the newest of a key wins.
type Conditions interface {
	Set(key string, record *podplanev1.ConditionRecord)
}

// Options of a Checker. Zero fields have defaults.
type Options struct {
	Node string
	// Period is the time between checks while all is well, default 5 s.
	Period time.Duration
	// Timeout is how long the runtime may leave checks unanswered, default 3 min.
	Timeout time.Duration
	// Previous are the records of an earlier process, by type: their times of transition stay.
	Previous map[string]*podplanev1.ConditionRecord
	Log      *slog.Logger
}

// Checker checks the runtime.
type Checker struct {
	opts Options
	rt   Runtime
	out  Conditions
	kick chan struct{}

	mu     sync.Mutex
	broken bool   // the stream broke and no check has looked at it
	note   string // goes into the message of RuntimeReady
	// answered is when the runtime last answered anybody else.
	answered time.Time

	// What follows belongs to Run.
	state     state
	runtime   condition
	network   condition
	known     bool
	records   map[string]*podplanev1.ConditionRecord
	writtenAt time.Time
}

// New makes a checker.
func New(rt Runtime, out Conditions, opts Options) *Checker {
	if opts.Period <= 0 {
		opts.Period = defaultPeriod
	}
	if opts.Timeout <= 0 {
		opts.Timeout = defaultTimeout
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	c := &Checker{opts: opts, rt: rt, out: out, kick: make(chan struct{}, 1), records: make(map[string]*podplanev1.ConditionRecord)}
	for t, r := range opts.Previous {
		c.records[t] = r
	}
	return c
}

// StreamChanged says that the event stream broke (with the reason) or opened: a check follows at once.
func (c *Checker) StreamChanged(err error) {
	c.mu.Lock()
	c.broken = err != nil
	c.mu.Unlock()
	c.wake()
}

// SetNote says what is to be added to the message of RuntimeReady; empty for nothing.
func (c *Checker) SetNote(note string) {
	c.mu.Lock()
	changed := c.note != note
	c.note = note
	c.mu.Unlock()
	if changed {
		c.wake()
	}
}

// Answered says that the runtime answered another call: as a whole it is there, even if it leaves checks unanswered.
func (c *Checker) Answered(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.After(c.answered) {
		c.answered = now
	}
}

func (c *Checker) wake() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// Run checks until the context ends.
func (c *Checker) Run(ctx context.Context) error {
	c.state.since = time.Now()
	for {
		ok := c.check(ctx)
		if ctx.Err() != nil {
			return nil
		}
		wait := c.opts.Period
		if !ok {
			wait = min(wait, retryPeriod)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-c.kick:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// check asks once. It says whether the runtime answered.
func (c *Checker) check(ctx context.Context) bool {
	c.mu.Lock()
	c.state.broken = c.state.broken || c.broken
	c.broken = false
	note := c.note
	c.mu.Unlock()
	bounded, cancel := context.WithTimeout(ctx, min(c.opts.Timeout, maxCheck))
	status, err := c.rt.Status(bounded)
	cancel()
	if ctx.Err() != nil {
		return false
	}
	now := time.Now()
	c.mu.Lock()
	if c.answered.After(c.state.since) {
		c.state.since = c.answered
	}
	c.mu.Unlock()
	next, runtime, network, known := judge(c.state, status, err, c.opts.Timeout, now)
	c.state = next
	if !known {
		if !c.known {
			return false
		}
		runtime, network = c.runtime, c.network
	}
	c.known, c.runtime, c.network = true, runtime, network
	if note != "" {
		if runtime.message != "" {
			runtime.message += "; "
		}
		runtime.message += note
	}
	c.write(ctx, now, runtime, network)
	return err == nil
}

func (c *Checker) write(ctx context.Context, now time.Time, runtime, network condition) {
	beat := now.Sub(c.writtenAt) >= heartbeat
	if beat {
		c.writtenAt = now
	}
	c.set(ctx, bus.ConditionRuntimeReady, runtime, beat, now)
	c.set(ctx, bus.ConditionNetworkReady, network, beat, now)
}

func (c *Checker) set(ctx context.Context, conditionType string, cond condition, beat bool, now time.Time) {
	old := c.records[conditionType]
	same := old.GetStatus() == cond.status && old.GetReason() == cond.reason && old.GetMessage() == cond.message
	if same && !beat {
		return
	}
	r := &podplanev1.ConditionRecord{
		Schema: 1, Node: c.opts.Node, Type: conditionType, Status: cond.status, Reason: cond.reason, Message: cond.message,
		Heartbeat: timestamppb.New(now), Transition: old.GetTransition(),
	}
	if old.GetStatus() != cond.status || r.Transition == nil {
		r.Transition = r.Heartbeat
		c.opts.Log.InfoContext(ctx, "node condition", "condition", conditionType, "status", cond.status, "reason", cond.reason, "message", cond.message)
	}
	c.records[conditionType] = r
	c.out.Set(bus.ConditionKey(c.opts.Node, conditionType), r)
}
