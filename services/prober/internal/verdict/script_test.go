package verdict_test

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/prober/internal/verdict"
)

var rewrite = flag.Bool("rewrite", false, "write what the machine does into the scripts")

// TestScripts runs the scripts in testdata. A line that starts with "> " is the machine's state after the line before
// it. Commands:
//
//	probe <kind> [delay=1s] [period=10s] [success=1] [failure=3] [spread=0.5]
//	container <id> [started=false] [running=false] [reachable=false] [ending] [over] [age=1m]   what the status says
//	status                           the status was written again
//	ok | fail | unknown              the probe that is due was run, with this result
//	late <duration> ok|fail          the probe ran this much later than it was due
//	stale <id> ok|fail               a result that is about another container arrives
//	wait <duration>
//	restart                          another process begins with the recorded verdict
func TestScripts(t *testing.T) {
	t.Parallel()
	scripts, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, path := range scripts {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(want))
			if *rewrite {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(want) {
				t.Errorf("the machine does something else than the script says; it does:\n%s", got)
			}
		})
	}
}

type world struct {
	params    verdict.Params
	machine   verdict.Machine
	container verdict.Container
	now       time.Time
	verdicts  string
}

func runScript(t *testing.T, text string) string {
	t.Helper()
	w := &world{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	var out strings.Builder
	for sc := bufio.NewScanner(strings.NewReader(text)); sc.Scan(); {
		line := sc.Text()
		if strings.HasPrefix(line, "> ") {
			continue
		}
		out.WriteString(line + "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		w.verdicts = ""
		if err := w.do(strings.Fields(line)); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out.WriteString("> " + w.state() + "\n")
	}
	return out.String()
}

func (w *world) do(f []string) error {
	switch f[0] {
	case "probe":
		return w.probe(f[1], f[2:])
	case "container":
		return w.observe(f[1], f[2:])
	case "status":
		w.machine.Observe(w.container, w.now)
	case "ok", "fail", "unknown":
		w.ran(w.machine.ContainerID(), f[0], 0)
	case "late":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			return err
		}
		w.ran(w.machine.ContainerID(), f[2], d)
	case "stale":
		w.ran(f[1], f[2], 0)
	case "wait":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			return err
		}
		w.now = w.now.Add(d)
	case "restart":
		id, v := w.machine.ContainerID(), w.machine.Verdict()
		w.machine = verdict.New(w.params)
		w.machine.Restore(id, v)
		w.machine.Observe(w.container, w.now)
	default:
		return fmt.Errorf("no such command")
	}
	return nil
}

func (w *world) probe(kind string, options []string) error {
	w.params = verdict.Params{Period: 10 * time.Second, SuccessThreshold: 1, FailureThreshold: 3}
	w.params.Kind = podplanev1.ProbeKind(podplanev1.ProbeKind_value["PROBE_KIND_"+strings.ToUpper(kind)])
	for _, o := range options {
		name, value, _ := strings.Cut(o, "=")
		var err error
		switch name {
		case "delay":
			w.params.InitialDelay, err = time.ParseDuration(value)
		case "period":
			w.params.Period, err = time.ParseDuration(value)
		case "success":
			w.params.SuccessThreshold, err = strconv.Atoi(value)
		case "failure":
			w.params.FailureThreshold, err = strconv.Atoi(value)
		case "spread":
			w.params.Spread, err = strconv.ParseFloat(value, 64)
		default:
			err = fmt.Errorf("no such option: %s", name)
		}
		if err != nil {
			return err
		}
	}
	w.machine = verdict.New(w.params)
	return nil
}

func (w *world) observe(id string, options []string) error {
	c := verdict.Container{ID: id, Running: true, Started: w.params.Kind != verdict.Startup, Reachable: true, StartedAt: w.now.Truncate(time.Second)}
	if id == w.container.ID {
		c.StartedAt = w.container.StartedAt
	}
	for _, o := range options {
		name, value, _ := strings.Cut(o, "=")
		switch name {
		case "started":
			c.Started = value == "true"
		case "running":
			c.Running = value == "true"
		case "reachable":
			c.Reachable = value == "true"
		case "ending":
			c.Ending = true
		case "over":
			c.Over = true
		case "age":
			age, err := time.ParseDuration(value)
			if err != nil {
				return err
			}
			c.StartedAt = w.now.Add(-age).Truncate(time.Second)
		default:
			return fmt.Errorf("no such option: %s", name)
		}
	}
	w.container = c
	w.machine.Observe(c, w.now)
	return nil
}

func (w *world) ran(id, result string, late time.Duration) {
	due := w.machine.Next()
	if due.After(w.now) {
		w.now = due
	}
	w.now = w.now.Add(late)
	outcome := map[string]podplanev1.ProbeResult{"ok": verdict.Success, "fail": verdict.Failure, "unknown": verdict.Unknown}[result]
	if w.machine.Ran(verdict.Result{ContainerID: id, Due: due, Outcome: outcome}, w.now) {
		w.verdicts = "verdict " + strings.TrimPrefix(w.machine.Verdict().String(), "PROBE_RESULT_") + "; "
	}
}

func (w *world) state() string {
	next := "no probe is due"
	if n := w.machine.Next(); !n.IsZero() {
		next = "due in " + n.Sub(w.now).String()
	}
	return w.verdicts + next
}
