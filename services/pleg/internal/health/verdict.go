package health

import (
	"cmp"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
)

// Values of a condition's status.
const (
	True    = "True"
	False   = "False"
	Unknown = "Unknown"
)

// Reasons beside the runtime's own.
const (
	ReasonReady       = "RuntimeIsReady"
	ReasonNetwork     = "NetworkIsReady"
	ReasonUnreachable = "RuntimeUnreachable"
	ReasonNoAnswer    = "RuntimeDoesNotAnswer"
)

// condition is what is said about one condition.
type condition struct {
	status, reason, message string
}

// state is what earlier checks left behind.
type state struct {
	since    time.Time // of the last good answer, or of the start
	failures int       // in a row, of kind Unavailable
	broken   bool      // the event stream broke since the last good answer
}

// judge says what a check means. ok is false when nothing is known yet: leave the conditions as they are.
func judge(s state, status cri.Status, err error, timeout time.Duration, now time.Time) (next state, runtime, network condition, ok bool) {
	if err == nil {
		r, n := status.Condition(cri.ConditionRuntimeReady), status.Condition(cri.ConditionNetworkReady)
		return state{since: now}, said(r, ReasonReady), said(n, ReasonNetwork), true
	}
	next = s
	if fault.Is(err, fault.Unavailable) {
		next.failures++
		if next.failures >= 2 || s.broken {
			return next, condition{False, ReasonUnreachable, err.Error()}, unknown(ReasonUnreachable), true
		}
	}
	if now.Sub(s.since) >= timeout {
		return next, condition{False, ReasonNoAnswer, "no answer since " + s.since.UTC().Format(time.RFC3339) + ": " + err.Error()}, unknown(ReasonNoAnswer), true
	}
	return next, condition{}, condition{}, false
}

func unknown(reason string) condition {
	return condition{Unknown, reason, "the container runtime can't be asked"}
}

func said(c cri.Condition, ready string) condition {
	if c.Status {
		return condition{True, cmp.Or(c.Reason, ready), c.Message}
	}
	return condition{False, cmp.Or(c.Reason, "NotReady"), c.Message}
}
