// Package docs_test runs the documentation: every ```sh block of the pages,
// in order, against a real Podplane, and compares what it prints with the
// ```output block that follows.
package docs_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
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
var pages = []string{"docs/tutorial.md", "docs/why.md", "docs/rest.md", "docs/operations.md", "docs/security.md", "docs/images.md", "docs/nodes.md", "docs/manifests.md", "docs/resources.md"}

func TestPages(t *testing.T) {
	node := testkit.Containerd(t)
	www := t.TempDir()
	site := httptest.NewServer(http.FileServer(http.Dir(www)))
	t.Cleanup(site.Close)
	t.Setenv("WWW", www)
	s, err := harness.New(harness.Options{
		CRIEndpoint: node.Endpoint, Node: "docs", Root: filepath.Join(node.Dir, "docs"), CgroupRoot: filepath.Join(node.CgroupParent, "docs"),
		Args: []string{"--manifest-url", site.URL + "/pods.json"}, Env: []string{"PODPLANE_SYNCD_MANIFEST_URL_RESCAN=1s"},
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
		t.Run(page, func(t *testing.T) {
			oneReplicaEach(t, s)
			runPage(t, s, page)
		})
	}
	t.Run("README.md", func(t *testing.T) { runReadme(t, s) })
}

// TestObservabilityPage runs the page about traces beside a Jaeger.
func TestObservabilityPage(t *testing.T) {
	node, jaeger := testkit.Containerd(t), testkit.StartJaeger(t)
	s, err := harness.New(harness.Options{
		CRIEndpoint: node.Endpoint, Node: "observed", Root: filepath.Join(node.Dir, "observed"), CgroupRoot: filepath.Join(node.CgroupParent, "observed"),
		Env: jaeger.Env(),
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
	runPage(t, s, "docs/observability.md", "http://127.0.0.1:16686", jaeger.Query)
}

// importDemo gives the runtime the image that `podplane up` brings along.
// oneReplicaEach waits until a replica that a page killed is not registered any more: another page counts them.
func oneReplicaEach(t *testing.T, s *harness.Stack) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	testkit.Eventually(ctx, t, "one replica of each service", func(ctx context.Context) error {
		list, err := s.Services(ctx)
		if err == nil && len(list) != len(harness.Services) {
			err = fmt.Errorf("there are %d: %+v", len(list), list)
		}
		return err
	})
}

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

// runPage runs a page; replace are pairs of what it says and what stands for that here.
func runPage(t *testing.T, s *harness.Stack, page string, replace ...string) {
	text := strings.NewReplacer(replace...).Replace(read(t, page))
	steps := harness.Steps(text)
	if len(steps) == 0 {
		t.Fatalf("%s has no commands", page)
	}
	sh := newShell(t, s)
	for _, st := range steps {
		got := sh.run(t, fmt.Sprintf("%s:%d", page, st.Line), st.Commands)
		if st.Checked && !harness.Matches(st.Output, got) {
			t.Fatalf("%s:%d printed\n%s\nand the page says\n%s\n%s", page, st.Line, got, st.Output, s.Logs())
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
	blocks := harness.Fences(text)
	if len(blocks) != 3 {
		t.Fatalf("the first pod has %d blocks, want commands, their output, and more commands", len(blocks))
	}
	sh := newShell(t, s)
	got := sh.run(t, "README.md, first pod", blocks[0].Body+"\nbin/podplane wait web >/dev/null\nbin/podplane get pods")
	_, table, _ := strings.Cut(got[strings.LastIndex(got, "NAMESPACE"):], "\n")
	want := regexp.MustCompile(`\d+m?s|\d+\.\d+\.\d+\.\d+`)
	_, pageTable, _ := strings.Cut(blocks[1].Body, "\n")
	if squeeze(want.ReplaceAllString(table, "X")) != squeeze(want.ReplaceAllString(pageTable, "X")) {
		t.Errorf("the first pod printed\n%s\nand the README says\n%s", table, pageTable)
	}
	if out := sh.run(t, "README.md, after the first pod", blocks[2].Body); !strings.Contains(out, "pod/web deleted") {
		t.Errorf("deleting the first pod printed %q", out)
	}
}

func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }

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
		env: append([]string{harness.NoDiskPressure}, append(os.Environ(), "PODPLANE_SERVER="+s.Server(), "MANIFEST_DIR="+s.ManifestDir(), "NODE="+s.Node(), "RUN_DIR="+s.RunDir(), "ROOT="+s.Root(), "POD_LOG_DIR="+s.PodLogDir())...),
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
		if got := harness.Matches(tc.page, tc.got); got != tc.want {
			t.Errorf("Matches(%q, %q) = %v, want %v", tc.page, tc.got, got, tc.want)
		}
	}
}
