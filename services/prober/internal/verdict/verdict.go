package verdict

import (
	"time"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// The kinds and results, under short names.
const (
	Startup   = podplanev1.ProbeKind_PROBE_KIND_STARTUP
	Liveness  = podplanev1.ProbeKind_PROBE_KIND_LIVENESS
	Readiness = podplanev1.ProbeKind_PROBE_KIND_READINESS

	None    = podplanev1.ProbeResult_PROBE_RESULT_UNSPECIFIED
	Success = podplanev1.ProbeResult_PROBE_RESULT_SUCCESS
	Failure = podplanev1.ProbeResult_PROBE_RESULT_FAILURE
	Unknown = podplanev1.ProbeResult_PROBE_RESULT_UNKNOWN
)

const (
	// adoptedAfter is the age above which a container that is seen for the first time was started before this
	// process: its probes are spread over their period, instead of all being made at once.
	adoptedAfter = 10 * time.Second
	// minTrigger is the least time between a readiness probe and one out of schedule.
	minTrigger = time.Second
	// firstExtra is how long after a failed first probe it is made again; the pause doubles until the period is over.
	firstExtra = 100 * time.Millisecond
	// startedPrecision is how much later than its startedAt, which is cut to seconds, a container may have started.
	startedPrecision = time.Second
)

// Params are a probe's parameters.
type Params struct {
	Kind             podplanev1.ProbeKind
	InitialDelay     time.Duration
	Period           time.Duration
	SuccessThreshold int
	FailureThreshold int
	// Spread, in [0,1), is this probe's own place in its period, so that those of many containers that were started at
	// once do not stay together.
	Spread float64
}

// Container is the present instance of the container, as the pod's status says.
type Container struct {
	// ID is the runtime's; empty when no instance is known.
	ID      string
	Running bool
	// StartedAt is when it started, cut to seconds.
	StartedAt time.Time
	// Started: it has no startup probe, or that has succeeded.
	Started bool
	// Reachable: the probe has an address to go to.
	Reachable bool
	// Ending: the pod is to go. Over: none of its containers will run again.
	Ending, Over bool
}

// Machine is the state of one probe. Make one with New.
type Machine struct {
	params Params

	container Container
	began     time.Time // when it can have started at the latest
	open      bool      // the gate was open when last looked
	held      bool

	result   podplanev1.ProbeResult // the verdict
	last     podplanev1.ProbeResult // of the last probe
	run      int                    // how often in a row
	lastAt   time.Time
	next     time.Time // when the next probe is due; zero for never
	regular  time.Time // when the next probe in the period's rhythm is due, while one out of it is before that
	pause    time.Duration
	cold     bool   // nothing but failures so far, and the first period is not over
	spread   bool   // has taken its place in the period
	restored string // the container that the verdict of an earlier process is about
}

// New makes the machine of a probe that was never run.
func New(p Params) Machine {
	p.SuccessThreshold, p.FailureThreshold = max(p.SuccessThreshold, 1), max(p.FailureThreshold, 1)
	if p.Period <= 0 {
		p.Period = 10 * time.Second
	}
	return Machine{params: p}
}

// Restore takes a verdict that an earlier process recorded. It holds as long as the container is the same one, until
// thresholds say otherwise.
func (m *Machine) Restore(containerID string, result podplanev1.ProbeResult) {
	if m.container.ID == "" && (result == Success || result == Failure) {
		m.restored, m.result = containerID, result
	}
}

// Verdict answers the verdict on the present container, None before the first.
func (m *Machine) Verdict() podplanev1.ProbeResult {
	if m.container.ID == "" {
		return None
	}
	return m.result
}

// ContainerID answers which container instance the machine is about.
func (m *Machine) ContainerID() string { return m.container.ID }

// InARow answers how many probes in a row had the last one's result.
func (m *Machine) InARow() int { return m.run }

// Next answers when the next probe is due; zero for not now.
func (m *Machine) Next() time.Time { return m.next }

// Cold says that the container has just started: its first period is not over and no probe has succeeded yet. That is
// no failure that people should hear of: applications take a moment to listen.
func (m *Machine) Cold() bool { return m.cold }

// Observe takes what is known about the container now.
func (m *Machine) Observe(c Container, now time.Time) {
	if c.ID != m.container.ID {
		m.replace(c, now)
	}
	m.container = c
	open := m.gate()
	switch {
	case !open:
		m.next, m.regular = time.Time{}, time.Time{}
	case !m.open:
		m.next = m.first(now)
	case m.params.Kind == Readiness && m.result != Success && !m.next.IsZero():
		// Something changed and it is not ready: look again now instead of at the end of the period.
		if at := m.lastAt.Add(min(m.params.Period, minTrigger)); !m.lastAt.IsZero() && at.Before(m.next) {
			m.next = later(at, now)
		}
	}
	m.open = open
}

// replace begins anew with another container.
func (m *Machine) replace(c Container, now time.Time) {
	restored := m.restored != "" && m.restored == c.ID
	result := m.result
	*m = Machine{params: m.params}
	if c.ID == "" {
		return
	}
	m.cold = m.params.Kind != Liveness && !restored
	m.began = c.StartedAt
	if end := c.StartedAt.Add(startedPrecision); m.params.InitialDelay > 0 {
		m.began = end
		if now.Before(end) && !now.Before(c.StartedAt) {
			m.began = now // it runs, so it has started
		}
	}
	if restored {
		m.result = result
		m.held = m.decided()
	}
}

// gate says whether the probe may be run at all.
func (m *Machine) gate() bool {
	c := &m.container
	if c.ID == "" || !c.Running || !c.Reachable || c.Over || m.held {
		return false
	}
	if c.Ending && m.params.Kind != Readiness {
		return false
	}
	return c.Started == (m.params.Kind != Startup)
}

// first is when the first probe behind a gate that has just opened is due.
func (m *Machine) first(now time.Time) time.Time {
	if m.lastAt.IsZero() && m.result != None || m.lastAt.IsZero() && m.params.Kind == Liveness && now.Sub(m.container.StartedAt) > adoptedAfter {
		m.spread = true
		return later(m.began.Add(m.params.InitialDelay), now.Add(m.place(m.params.Period)))
	}
	return later(m.began.Add(m.params.InitialDelay), now)
}

// place is the probe's own place within d.
func (m *Machine) place(d time.Duration) time.Duration {
	return time.Duration(m.params.Spread * float64(d))
}

// Result is how one probe ended.
type Result struct {
	// ContainerID is the instance that was probed, Due when the probe was due.
	ContainerID string
	Due         time.Time
	// Outcome is Success, Failure, or Unknown when the probe could not be made.
	Outcome podplanev1.ProbeResult
}

// Ran takes the result of a probe. It says whether there is a new verdict: the first one on this container, or another
// one than before.
func (m *Machine) Ran(r Result, now time.Time) (changed bool) {
	if r.ContainerID != m.container.ID || !m.open {
		return false // it was about another container, or does not matter any more
	}
	m.lastAt = now
	extra := !m.regular.IsZero()
	m.schedule(r, now)
	if r.Outcome != Success && (extra || r.Outcome != Failure) {
		return false
	}
	if m.last == r.Outcome {
		m.run++
	} else {
		m.last, m.run = r.Outcome, 1
	}
	threshold := m.params.SuccessThreshold
	if r.Outcome == Failure {
		threshold = m.params.FailureThreshold
	}
	if m.run < threshold || m.result == r.Outcome {
		return false
	}
	m.result = r.Outcome
	if m.held = m.decided(); m.held {
		m.open, m.next = false, time.Time{}
	}
	return true
}

// decided says whether nothing but another container can change the verdict.
func (m *Machine) decided() bool {
	return m.params.Kind == Liveness && m.result == Failure || m.params.Kind == Startup && m.result != None
}

// schedule sets the next probe: a period after this one was due, or after as many as have passed meanwhile. After its
// first success a probe moves, once, to its own place in the first quarter of the next period; never earlier, so that no
// container has less time than its thresholds promise.
func (m *Machine) schedule(r Result, now time.Time) {
	p := m.params.Period
	m.next = r.Due.Add(p)
	if !m.regular.IsZero() {
		m.next, m.regular = m.regular, time.Time{}
	}
	if behind := now.Sub(m.next); behind >= 0 {
		m.next = m.next.Add((behind/p + 1) * p)
	}
	if r.Outcome == Success && !m.spread {
		m.spread = true
		m.next = m.next.Add(m.place(p / 4))
	}
	m.warmUp(r.Outcome, now)
}

// warmUp puts extra probes into the first period of a container that is not ready yet, so that one which listens a
// moment after its start does not wait for a whole period. Their failures count for nothing: thresholds are a promise
// in periods.
func (m *Machine) warmUp(outcome podplanev1.ProbeResult, now time.Time) {
	if !m.cold {
		return
	}
	m.pause = max(2*m.pause, firstExtra)
	at := now.Add(m.pause)
	if outcome == Success || !at.Before(m.next) {
		m.cold = false
		return
	}
	m.regular, m.next = m.next, at
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
