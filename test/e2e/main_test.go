// Package e2e_test tests Podplane as a user meets it: the real binary, a real
// containerd, a real bus, over REST.
package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

// image is the test program's image, present on every node.
const image = testkit.App

// testTimeout bounds a test's waits: ten times what one takes on a quiet host.
const testTimeout = 3 * time.Minute

func TestMain(m *testing.M) {
	// The shared stack ends before the runtime that it runs on.
	testkit.Main(m, closeShared)
}

var sharedStack struct {
	once  sync.Once
	stack *harness.Stack
	err   error
}

// shared is the Podplane that tests share; each has a namespace of its own.
func shared(t *testing.T) *harness.Stack {
	t.Helper()
	sharedStack.once.Do(func() {
		sharedStack.stack, sharedStack.err = start(testkit.Containerd(t), "shared")
	})
	if sharedStack.err != nil {
		t.Fatal(sharedStack.err)
	}
	s := sharedStack.stack
	t.Cleanup(func() { deleteAll(t, s) })
	return s
}

func closeShared() error {
	if sharedStack.stack == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	return sharedStack.stack.Close(ctx)
}

// newStack is a Podplane of the test's own, on the shared runtime.
func newStack(t *testing.T, env ...string) *harness.Stack {
	t.Helper()
	return newStackOn(t, testkit.Containerd(t), env...)
}

func newStackOn(t *testing.T, node *testkit.Node, env ...string) *harness.Stack {
	t.Helper()
	s, err := start(node, strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")), env...)
	if s != nil {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
			defer cancel()
			if err := s.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func start(node *testkit.Node, name string, env ...string) (*harness.Stack, error) {
	s, err := harness.New(harness.Options{
		CRIEndpoint: node.Endpoint, Node: name, Root: filepath.Join(node.Dir, name),
		CgroupRoot: filepath.Join(node.CgroupParent, name), Env: env,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	return s, s.Start(ctx)
}

// deleteAll removes what the test left in its namespace.
func deleteAll(t *testing.T, s *harness.Stack) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if _, err := s.Want(ctx, 200, "DELETE", pods(t)+"?gracePeriodSeconds=1", "", nil); err != nil {
		t.Errorf("clean up: %v", err)
		return
	}
	testkit.Eventually(ctx, t, "the test's pods are gone", func(ctx context.Context) error {
		a, err := s.Want(ctx, 200, "GET", pods(t), "", nil)
		if err != nil {
			return err
		}
		var l corev1.PodList
		if err := json.Unmarshal(a.Body, &l); err != nil {
			return err
		}
		if len(l.Items) > 0 {
			return fmt.Errorf("%d pods are left, the first: %s %+v", len(l.Items), l.Items[0].Name, l.Items[0].Status)
		}
		return nil
	})
}

func testContext(t *testing.T) context.Context { return testContextOf(t, testTimeout) }

func testContextOf(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// ns is the test's namespace: its name in lower case.
func ns(t *testing.T) string {
	name, _, _ := strings.Cut(t.Name(), "/")
	name = strings.ToLower(name)
	return name[:min(len(name), 63)]
}

func pods(t *testing.T) string { return "/api/v1/namespaces/" + ns(t) + "/pods" }

// manifest is a Pod with the given spec, in which $IMAGE is the test image.
func manifest(name, spec string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata:\n  name: " + name + "\nspec:" + strings.ReplaceAll(spec, "$IMAGE", image)
}

// otherImage is the test image under another name.
func otherImage(t *testing.T) string {
	t.Helper()
	return testkit.Containerd(t).Registry.Name("app:1")
}

func list(t *testing.T, s *harness.Stack, path string) corev1.PodList {
	t.Helper()
	a, err := s.Want(t.Context(), 200, "GET", path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	var l corev1.PodList
	if err := json.Unmarshal(a.Body, &l); err != nil {
		t.Fatal(err)
	}
	return l
}

func phaseIs(phase corev1.PodPhase) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == phase }
}

// eventually is testkit's, for conditions that have nothing more to say.
func eventually(t *testing.T, ctx context.Context, what string, condition func() bool) {
	t.Helper()
	testkit.Eventually(ctx, t, what, func(context.Context) error {
		if !condition() {
			return errors.New("not yet")
		}
		return nil
	})
}

// wait lets time pass where a test needs it to: to kill at a random moment, and
// to see that something does not happen.
func wait(t *testing.T, ctx context.Context, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
}

// wantEvents waits until there is an Event of each reason about the pod.
func wantEvents(t *testing.T, s *harness.Stack, namespace, name string, reasons ...string) {
	t.Helper()
	testkit.Eventually(testContext(t), t, "Events of the pod", func(ctx context.Context) error {
		seen := map[string]bool{}
		for _, e := range events(t, s, ctx, namespace) {
			if e.InvolvedObject.Name == name {
				seen[e.Reason] = true
			}
		}
		for _, r := range reasons {
			if !seen[r] {
				return fmt.Errorf("no Event %s about %s/%s, only %v", r, namespace, name, seen)
			}
		}
		return nil
	})
}

// wantNothingLeft checks that the runtime, the mount table, the cgroups and
// the disk know nothing of a pod that is gone.
func wantNothingLeft(t *testing.T, s *harness.Stack, uid string) {
	t.Helper()
	testkit.Eventually(testContext(t), t, "nothing is left of pod "+uid, func(ctx context.Context) error {
		return left(ctx, testkit.Containerd(t).Client(t), s, uid)
	})
}

func left(ctx context.Context, client *cri.Client, s *harness.Stack, uid string) error {
	rt, err := client.PodStatus(ctx, uid)
	if err != nil {
		return err
	}
	if !rt.Empty() {
		return fmt.Errorf("the runtime has %d sandboxes and %d containers of it", len(rt.Sandboxes), len(rt.Containers))
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	if strings.Contains(string(mounts), uid) {
		return errors.New("a mount of it is left")
	}
	for _, dir := range []string{filepath.Join(s.Root(), "pods"), s.PodLogDir()} {
		found, err := filepath.Glob(filepath.Join(dir, "*"+uid))
		if err != nil || len(found) > 0 {
			return fmt.Errorf("directories of it are left: %v %w", found, err)
		}
	}
	return cgroupLeft(uid)
}

// cgroupLeft finds a pod's cgroup in any hierarchy.
func cgroupLeft(uid string) error {
	return filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return nil // it went while we looked
		}
		if d.IsDir() && strings.Contains(d.Name(), uid) {
			return fmt.Errorf("cgroup %s is left", path)
		}
		return nil
	})
}

// wantNoStrayContainers checks that the runtime runs just as many containers
// of the stack's node as there are pods.
func wantNoStrayContainers(t *testing.T, s *harness.Stack, want int) {
	t.Helper()
	client, err := cri.Dial(t.Context(), testkit.Containerd(t).Endpoint, cri.Options{Node: s.Node()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	testkit.Eventually(testContext(t), t, "only the pods' sandboxes and containers are left", func(ctx context.Context) error {
		list, err := client.ListPods(ctx, cri.Filter{})
		if err != nil {
			return err
		}
		if len(list) != want {
			return fmt.Errorf("the runtime has %d pods, want %d", len(list), want)
		}
		for _, p := range list {
			if len(p.Sandboxes) != 1 || len(p.Containers) != 1 {
				return fmt.Errorf("pod %s has %d sandboxes and %d containers, want one of each", p.Name, len(p.Sandboxes), len(p.Containers))
			}
		}
		return nil
	})
}

// condition is the status of a condition of the node.
func condition(t *testing.T, s *harness.Stack, conditionType string) string {
	t.Helper()
	a, err := s.Want(t.Context(), 200, "GET", "/podplane/v1/conditions", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	var l struct {
		Conditions []struct{ Type, Status string } `json:"conditions"`
	}
	if err := json.Unmarshal(a.Body, &l); err != nil {
		t.Fatal(err)
	}
	for _, c := range l.Conditions {
		if c.Type == conditionType {
			return c.Status
		}
	}
	return ""
}

// freePort is a port that nobody listens on now.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
