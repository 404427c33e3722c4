package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/test/harness"
)

// TestRequests fills a node with what pods ask for: what does not fit is refused, a critical pod makes others go.
func TestRequests(t *testing.T) {
	t.Parallel()
	s, ctx := newStack(t), testContext(t)
	a, err := s.Want(ctx, http.StatusOK, http.MethodGet, "/api/v1/nodes/"+s.Node(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	var node corev1.Node
	if err := json.Unmarshal(a.Body, &node); err != nil {
		t.Fatal(err)
	}
	cpus := node.Status.Allocatable.Cpu().MilliValue()
	asks := func(name string, milli int64, more string) string {
		return manifest(name, fmt.Sprintf("\n  terminationGracePeriodSeconds: 1%s\n  containers: [{name: app, image: $IMAGE, args: [sleep, forever], resources: {requests: {cpu: %dm}}}]\n", more, milli))
	}
	refused := func(code int, manifest string, words ...string) {
		t.Helper()
		a, err := s.Call(ctx, http.MethodPost, pods(t), "application/yaml", []byte(manifest))
		if err != nil || a.Code != code {
			t.Fatalf("got %d %s %v, want %d", a.Code, a.Body, err, code)
		}
		for _, w := range words {
			if !strings.Contains(string(a.Body), w) {
				t.Errorf("%s does not say %q", a.Body, w)
			}
		}
	}
	big := runReady(t, ctx, s, asks("big", cpus-300, ""))
	small := runReady(t, ctx, s, asks("small", 100, ""))
	refused(http.StatusTooManyRequests, asks("another", 201, ""), "OutOfcpu", "Node didn't have enough resource: cpu, requested: 201m, used: ")
	refused(http.StatusUnprocessableEntity, asks("huge", cpus+1, ""), "OutOfcpu")

	critical := runReady(t, ctx, s, asks("critical", 500, "\n  priorityClassName: system-node-critical"))
	gone, err := s.WaitPod(ctx, ns(t), "big", "failed", phaseIs(corev1.PodFailed))
	if err != nil {
		t.Fatal(err)
	}
	if gone.Status.Reason != "Preempting" || !strings.Contains(gone.Status.Message, "critical pod "+ns(t)+"/critical") || gone.UID != big.UID {
		t.Errorf("got %+v", gone.Status)
	}
	wantEvents(t, s, ns(t), "big", "Preempting")
	runReady(t, ctx, s, asks("another", 201, "")) // big holds nothing any more

	// Who was taken is not asked again.
	if err := s.Kill("syncd"); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, "syncd is back", func() bool {
		a, err := s.Call(ctx, http.MethodPost, pods(t), "application/yaml", []byte(asks("huge", cpus+1, "")))
		return err == nil && a.Code == http.StatusUnprocessableEntity
	})
	for _, want := range []*corev1.Pod{small, critical} {
		p, err := s.WaitReady(ctx, ns(t), want.Name)
		if err != nil || p.UID != want.UID || p.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("%s after a kill of syncd: %+v, %v", want.Name, p, err)
		}
	}
}

// runReady posts a pod and waits until it is ready.
func runReady(t *testing.T, ctx context.Context, s *harness.Stack, manifest string) *corev1.Pod {
	t.Helper()
	p, err := s.Apply(ctx, ns(t), manifest)
	if err != nil {
		t.Fatal(err)
	}
	if p, err = s.WaitReady(ctx, p.Namespace, p.Name); err != nil {
		t.Fatal(err)
	}
	return p
}
