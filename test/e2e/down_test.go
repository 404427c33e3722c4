package e2e_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

// TestDownPodsLeavesNothing: `down --pods` removes pods of every source, and what is left does not bind the next `up`, which may give the node
// another name.
func TestDownPodsLeavesNothing(t *testing.T) {
	t.Parallel()
	node := testkit.Containerd(t)
	root := filepath.Join(node.Dir, ns(t))
	for _, name := range []string{"here", "renamed"} {
		s, err := harness.New(harness.Options{
			CRIEndpoint: node.Endpoint, Node: ns(t) + "-" + name, Root: root, CgroupRoot: filepath.Join(node.CgroupParent, ns(t)),
		})
		if err != nil {
			t.Fatal(err)
		}
		upAndDown(t, s)
	}
}

// upAndDown starts a stack, a pod of each source on it, and ends it with its pods.
func upAndDown(t *testing.T, s *harness.Stack) {
	t.Helper()
	ctx := testContext(t)
	closed := false
	defer func() {
		if !closed {
			_ = s.Close(context.WithoutCancel(ctx))
		}
	}()
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	short := "\n  terminationGracePeriodSeconds: 1\n  containers: [{name: app, image: $IMAGE, args: [sleep, forever]}]\n"
	put(t, filepath.Join(s.ManifestDir(), "static.yaml"), strings.Replace(manifest("static", short), "metadata:", "metadata:\n  namespace: "+ns(t), 1))
	if _, err := s.Apply(ctx, ns(t), manifest("posted", short)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"posted", "static-" + s.Node()} {
		if _, err := s.WaitReady(ctx, ns(t), name); err != nil {
			t.Fatal(err)
		}
	}
	closed = true
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	wantNoStrayContainers(t, s, 0)
}
