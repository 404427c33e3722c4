package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

// pretend makes a /proc in which the test decides how much memory is free, in KiB of 8 GB.
func pretend(t *testing.T, dir, free string) {
	t.Helper()
	for name, content := range map[string]string{
		"meminfo": "MemTotal: 8000000 kB\nMemFree: " + free + " kB\nInactive(file): 0 kB\n",
		"loadavg": "0 0 0 1/100 1\n", "sys/kernel/pid_max": "32768\n", "sys/kernel/threads-max": "32768\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path+".new", []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMemoryPressure makes the node short of memory: the pod that uses most beyond its request goes, and only that one;
// the node says so and recovers.
func TestMemoryPressure(t *testing.T) {
	proc := t.TempDir()
	pretend(t, proc, "4000000")
	s, ctx := newStack(t, "PODPLANE_EVICTD_PROC_ROOT="+proc, "PODPLANE_EVICTD_CGROUP_ROOT="+proc,
		"PODPLANE_EVICTD_EVICTION_HARD=memory.available<1Gi", "PODPLANE_EVICTD_EVICTION_PRESSURE_TRANSITION_PERIOD=5s"), testContext(t)
	// The greedy one takes its whole grace to end: time enough to relieve the node meanwhile.
	for name, spec := range map[string]string{"modest": "args: [sleep, forever], resources: {requests: {memory: 2Gi}}", "greedy": "args: [stubborn]"} {
		if _, err := s.Apply(ctx, ns(t), manifest(name, `
  terminationGracePeriodSeconds: 30
  containers: [{name: app, image: $IMAGE, `+spec+`}]
`)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.WaitReady(ctx, ns(t), name); err != nil {
			t.Fatal(err)
		}
	}
	wantRank(t, ctx, s, "greedy", "modest")
	pretend(t, proc, "900000")
	eventually(t, ctx, "an order", func() bool {
		a, err := s.Want(ctx, 200, "GET", "/podplane/v1/evictions", "", nil)
		return err == nil && strings.Contains(string(a.Body), "greedy")
	})
	pretend(t, proc, "4000000")
	p, err := s.WaitPod(ctx, ns(t), "greedy", "is evicted", phaseIs(corev1.PodFailed))
	if err != nil {
		t.Fatal(err)
	}
	if p.Status.Reason != "Evicted" || !strings.Contains(p.Status.Message, "low on resource: memory") || harness.Condition(p, corev1.DisruptionTarget) != corev1.ConditionTrue {
		t.Errorf("evicted pod: reason %q, message %q, conditions %v", p.Status.Reason, p.Status.Message, p.Status.Conditions)
	}
	wantEvents(t, s, ns(t), "greedy", "Evicted")
	eventually(t, ctx, "the order is gone", func() bool {
		a, err := s.Want(ctx, 200, "GET", "/podplane/v1/evictions", "", nil)
		return err == nil && !strings.Contains(string(a.Body), "greedy")
	})
	eventually(t, ctx, "MemoryPressure ends", func() bool { return condition(t, s, "MemoryPressure") == "False" })
	if p, err := s.Pod(ctx, ns(t), "modest"); err != nil || !harness.IsReady(p) {
		t.Errorf("the other pod: %v, %v", p, err)
	}
}

// wantRank asks who would go first.
func wantRank(t *testing.T, ctx context.Context, s *harness.Stack, first, second string) {
	t.Helper()
	testkit.Eventually(ctx, t, "the ranking", func(ctx context.Context) error {
		a, err := s.Want(ctx, 200, "GET", "/podplane/v1/evictions/rank?signal=memory.available", "", nil)
		if err != nil {
			return err
		}
		var l struct {
			Pods []struct{ Name, Usage, Reason string } `json:"pods"`
		}
		if err := json.Unmarshal(a.Body, &l); err != nil {
			return err
		}
		if len(l.Pods) != 2 || l.Pods[0].Name != first || l.Pods[1].Name != second || l.Pods[0].Usage == "0" || l.Pods[0].Usage == "" {
			return fmt.Errorf("ranking: %s", a.Body)
		}
		return nil
	})
}
