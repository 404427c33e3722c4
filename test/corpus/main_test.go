// Package corpus_test runs the manifests under cases: each says in Kubernetes' own words what a pod asks for, and what must come of it
// on a node. All are posted at once to one Podplane on a real containerd. README.md describes the format.
package corpus_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/podplane/podplane/internal/image"
	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

// patience bounds each step of a case. All cases share the host, so it is many times what one step takes alone.
const patience = 2 * time.Minute

func TestMain(m *testing.M) { testkit.Main(m) }

// TestCorpus runs every case. To run one: go test ./test/corpus -run 'TestCorpus/env-expansion$'.
func TestCorpus(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("cases", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	selected := selection()
	files = slices.DeleteFunc(files, func(f string) bool { return !selected(caseName(f)) })
	s := startStack(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type outcome struct {
		name string
		done chan error
	}
	outcomes := make([]outcome, 0, len(files))
	for _, f := range files {
		o := outcome{name: caseName(f), done: make(chan error, 1)}
		outcomes = append(outcomes, o)
		go func() { o.done <- runFile(ctx, s, f) }()
	}
	for _, o := range outcomes {
		err := <-o.done
		t.Run(o.name, func(t *testing.T) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if t.Failed() {
		t.Log(s.Logs())
	}
}

func caseName(file string) string { return strings.TrimSuffix(filepath.Base(file), ".yaml") }

// selection says which cases -run asks for, so that one can be run alone: the subtests only report what already happened.
func selection() func(name string) bool {
	pattern := ""
	for i, a := range os.Args {
		switch {
		case strings.HasPrefix(a, "-test.run="):
			pattern = strings.TrimPrefix(a, "-test.run=")
		case a == "-test.run" && i+1 < len(os.Args):
			pattern = os.Args[i+1]
		}
	}
	_, sub, found := strings.Cut(pattern, "/")
	if !found {
		return func(string) bool { return true }
	}
	return func(name string) bool { return matches(sub, name) }
}

func startStack(t *testing.T) *stack {
	t.Helper()
	node := testkit.Containerd(t)
	name := "corpus"
	s := &stack{node: node, cgroup: filepath.Join(node.CgroupParent, name)}
	var err error
	s.Stack, err = harness.New(harness.Options{
		CRIEndpoint: node.Endpoint, Node: name, Root: filepath.Join(node.Dir, name), CgroupRoot: s.cgroup,
		// Back-offs are as in Kubernetes but for their cap, so that restarts need not be waited for.
		Env: slices.Concat(resourceEnv, []string{
			"PODPLANE_EVICTD_EVICTION_HARD=memory.available<1Mi", // a disk that others fill is not what is tested
			"PODPLANE_SYNCD_MAX_RESTART_DELAY=3s", "PODPLANE_SYNCD_CLUSTER_DOMAIN=cluster.local", "PODPLANE_SYNCD_CLUSTER_DNS=10.96.0.10",
			"PODPLANE_SYNCD_ALLOWED_UNSAFE_SYSCTLS=net.core.*", "PODPLANE_SYNCD_POD_PIDS_LIMIT=200",
			"PODPLANE_SYNCD_ADMIT_BY_REQUESTS=false", // all cases share a host that may be small
			"PODPLANE_SYNCD_RUNTIME_CLASS_DIR=" + filepath.Join(node.Dir, name, "lib", "runtimeclasses"),
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
		if left, err := leftCgroups(node.CgroupParent); err != nil || len(left) > 0 {
			t.Errorf("pods' cgroups are left: %v, %v", left, err)
		}
	})
	if err := errors.Join(s.prepare(), s.pushUsers(t.Context())); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return s
}

// stack is the Podplane that all cases share.
type stack struct {
	*harness.Stack
	node   *testkit.Node
	cgroup string
}

// prepare makes the files of the node that cases refer to.
func (s *stack) prepare() error {
	files, err := filepath.Glob(filepath.Join("node", "*", "*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel("node", f)
		if err != nil {
			return err
		}
		to := filepath.Join(s.Root(), rel)
		errs = append(errs, os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, data, 0o644))
	}
	return errors.Join(errs...)
}

// pushUsers puts the test image into the registry under names that say which user it runs as.
func (s *stack) pushUsers(ctx context.Context) error {
	local, err := testkit.Local()
	if err != nil {
		return err
	}
	img, err := image.ReadArchive(filepath.Join(local, "images", "app.tar"))
	if err != nil {
		return err
	}
	for name, user := range map[string]string{"number": "1000", "name": "app", "zero": "0", "root": "root"} {
		file, err := img.ConfigFile()
		if err != nil {
			return err
		}
		config := file.Config
		config.User = user
		own, err := mutate.Config(img, config)
		if err != nil {
			return err
		}
		if _, err := s.node.Registry.Push(ctx, "user-"+name+":1", own); err != nil {
			return err
		}
	}
	return nil
}
