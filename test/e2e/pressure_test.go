package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

const (
	mib = 1 << 20
	// memoryMargin is how much memory becomes unavailable before the threshold of the test is crossed: more than what else goes on
	// on the host changes meanwhile. memoryExcess is how much further the pod goes.
	memoryMargin = 1536 * mib
	memoryExcess = 400 * mib

	shortTransition = "PODPLANE_EVICTD_EVICTION_PRESSURE_TRANSITION_PERIOD=3s"
)

// available is what the stack's evictd measures of a signal.
func available(t *testing.T, ctx context.Context, s *harness.Stack, signal string) int64 {
	t.Helper()
	var n int64
	testkit.Eventually(ctx, t, signal+" is measured", func(ctx context.Context) error {
		a, err := s.Want(ctx, http.StatusOK, http.MethodGet, "/podplane/v1/conditions", "", nil)
		if err != nil {
			return err
		}
		var list struct {
			Signals []struct{ Name, Available, Error string }
		}
		if err := json.Unmarshal(a.Body, &list); err != nil {
			return err
		}
		for _, x := range list.Signals {
			if x.Name == signal && x.Error == "" {
				n, err = strconv.ParseInt(x.Available, 10, 64)
				return err
			}
		}
		return fmt.Errorf("not among %s", a.Body)
	})
	return n
}

// TestMemoryPressureEvicts lets a pod take the node's memory: it is evicted, before any other pod, and the pressure ends with it.
func TestMemoryPressureEvicts(t *testing.T) {
	ctx := testContext(t)
	threshold := available(t, ctx, shared(t), "memory.available") - memoryMargin
	s := newStack(t, fmt.Sprintf("PODPLANE_EVICTD_EVICTION_HARD=memory.available<%d", threshold), shortTransition)
	heard := audit(t, s)
	want := precious(t, ctx, s)
	hog := available(t, ctx, s, "memory.available") - threshold + memoryExcess
	p, err := s.Apply(ctx, ns(t), manifest("hog", fmt.Sprintf(`
  containers: [{name: app, image: $IMAGE, args: [hog, "%d"]}]
`, hog)))
	if err != nil {
		t.Fatal(err)
	}
	wantNode(t, ctx, s, corev1.NodeMemoryPressure, corev1.ConditionTrue, "KubeletHasInsufficientMemory")
	wantEvicted(t, ctx, s, p, "memory")
	wantNode(t, ctx, s, corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory")
	wantLeftAlone(t, ctx, s, want)
	wantOrdersObeyed(t, ctx, s, p)
	if !heard.from(bus.BucketEvictions, bus.ServiceEvictd) {
		t.Errorf("evictd published no order; heard:\n%s", heard.table())
	}
	heard.check(t, s.Node())
}

// TestDiskPressureEvicts lets a pod fill the file system that volumes are on: here a small one of the test's own.
func TestDiskPressureEvicts(t *testing.T) {
	ctx, node := testContext(t), testkit.Containerd(t)
	root := filepath.Join(node.Dir, strings.ToLower(t.Name()), "lib")
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	// A tmpfs takes no memory for what is not in it; the bus wants to be able to grow.
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=8g"); err != nil {
		t.Fatalf("mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, 0); err != nil {
			t.Errorf("unmount the tmpfs: %v", err)
		}
	})
	s := newStack(t, fmt.Sprintf("PODPLANE_EVICTD_EVICTION_HARD=nodefs.available<%d", 8<<30-256*mib), shortTransition)
	want := precious(t, ctx, s)
	p, err := s.Apply(ctx, ns(t), manifest("filler", `
  volumes: [{name: v, emptyDir: {}}]
  containers: [{name: app, image: $IMAGE, args: [fill, /v/f, 400Mi], volumeMounts: [{name: v, mountPath: /v}]}]
`))
	if err != nil {
		t.Fatal(err)
	}
	wantNode(t, ctx, s, corev1.NodeDiskPressure, corev1.ConditionTrue, "KubeletHasDiskPressure")
	wantEvicted(t, ctx, s, p, "ephemeral-storage")
	wantNode(t, ctx, s, corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure")
	wantLeftAlone(t, ctx, s, want)
	wantOrdersObeyed(t, ctx, s, p)
}

// TestPressureKeepsPodsOut refuses what a kubelet would refuse while memory was short a moment ago, and takes the rest.
func TestPressureKeepsPodsOut(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	pretend(t, proc, "900000")
	s, ctx := newStack(t, "PODPLANE_EVICTD_PROC_ROOT="+proc, "PODPLANE_EVICTD_CGROUP_ROOT="+proc,
		"PODPLANE_EVICTD_EVICTION_HARD=memory.available<1Gi", "PODPLANE_EVICTD_EVICTION_PRESSURE_TRANSITION_PERIOD=1h"), testContext(t)
	wantNode(t, ctx, s, corev1.NodeMemoryPressure, corev1.ConditionTrue, "KubeletHasInsufficientMemory")
	pretend(t, proc, "4000000") // the condition stays for the transition period, and nothing is evicted
	eventually(t, ctx, "evictd sees the relief", func() bool { return available(t, ctx, s, "memory.available") > 3<<30 })
	a, err := s.Want(ctx, http.StatusTooManyRequests, http.MethodPost, pods(t), "application/yaml",
		[]byte(manifest("greedy", "\n  containers: [{name: app, image: $IMAGE, args: [sleep, forever]}]\n")))
	if err != nil {
		t.Fatal(err)
	}
	if st := status(t, a); !strings.Contains(st.Message, "MemoryPressure") {
		t.Errorf("refusal: %+v", st)
	}
	if p, err := s.Pod(ctx, ns(t), "greedy"); err != nil || p != nil {
		t.Errorf("what was refused is stored: %+v, %v", p, err)
	}
	precious(t, ctx, s)
}

// precious starts a pod that uses no more than it asked for.
func precious(t *testing.T, ctx context.Context, s *harness.Stack) harness.Life {
	t.Helper()
	if _, err := s.Apply(ctx, ns(t), manifest("precious", `
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: $IMAGE
    args: [sleep, forever]
    resources: {requests: {cpu: 10m, memory: 64Mi}, limits: {cpu: 10m, memory: 64Mi}}
`)); err != nil {
		t.Fatal(err)
	}
	p, err := s.WaitReady(ctx, ns(t), "precious")
	if err != nil {
		t.Fatal(err)
	}
	if p.Status.QOSClass != corev1.PodQOSGuaranteed {
		t.Errorf("QoS class %s, want Guaranteed", p.Status.QOSClass)
	}
	return harness.LifeOf(p)
}

func wantLeftAlone(t *testing.T, ctx context.Context, s *harness.Stack, want harness.Life) {
	t.Helper()
	p, err := s.Pod(ctx, ns(t), "precious")
	if err != nil {
		t.Fatal(err)
	}
	if !harness.IsReady(p) || harness.LifeOf(p) != want {
		t.Errorf("the pod that was to stay is %+v, was %+v", p.Status, want)
	}
}

// wantNode waits until a condition of the node has a status, and checks its reason.
func wantNode(t *testing.T, ctx context.Context, s *harness.Stack, conditionType corev1.NodeConditionType, status corev1.ConditionStatus, reason string) {
	t.Helper()
	testkit.Eventually(ctx, t, fmt.Sprintf("the node's %s is %s", conditionType, status), func(ctx context.Context) error {
		a, err := s.Want(ctx, http.StatusOK, http.MethodGet, "/api/v1/nodes/"+s.Node(), "", nil)
		if err != nil {
			return err
		}
		var n corev1.Node
		if err := json.Unmarshal(a.Body, &n); err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == conditionType && c.Status == status && c.Reason == reason {
				return nil
			}
		}
		return fmt.Errorf("conditions: %+v\n%s", n.Status.Conditions, s.Logs())
	})
}

// wantEvicted waits until a pod is evicted for a resource, and checks all that says so.
func wantEvicted(t *testing.T, ctx context.Context, s *harness.Stack, p *corev1.Pod, resource string) {
	t.Helper()
	name, uid := p.Name, p.UID
	p, err := s.WaitPod(ctx, ns(t), name, "has failed", phaseIs(corev1.PodFailed))
	if err != nil {
		t.Fatal(err)
	}
	st := p.Status
	// A container's own use of disk is in the message when the runtime has measured it already; its volumes are not counted there.
	offended := strings.Contains(st.Message, "Container app was using ")
	if st.Reason != "Evicted" || !strings.HasPrefix(st.Message, "The node was low on resource: "+resource+". Threshold quantity: ") ||
		!offended && resource == "memory" {
		t.Errorf("reason %q, message %q", st.Reason, st.Message)
	}
	disrupted := false
	for _, c := range st.Conditions {
		if c.Type == corev1.DisruptionTarget {
			disrupted = c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonTerminationByKubelet && c.Message == st.Message
		}
	}
	if !disrupted || harness.IsReady(p) {
		t.Errorf("conditions: %+v, want DisruptionTarget by TerminationByKubelet and not Ready", st.Conditions)
	}
	if len(st.ContainerStatuses) != 1 || st.ContainerStatuses[0].State.Terminated == nil {
		t.Errorf("containers: %+v, want one that is terminated", st.ContainerStatuses)
	}
	wantEvents(t, s, ns(t), name, "Evicted")
	evicted := 0
	for _, e := range events(t, s, ctx, ns(t)) {
		if e.InvolvedObject.UID != uid || e.Reason != "Evicted" {
			continue
		}
		evicted++
		if e.Type != corev1.EventTypeWarning || e.Message != st.Message || e.Annotations["starved_resource"] != resource || (e.Annotations["offending_containers"] == "app") != offended {
			t.Errorf("Event %+v", e)
		}
	}
	if evicted != 1 {
		t.Errorf("%d Events Evicted, want 1", evicted)
	}
}

// wantOrdersObeyed checks that no order is left, and that the evicted pod stays until it is deleted.
func wantOrdersObeyed(t *testing.T, ctx context.Context, s *harness.Stack, p *corev1.Pod) {
	t.Helper()
	testkit.Eventually(ctx, t, "no order is left", func(ctx context.Context) error {
		a, err := s.Want(ctx, http.StatusOK, http.MethodGet, "/podplane/v1/evictions", "", nil)
		if err == nil && strings.Contains(string(a.Body), string(p.UID)) {
			err = fmt.Errorf("orders: %s", a.Body)
		}
		return err
	})
	found, err := s.Pod(ctx, p.Namespace, p.Name)
	if err != nil || found == nil || found.UID != p.UID || found.Status.Phase != corev1.PodFailed || found.DeletionTimestamp != nil {
		t.Errorf("the evicted pod is %+v, %v; want it to stay as it ended", found, err)
	}
	if err := s.Delete(ctx, p.Namespace, p.Name, -1); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitGone(ctx, p.Namespace, p.Name); err != nil {
		t.Error(err)
	}
	wantNothingLeft(t, s, string(p.UID))
}
