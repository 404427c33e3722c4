package verdict_test

import (
	"testing"
	"time"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/prober/internal/verdict"
)

// FuzzMachine feeds a machine with any order of happenings and checks what must always hold.
func FuzzMachine(f *testing.F) {
	f.Add(uint8(2), uint8(1), uint8(1), uint8(3), []byte{0, 16, 5, 5, 5, 6, 6, 6})
	f.Add(uint8(3), uint8(0), uint8(2), uint8(2), []byte{0, 4, 4, 5, 5, 1, 0, 2, 3})
	f.Fuzz(func(t *testing.T, kind, delay, success, failure uint8, steps []byte) {
		p := verdict.Params{
			Kind: podplanev1.ProbeKind(kind%3 + 1), InitialDelay: time.Duration(delay) * time.Second, Period: 10 * time.Second,
			SuccessThreshold: int(success%4) + 1, FailureThreshold: int(failure%4) + 1, Spread: float64(success) / 256,
		}
		m := verdict.New(p)
		now := time.Unix(1_800_000_000, 0)
		c := verdict.Container{Reachable: true}
		var started time.Time
		var row []podplanev1.ProbeResult // results in a row on this container
		for _, s := range steps {
			before, id := m.Verdict(), m.ContainerID()
			changed := false
			switch s % 12 {
			case 0:
				c = verdict.Container{ID: string(rune('a' + s%20)), Running: true, Reachable: true, Started: p.Kind != verdict.Startup, StartedAt: now.Truncate(time.Second)}
			case 1:
				c.Running = !c.Running
			case 2:
				c.Started = !c.Started
			case 3:
				c.Ending = true
			case 4, 5, 6, 7, 8:
				outcome := []podplanev1.ProbeResult{verdict.Success, verdict.Success, verdict.Failure, verdict.Failure, verdict.Unknown}[s%12-4]
				due := m.Next()
				if due.IsZero() {
					break
				}
				if due.After(now) {
					now = due
				}
				if now.Before(started.Add(p.InitialDelay)) {
					t.Fatal("probed before the initial delay was over")
				}
				if !c.Running || c.ID == "" || c.Started == (p.Kind == verdict.Startup) || c.Ending && p.Kind != verdict.Readiness {
					t.Fatalf("a probe is due for %+v", c)
				}
				if len(row) > 0 && outcome != verdict.Unknown && row[0] != outcome {
					row = nil
				}
				if outcome != verdict.Unknown {
					row = append(row, outcome)
				}
				changed = m.Ran(verdict.Result{ContainerID: id, Due: due, Outcome: outcome}, now)
				if n := m.Next(); !n.IsZero() && !n.After(now) {
					t.Fatalf("the next probe was due %s ago", now.Sub(n))
				}
			case 9:
				changed = m.Ran(verdict.Result{ContainerID: "other", Due: now, Outcome: verdict.Failure}, now)
				if changed {
					t.Fatal("a result about another container changed the verdict")
				}
			default:
				now = now.Add(time.Duration(s) * 100 * time.Millisecond)
			}
			if s%12 < 4 {
				if c.ID != id {
					row, started, before = nil, c.StartedAt, verdict.None
				}
				m.Observe(c, now)
			}
			after := m.Verdict()
			if changed != (after != before) {
				t.Fatalf("changed %v, from %s to %s", changed, before, after)
			}
			threshold := map[podplanev1.ProbeResult]int{verdict.Success: p.SuccessThreshold, verdict.Failure: p.FailureThreshold}[after]
			if changed && (len(row) < threshold || row[0] != after) {
				t.Fatalf("verdict %s after %v, threshold %d", after, row, threshold)
			}
		}
	})
}
