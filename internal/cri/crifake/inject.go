package crifake

import (
	"context"
	"slices"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
)

// Call is one call that was made. Operations have the names that the metrics use: run_podsandbox, create_container,
// start_container, stop_container, container_status, exec_sync, pull_image…
type Call struct {
	Operation string
	// Target is the ID, the image, or namespace/name of the pod (run_podsandbox) or the container's name (create_container).
	Target string
	At     time.Time
}

// Calls returns the calls so far, in order; with operations given, only those.
func (r *Runtime) Calls(operations ...string) []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(operations) == 0 {
		return slices.Clone(r.calls)
	}
	var calls []Call
	for _, c := range r.calls {
		if slices.Contains(operations, c.Operation) {
			calls = append(calls, c)
		}
	}
	return calls
}

// ForgetCalls empties the log of calls.
func (r *Runtime) ForgetCalls() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = nil
}

type rule struct {
	operation, target string
	times             int // 0: for ever
	err               error
	hang              chan struct{}
	delay             time.Duration
}

// Fail makes the next calls of the operation fail with the error, as many times as given (0: until the returned
// function is called). An empty target means any.
func (r *Runtime) Fail(operation, target string, times int, err error) (stop func()) {
	return r.add(&rule{operation: operation, target: target, times: times, err: err})
}

// Hang makes calls of the operation wait until their context or the time that a call may take (cri.Timeouts' defaults)
// ends, or the returned function is called: then they go on as if nothing had been. An empty target means any.
func (r *Runtime) Hang(operation, target string) (release func()) {
	h := &rule{operation: operation, target: target, hang: make(chan struct{})}
	remove := r.add(h)
	var released bool
	return func() {
		remove()
		r.mu.Lock()
		defer r.mu.Unlock()
		if !released {
			released = true
			close(h.hang)
		}
	}
}

// Delay makes calls of the operation take this much longer, until the returned function is called.
func (r *Runtime) Delay(operation, target string, d time.Duration) (stop func()) {
	return r.add(&rule{operation: operation, target: target, delay: d})
}

func (r *Runtime) add(n *rule) (remove func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rules = append(r.rules, n)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.rules = slices.DeleteFunc(r.rules, func(o *rule) bool { return o == n })
	}
}

// SetDown takes the runtime away: all calls fail with kind Unavailable and the streams of events break. What runs goes
// on, as shims do, and what ends meanwhile is seen when the runtime is back; its events are lost.
func (r *Runtime) SetDown(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
	if down {
		for s := range r.streams {
			s.fail(fault.New(fault.Unavailable, "the container runtime went away"))
		}
		clear(r.streams)
	}
}

// enter begins each call: it is logged, then what was injected happens. It returns with the mutex free.
func (r *Runtime) enter(ctx context.Context, operation, target string) error {
	r.mu.Lock()
	start := r.clock.Now()
	r.calls = append(r.calls, Call{Operation: operation, Target: target, At: start})
	var apply []*rule
	for _, rule := range r.rules {
		if rule.operation == operation && (rule.target == "" || rule.target == target) {
			apply = append(apply, rule)
		}
	}
	down := r.down
	r.mu.Unlock()

	fail := func(err error) error {
		return &cri.CallError{Op: operation, Target: target, After: r.clock.Since(start), Err: err}
	}
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	if down {
		return fail(fault.New(fault.Unavailable, "the container runtime is away"))
	}
	for _, rule := range apply {
		if err := r.obey(ctx, rule, limit(ctx)); err != nil {
			return fail(err)
		}
	}
	return nil
}

type inspectKey struct{}

// limit is how long a call may hang, as with the default cri.Timeouts.
func limit(ctx context.Context) time.Duration {
	if ctx.Value(inspectKey{}) != nil {
		return 5 * time.Second
	}
	return 2 * time.Minute
}

func (r *Runtime) obey(ctx context.Context, n *rule, limit time.Duration) error {
	if n.hang != nil {
		timer := r.clock.NewTimer(limit)
		defer timer.Stop()
		select {
		case <-n.hang:
		case <-timer.C():
			return fault.New(fault.DeadlineExceeded, "the container runtime did not answer within %s", limit)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if n.delay > 0 {
		if err := r.wait(ctx, n.delay); err != nil {
			return err
		}
	}
	if n.err == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.rules, n) {
		return nil // used up by others
	}
	if n.times > 0 {
		if n.times--; n.times == 0 {
			r.rules = slices.DeleteFunc(r.rules, func(o *rule) bool { return o == n })
		}
	}
	return n.err
}

// wait lets the clock's time pass.
func (r *Runtime) wait(ctx context.Context, d time.Duration) error {
	timer := r.clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// callError is an answer of the runtime.
func callError(operation, target string, kind fault.Kind, format string, args ...any) error {
	return &cri.CallError{Op: operation, Target: target, Err: fault.New(kind, format, args...)}
}
