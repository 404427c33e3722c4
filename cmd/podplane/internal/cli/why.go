package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/cmd/podplane/internal/rest"
)

func whyCommand(e *env) *cobra.Command {
	var container, since, output, uid string
	var limit uint32
	cmd := &cobra.Command{
		Use:   "why [POD]",
		Short: "Tell what happened to a pod and why, also when it is gone",
		Long: "Tell what happened to a pod, what was decided upon it and what was done, from the journals, oldest first.\n" +
			"Each line begins with its time and ends with the id of the trace that it belongs to.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := e.client()
			if err != nil {
				return err
			}
			if (uid == "") == (len(args) == 0) {
				return fmt.Errorf("name a pod, or give --uid")
			}
			q := url.Values{"namespace": {e.namespace}}
			if len(args) == 1 {
				q.Set("pod", args[0])
			}
			for key, value := range map[string]string{"container": container, "since": since, "uid": uid} {
				if value != "" {
					q.Set(key, value)
				}
			}
			if limit > 0 {
				q.Set("limit", fmt.Sprint(limit))
			}
			data, err := c.Do(cmd.Context(), rest.Request{Method: http.MethodGet, Path: "/podplane/v1/why", Query: q})
			if err != nil {
				return err
			}
			return printWhy(cmd.OutOrStdout(), data, output)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&container, "container", "c", "", "only what is about this container or the pod as a whole")
	f.StringVar(&uid, "uid", "", "the pod's UID, instead of its name")
	f.StringVar(&since, "since", "", "an RFC 3339 time or a duration back from now, such as 10m; empty: all that is kept")
	f.Uint32Var(&limit, "limit", 0, "at most so many lines, the newest; 0: 500")
	f.StringVarP(&output, "output", "o", "", "json or wide (where each step was read); empty: text")
	return cmd
}

func printWhy(w io.Writer, data []byte, output string) error {
	switch output {
	case "json":
		var out any
		if err := json.Unmarshal(data, &out); err != nil {
			return fmt.Errorf("answer is not JSON: %w", err)
		}
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(out)
	case "", "wide":
	default:
		return fmt.Errorf("--output %q: want json or wide", output)
	}
	var y rest.Why
	if err := json.Unmarshal(data, &y); err != nil {
		return fmt.Errorf("decode the answer: %w", err)
	}
	fmt.Fprintf(w, "pod %s/%s, UID %s: %s\n", y.Namespace, y.Name, y.UID, y.Phase)
	if y.LeftOut > 0 {
		fmt.Fprintf(w, "(%d older lines left out: --limit)\n", y.LeftOut)
	}
	for i := range y.Chains {
		fmt.Fprintln(w, whyLine(&y.Chains[i], output == "wide"))
	}
	now := time.Now()
	for _, x := range y.Waiting {
		what := x.Step
		if x.Resource != x.Step {
			what += " " + x.Resource
		}
		fmt.Fprintf(w, "now: waits %s for %s: %s%s\n", waitedFor(x.Since, now), what, x.Message, inTrace(y.TraceID))
	}
	for _, x := range y.Missing {
		fmt.Fprintf(w, "missing: %s\n", x)
	}
	if n := len(y.EarlierUIDs); n > 0 {
		fmt.Fprintf(w, "earlier pods of this name: %s\n", strings.Join(y.EarlierUIDs, " "))
	}
	return nil
}

// whyLine is a chain as one line: its time, then event -> decision -> action, then its trace.
func whyLine(c *rest.WhyChain, wide bool) string {
	var b strings.Builder
	b.WriteString(clock(c.At))
	for i := range c.Steps {
		s := &c.Steps[i]
		if i > 0 {
			b.WriteString(" ->")
			if gap := s.At.Sub(c.Steps[i-1].At); gap >= time.Second {
				fmt.Fprintf(&b, " (+%s)", gap.Round(100*time.Millisecond))
			}
		}
		b.WriteString(" " + strings.Join(strings.Fields(s.Text), " "))
		if wide {
			b.WriteString(" {" + s.Source + "}")
		}
	}
	b.WriteString(inTrace(c.TraceID))
	return b.String()
}

func inTrace(id string) string {
	if id == "" {
		return ""
	}
	return "  [trace " + id + "]"
}

// clock is a time in the local zone, with the date where it is not today's.
func clock(t time.Time) string {
	t = t.Local()
	if y, m, d := time.Now().Date(); t.Year() == y && t.Month() == m && t.Day() == d {
		return t.Format("15:04:05.000")
	}
	return t.Format("2006-01-02 15:04:05.000")
}

func waitedFor(since, now time.Time) string {
	if since.IsZero() {
		return ""
	}
	return now.Sub(since).Round(100 * time.Millisecond).String()
}
