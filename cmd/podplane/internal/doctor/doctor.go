// Package doctor is `podplane doctor`: it looks at the host, the runtime, the bus and what Podplane has there, and says what is wrong, why it
// matters and how to mend it. It changes nothing.
//
// Gather takes the facts (all input and output is there, bounded by the context); Judge makes findings of them and is a pure function. What can't be
// looked at is a finding too: nothing is passed over in silence.
package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Level is how bad a finding is.
type Level string

// The levels.
const (
	// OK: as it should be.
	OK Level = "ok"
	// Warning: Podplane runs, and something works worse than it could, or will not work for long.
	Warning Level = "warning"
	// Problem: Podplane, or pods, do not work.
	Problem Level = "problem"
)

// Finding is what was found about one thing.
type Finding struct {
	// Check names the thing, as in "cgroups".
	Check string `json:"check"`
	Level Level  `json:"level"`
	// Found is what is there.
	Found string `json:"found"`
	// Why says what follows, Mend what to do about it; both are empty where all is well.
	Why  string `json:"why,omitempty"`
	Mend string `json:"mend,omitempty"`
}

func ok(check, format string, args ...any) Finding {
	return Finding{Check: check, Level: OK, Found: fmt.Sprintf(format, args...)}
}

// Judge says what the facts mean, in the order in which things build on each other.
func Judge(f Facts) []Finding {
	var all []Finding
	for _, check := range []func(Facts) []Finding{
		judgeUser, judgeCgroups, judgeMounts, judgeKernel, judgeClock, judgeDisks, judgePorts, judgeRuntime, judgeBus, judgeRecords, judgeServices, judgeLeftovers,
	} {
		all = append(all, check(f)...)
	}
	return all
}

// Worst is the worst level of the findings.
func Worst(findings []Finding) Level {
	worst := OK
	for _, f := range findings {
		if f.Level == Problem || worst == OK {
			worst = f.Level
		}
		if worst == Problem {
			return worst
		}
	}
	return worst
}

// Print writes the findings for people.
func Print(w io.Writer, findings []Finding) error {
	count := map[Level]int{}
	var b strings.Builder
	for _, f := range findings {
		count[f.Level]++
		fmt.Fprintf(&b, "%-8s %-14s %s\n", f.Level, f.Check, f.Found)
		if f.Level == OK {
			continue
		}
		fmt.Fprintf(&b, "%24s%s\n", "why: ", f.Why)
		fmt.Fprintf(&b, "%24s%s\n", "mend: ", f.Mend)
	}
	fmt.Fprintf(&b, "%d ok, %d warnings, %d problems\n", count[OK], count[Warning], count[Problem])
	_, err := io.WriteString(w, b.String())
	return err
}

// PrintJSON writes the findings for programs.
func PrintJSON(w io.Writer, findings []Finding) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(struct {
		Worst    Level     `json:"worst"`
		Findings []Finding `json:"findings"`
	}{Worst(findings), findings})
}
