package harness

import (
	"regexp"
	"strings"
)

// Step is a block of commands of a page and what they have to print.
type Step struct {
	Line             int
	Commands, Output string
	// Checked: the page has the output.
	Checked bool
}

// Fence is a fenced block: its info string, its first line's number, its body.
type Fence struct {
	Info string
	Line int
	Body string
}

// Fences lists the fenced blocks of a page.
func Fences(text string) []Fence {
	var out []Fence
	var cur *Fence
	var body []string
	for i, l := range strings.Split(text, "\n") {
		switch {
		case cur == nil && strings.HasPrefix(l, "```"):
			cur, body = &Fence{Info: strings.TrimPrefix(l, "```"), Line: i + 2}, nil
		case cur != nil && l == "```":
			cur.Body = strings.Join(body, "\n")
			out, cur = append(out, *cur), nil
		case cur != nil:
			body = append(body, l)
		}
	}
	return out
}

// Steps lists the blocks to run, ```sh, each with the ```output that follows it.
func Steps(text string) []Step {
	var steps []Step
	for _, f := range Fences(text) {
		switch f.Info {
		case "sh":
			steps = append(steps, Step{Line: f.Line, Commands: f.Body})
		case "output":
			if n := len(steps); n > 0 {
				steps[n-1].Output, steps[n-1].Checked = f.Body, true
			}
		}
	}
	return steps
}

// Matches compares what a page says with what was printed, line by line; "..." in a line of the page stands for any
// text, and a line that is only "..." for any lines. Runs of blanks are one.
func Matches(page, got string) bool {
	var pattern strings.Builder
	pattern.WriteString(`^\s*`)
	for _, l := range strings.Split(strings.TrimSpace(page), "\n") {
		if strings.TrimSpace(l) == "..." {
			pattern.WriteString(`(?:[^\n]*\n)*`)
			continue
		}
		q := regexp.QuoteMeta(strings.TrimSpace(l))
		q = strings.ReplaceAll(q, `\.\.\.`, `[^\n]*`)
		q = regexp.MustCompile(` +`).ReplaceAllString(q, `[ \t]+`)
		pattern.WriteString(`[ \t]*` + q + `[ \t]*\n`)
	}
	pattern.WriteString(`\s*$`)
	return regexp.MustCompile(pattern.String()).MatchString(strings.TrimSpace(strings.ReplaceAll(got, "\r\n", "\n")) + "\n")
}
