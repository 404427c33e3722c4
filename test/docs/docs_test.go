// Package docs_test runs the documentation: every ```sh block of the pages,
// in order, against a real Podplane, and compares what it prints with the
// ```output block that follows.
package docs_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/hostruntime"
	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// pages are run one after the other on one Podplane; each cleans up after itself.
var pages = []string{"docs/tutorial.md", "docs/why.md", "docs/rest.md", "docs/operations.md", "docs/security.md", "docs/images.md"}

func TestPages(t *testing.T) {
	node := testkit.Containerd(t)
	s, err := harness.New(harness.Options{
		CRIEndpoint: node.Endpoint, Node: "docs", Root: filepath.Join(node.Dir, "docs"), CgroupRoot: filepath.Join(node.CgroupParent, "docs"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	importDemo(t, node)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		t.Run(page, func(t *testing.T) { runPage(t, s, page) })
	}
	t.Run("README.md", func(t *testing.T) { runReadme(t, s) })
}

// importDemo gives the runtime the image that `podplane up` brings along.
func importDemo(t *testing.T, node *testkit.Node) {
	t.Helper()
	local, err := testkit.Local()
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range hostruntime.DefaultConfig(local).Images {
		if err := node.Runtime.ImportImage(t.Context(), image); err != nil {
			t.Fatal(err)
		}
	}
}

// step is a block of commands and what they have to print.
type step struct {
	line             int
	commands, output string
	checked          bool
}

func runPage(t *testing.T, s *harness.Stack, page string) {
	text := read(t, page)
	steps := parse(text)
	if len(steps) == 0 {
		t.Fatalf("%s has no commands", page)
	}
	sh := newShell(t, s)
	for _, st := range steps {
		got := sh.run(t, fmt.Sprintf("%s:%d", page, st.line), st.commands)
		if st.checked && !matches(st.output, got) {
			t.Fatalf("%s:%d printed\n%s\nand the page says\n%s\n%s", page, st.line, got, st.output, s.Logs())
		}
	}
}

// runReadme runs the first pod of the README, whose blocks are plain.
func runReadme(t *testing.T, s *harness.Stack) {
	text := read(t, "README.md")
	_, text, ok := strings.Cut(text, "## A first pod")
	if !ok {
		t.Fatal("README.md has no first pod")
	}
	text, _, _ = strings.Cut(text, "## Where to go next")
	blocks := fences(text)
	if len(blocks) != 3 {
		t.Fatalf("the first pod has %d blocks, want commands, their output, and more commands", len(blocks))
	}
	sh := newShell(t, s)
	got := sh.run(t, "README.md, first pod", blocks[0].body+"\nbin/podplane wait web >/dev/null\nbin/podplane get pods")
	_, table, _ := strings.Cut(got[strings.LastIndex(got, "NAMESPACE"):], "\n")
	want := regexp.MustCompile(`\d+m?s|\d+\.\d+\.\d+\.\d+`)
	_, pageTable, _ := strings.Cut(blocks[1].body, "\n")
	if squeeze(want.ReplaceAllString(table, "X")) != squeeze(want.ReplaceAllString(pageTable, "X")) {
		t.Errorf("the first pod printed\n%s\nand the README says\n%s", table, pageTable)
	}
	if out := sh.run(t, "README.md, after the first pod", blocks[2].body); !strings.Contains(out, "pod/web deleted") {
		t.Errorf("deleting the first pod printed %q", out)
	}
}

func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }

// fence is a fenced block: its info string, its first line's number, its body.
type fence struct {
	info string
	line int
	body string
}

func fences(text string) []fence {
	var out []fence
	var cur *fence
	var body []string
	for i, l := range strings.Split(text, "\n") {
		switch {
		case cur == nil && strings.HasPrefix(l, "```"):
			cur, body = &fence{info: strings.TrimPrefix(l, "```"), line: i + 2}, nil
		case cur != nil && l == "```":
			cur.body = strings.Join(body, "\n")
			out, cur = append(out, *cur), nil
		case cur != nil:
			body = append(body, l)
		}
	}
	return out
}

func parse(text string) []step {
	var steps []step
	for _, f := range fences(text) {
		switch f.info {
		case "sh":
			steps = append(steps, step{line: f.line, commands: f.body})
		case "output":
			if n := len(steps); n > 0 {
				steps[n-1].output, steps[n-1].checked = f.body, true
			}
		}
	}
	return steps
}

// matches compares line by line; "..." in a line of the page stands for any
// text, and a line that is only "..." for any lines. Runs of blanks are one.
func matches(page, got string) bool {
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
	return regexp.MustCompile(pattern.String()).MatchString(strings.TrimSpace(got) + "\n")
}

// shell runs blocks one after the other in one directory; variables that a
// block sets are there in the next.
type shell struct {
	dir, vars string
	env       []string
	server    string
}

func newShell(t *testing.T, s *harness.Stack) *shell {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(s.Binary(), filepath.Join(dir, "bin", "podplane")); err != nil {
		t.Fatal(err)
	}
	return &shell{
		dir: dir, vars: filepath.Join(t.TempDir(), "vars"), server: s.Server(),
		env: append(os.Environ(), "PODPLANE_SERVER="+s.Server(), "MANIFEST_DIR="+s.ManifestDir(), "NODE="+s.Node(), "RUN_DIR="+s.RunDir()),
	}
}

func (sh *shell) run(t *testing.T, what, commands string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	commands = strings.ReplaceAll(commands, "http://127.0.0.1:8080", sh.server)
	script := "set -e\n[ ! -f '" + sh.vars + "' ] || . '" + sh.vars + "'\n" + commands + "\ndeclare -p IP before after >'" + sh.vars + "' 2>/dev/null || true\n"
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir, cmd.Env = sh.dir, sh.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s\n%s", what, err, commands, out)
	}
	return string(out)
}

func read(t *testing.T, page string) string {
	t.Helper()
	path, err := harness.FindUp(page)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestMatches(t *testing.T) {
	for _, tc := range []struct {
		page, got string
		want      bool
	}{
		{"a\nb", "a\nb\n", true},
		{"a\nb", "a\nc\n", false},
		{"a ... c", "a   b c\n", true},
		{"a\n...\nz", "a\nb\nc\nz\n", true},
		{"a\n...\nz", "a\nz\n", true},
		{"a", "a\nb\n", false},
		{"...x...", "1x2\n", true},
		{"", "\n", true},
	} {
		if got := matches(tc.page, tc.got); got != tc.want {
			t.Errorf("matches(%q, %q) = %v, want %v", tc.page, tc.got, got, tc.want)
		}
	}
}
