package diff_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/pleg/internal/diff"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expected output of the scripts in testdata")

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

func since(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Sub(epoch).String()
}

// TestScripts runs testdata/*.txt: blocks of input, "----", the events that follow from it.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(want))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(want) {
				t.Errorf("%s:\n--- got\n%s\n--- want\n%s", file, got, want)
			}
		})
	}
}

func runScript(t *testing.T, script string) string {
	t.Helper()
	var out bytes.Buffer
	state := diff.Pod{}
	var horizon time.Time
	for i, block := range strings.Split(strings.TrimRight(script, "\n"), "\n\n") {
		if i > 0 {
			out.WriteString("\n")
		}
		input, _, _ := strings.Cut(block, "\n----")
		out.WriteString(input + "\n")
		obs, ok := parseBlock(t, input, &horizon)
		if !ok {
			continue
		}
		out.WriteString("----\n")
		next, events, again := diff.Diff(state, obs, horizon)
		state = next
		for _, e := range events {
			writeEvent(&out, e)
		}
		if again {
			out.WriteString("again\n")
		}
	}
	return out.String()
}

func writeEvent(out *bytes.Buffer, e diff.Event) {
	fmt.Fprintf(out, "%s %s at=%s via=%s", e.Type, e.Object.ID, since(e.OccurredAt), e.Via)
	if e.Type == diff.ContainerDied {
		fmt.Fprintf(out, " exit=%d known=%t reason=%s", e.Object.ExitCode, e.ExitKnown, e.Reason)
	}
	for _, c := range e.Containers {
		fmt.Fprintf(out, " [%s %s]", c.ID, c.Phase)
	}
	out.WriteString("\n")
}

// parseBlock reads one observation: a line "relist from=1 to=2" or "stream at=3 [removed=id]", then lines
// "sandbox <id> <ready|notready> k=v…" and "container <id> <name> <state> k=v…". Lines with # are comments.
func parseBlock(t *testing.T, input string, horizon *time.Time) (diff.Observation, bool) {
	t.Helper()
	obs := diff.Observation{Pod: pod.RuntimePod{UID: "uid", Namespace: "ns", Name: "web"}}
	ok := false
	for line := range strings.SplitSeq(input, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		kv := options(t, words)
		switch words[0] {
		case "horizon":
			*horizon = at(kv["at"])
		case "relist":
			obs.Complete, obs.Via, obs.Pod.ObservedAt, obs.At, ok = true, diff.ViaRelist, at(kv["from"]), at(kv["to"]), true
		case "stream":
			obs.Via, obs.Pod.ObservedAt, obs.At, ok = diff.ViaStream, at(kv["at"]), at(kv["at"]), true
		case "removed":
			obs.RemovedID, obs.RemovedAt = words[1], at(kv["at"])
		case "sandbox":
			s := pod.Sandbox{ID: words[1], UID: "uid", Ready: words[2] == "ready", CreatedAt: at(kv["created"]), Attempt: uint32(kv["attempt"])}
			if _, ok := kv["ip"]; ok {
				s.IPs = []string{"10.0.0.1"}
			}
			obs.Pod.Sandboxes = append(obs.Pod.Sandboxes, s)
		case "container":
			obs.Pod.Containers = append(obs.Pod.Containers, scriptContainer(t, words, kv))
		default:
			t.Fatalf("unknown line %q", line)
		}
	}
	obs.Pod.Sort()
	return obs, ok
}

func scriptContainer(t *testing.T, words []string, kv map[string]int) pod.Container {
	t.Helper()
	c := pod.Container{ID: words[1], Name: words[2], SandboxID: "s1", CreatedAt: at(kv["created"]), Attempt: uint32(kv["attempt"])}
	if err := c.State.UnmarshalText([]byte(strings.ToUpper(words[3][:1]) + words[3][1:])); err != nil {
		t.Fatal(err)
	}
	if s, ok := kv["started"]; ok {
		c.StartedAt = at(s)
	}
	if s, ok := kv["finished"]; ok {
		c.FinishedAt, c.ExitCode, c.Reason = at(s), int32(kv["exit"]), "Error"
	}
	return c
}

func options(t *testing.T, words []string) map[string]int {
	t.Helper()
	kv := make(map[string]int)
	for _, w := range words[1:] {
		k, v, ok := strings.Cut(w, "=")
		if !ok {
			continue
		}
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("%q: %v", w, err)
		}
		kv[k] = n
	}
	return kv
}
