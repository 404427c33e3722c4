package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

// fleet is three hosts on one bus: a network namespace, a NATS server, a containerd and a Podplane each.
type fleet struct {
	*harness.Network
	bus   *harness.Cluster
	hosts []string
	on    map[string]*harness.Stack
	nodes map[string]*testkit.Node
}

// fleetTimeout bounds a test of a fleet, which waits for elections and for silences to be noticed.
const fleetTimeout = 8 * time.Minute

func newFleet(t *testing.T, ctx context.Context) *fleet {
	t.Helper()
	f := &fleet{hosts: []string{"a", "b", "c"}, on: map[string]*harness.Stack{}, nodes: map[string]*testkit.Node{}}
	for _, h := range f.hosts {
		f.nodes[h] = testkit.NewNode(t)
	}
	binary, err := harness.FindUp(filepath.Join("bin", "podplane"))
	if err != nil {
		t.Fatal(err)
	}
	if f.Network, err = harness.NewNetwork(f.hosts...); err != nil {
		t.Fatal(err)
	}
	closing := func(what func(context.Context) error) {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), testTimeout)
			defer cancel()
			if err := what(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	closing(func(context.Context) error { return f.Network.Close() })
	if f.bus, err = harness.NewCluster(f.Network, f.nodes["a"].Dir, binary, f.hosts...); err != nil {
		t.Fatal(err)
	}
	closing(f.bus.Close)
	for _, h := range f.hosts {
		if err := f.bus.Start(h); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range f.hosts {
		n := f.nodes[h]
		if f.on[h], err = harness.New(harness.Options{
			CRIEndpoint: n.Endpoint, Node: h, Root: filepath.Join(n.Dir, "up"), CgroupRoot: filepath.Join(n.CgroupParent, h),
			HostArgs: f.bus.UpArgs(h), NetNS: f.NetNS(h),
		}); err != nil {
			t.Fatal(err)
		}
		closing(f.on[h].Close)
	}
	errs := make(chan error, len(f.hosts))
	for _, h := range f.hosts {
		go func() { errs <- f.on[h].Start(ctx) }()
	}
	for range f.hosts {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, f.bus.Logs())
	}
	return f
}

// pod is a manifest of a pod for a node ("": for none) that is Ready when its command can be run in it.
func (f *fleet) pod(name, node string) string {
	m := manifest(name, `
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: $IMAGE
    args: [seq, echo, hello from `+name+`, --, sleep, forever]
    readinessProbe: {exec: {command: [/app, echo, ready]}, periodSeconds: 1}
`)
	if node != "" {
		m += "  nodeName: " + node + "\n"
	}
	return m
}

// post sends a pod to the gateway of a host.
func (f *fleet) post(t *testing.T, ctx context.Context, via, query, body string) harness.Answer {
	t.Helper()
	a, err := f.on[via].Call(ctx, http.MethodPost, pods(t)+query, "application/yaml", []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// create posts a pod that has to be taken.
func (f *fleet) create(t *testing.T, ctx context.Context, via, name, node string) *corev1.Pod {
	t.Helper()
	a := f.post(t, ctx, via, "", f.pod(name, node))
	if a.Code != http.StatusCreated {
		t.Fatalf("pod %s for node %s via %s: %d %s\n%s", name, node, via, a.Code, a.Body, f.on[via].Logs())
	}
	var p corev1.Pod
	if err := json.Unmarshal(a.Body, &p); err != nil {
		t.Fatal(err)
	}
	return &p
}

// nodeReady is the status of a node's Ready condition as a host's gateway tells it.
func (f *fleet) nodeReady(ctx context.Context, via, node string) (corev1.ConditionStatus, error) {
	a, err := f.on[via].Want(ctx, http.StatusOK, http.MethodGet, "/api/v1/nodes/"+node, "", nil)
	if err != nil {
		return "", err
	}
	var n corev1.Node
	if err := json.Unmarshal(a.Body, &n); err != nil {
		return "", err
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status, nil
		}
	}
	return "", fmt.Errorf("node %s has no condition Ready", node)
}

func (f *fleet) waitNode(t *testing.T, ctx context.Context, via, node string, want corev1.ConditionStatus) {
	t.Helper()
	testkit.Eventually(ctx, t, "node "+node+" is Ready="+string(want)+" via "+via, func(ctx context.Context) error {
		got, err := f.nodeReady(ctx, via, node)
		if err == nil && got != want {
			err = fmt.Errorf("it is %s", got)
		}
		return err
	})
}

// names are the names of the pods in the test's namespace, sorted, as a host's gateway tells them.
func (f *fleet) names(t *testing.T, ctx context.Context, via, query string) []string {
	t.Helper()
	a, err := f.on[via].Want(ctx, http.StatusOK, http.MethodGet, pods(t)+query, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	var l corev1.PodList
	if err := json.Unmarshal(a.Body, &l); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range l.Items {
		names = append(names, p.Name)
	}
	return names
}

// wantAsBefore checks that pods are the same, have never restarted and run the same containers.
func (f *fleet) wantAsBefore(t *testing.T, ctx context.Context, via string, before map[string]*corev1.Pod) {
	t.Helper()
	for name, was := range before {
		p, err := f.on[via].WaitReady(ctx, ns(t), name)
		if err != nil {
			t.Error(err)
			continue
		}
		s := p.Status.ContainerStatuses[0]
		if p.UID != was.UID || s.RestartCount != 0 || s.ContainerID != was.Status.ContainerStatuses[0].ContainerID {
			t.Errorf("pod %s was %s with %s and is %s with %s after %d restarts", name, was.UID, was.Status.ContainerStatuses[0].ContainerID, p.UID, s.ContainerID, s.RestartCount)
		}
	}
}

// refusedForNow checks that a write is answered with 503 and when to try again.
func refusedForNow(t *testing.T, what string, a harness.Answer) {
	t.Helper()
	if a.Code != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
		t.Errorf("%s: got %d, Retry-After %q, %s", what, a.Code, a.Header.Get("Retry-After"), a.Body)
	}
}
