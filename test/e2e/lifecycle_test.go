package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

// lifecycleEvent is an event of pleg's journal, as REST answers it.
type lifecycleEvent struct {
	ID          string    `json:"id"`
	Type        string    `json:"type"`
	Container   string    `json:"container"`
	ContainerID string    `json:"containerId"`
	SandboxID   string    `json:"sandboxId"`
	ExitCode    *int32    `json:"exitCode"`
	OccurredAt  time.Time `json:"occurredAt"`
	ObservedAt  time.Time `json:"observedAt"`
	Via         string    `json:"via"`
}

// lifecycle is the journal of one pod, oldest first.
func lifecycle(ctx context.Context, s *harness.Stack, uid string) ([]lifecycleEvent, error) {
	a, err := s.Want(ctx, 200, "GET", "/podplane/v1/lifecycle?uid="+uid, "", nil)
	if err != nil {
		return nil, err
	}
	var list []lifecycleEvent
	lines := bufio.NewScanner(bytes.NewReader(a.Body))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Result struct {
				Event lifecycleEvent `json:"event"`
			} `json:"result"`
			Event *lifecycleEvent `json:"event"`
		}
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("decode %q: %w", lines.Text(), err)
		}
		if line.Event != nil {
			list = append(list, *line.Event)
		} else {
			list = append(list, line.Result.Event)
		}
	}
	return list, lines.Err()
}

// wantLifecycle waits until the pod's journal holds as many events as wanted, and checks which, that each has another
// ID, and that each object's events are in order.
func wantLifecycle(t *testing.T, ctx context.Context, s *harness.Stack, uid string, want map[string]int) []lifecycleEvent {
	t.Helper()
	total := 0
	for _, n := range want {
		total += n
	}
	var list []lifecycleEvent
	testkit.Eventually(ctx, t, "the pod's lifecycle", func(ctx context.Context) (err error) {
		if list, err = lifecycle(ctx, s, uid); err == nil && len(list) < total {
			err = fmt.Errorf("%d of %d events", len(list), total)
		}
		return err
	})
	got, ids, orders := map[string]int{}, map[string]bool{}, map[string]int{}
	for _, e := range list {
		got[e.Type]++
		if ids[e.ID] {
			t.Errorf("event %s twice", e.ID)
		}
		ids[e.ID] = true
		object := e.SandboxID + "/" + e.ContainerID
		order := slices.Index([]string{
			"", containerCreated, containerStarted, containerDied, containerRemoved, sandboxStarted, sandboxStopped, sandboxRemoved,
		}, e.Type)
		if order <= orders[object] {
			t.Errorf("%s of %s is out of order", e.Type, object)
		}
		orders[object] = order
	}
	for ty, n := range want {
		if got[ty] != n {
			t.Errorf("%d events %s, want %d", got[ty], ty, n)
		}
	}
	if len(list) != total {
		t.Errorf("%d events, want %d: %v", len(list), total, got)
	}
	return list
}

const (
	containerCreated = "LIFECYCLE_TYPE_CONTAINER_CREATED"
	containerStarted = "LIFECYCLE_TYPE_CONTAINER_STARTED"
	containerDied    = "LIFECYCLE_TYPE_CONTAINER_DIED"
	containerRemoved = "LIFECYCLE_TYPE_CONTAINER_REMOVED"
	sandboxStarted   = "LIFECYCLE_TYPE_SANDBOX_STARTED"
	sandboxStopped   = "LIFECYCLE_TYPE_SANDBOX_STOPPED"
	sandboxRemoved   = "LIFECYCLE_TYPE_SANDBOX_REMOVED"
)

// TestLifecycle reads a pod's whole life in the journal.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	p, err := s.Apply(ctx, ns(t), manifest("once", `
  restartPolicy: Never
  containers: [{name: app, image: $IMAGE, args: [exit, "7"]}]
`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitPod(ctx, ns(t), "once", "has failed", phaseIs(corev1.PodFailed)); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(ctx, ns(t), "once", 1); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitGone(ctx, ns(t), "once"); err != nil {
		t.Fatal(err)
	}
	for _, e := range wantLifecycle(t, ctx, s, string(p.UID), map[string]int{
		sandboxStarted: 1, containerCreated: 1, containerStarted: 1, containerDied: 1, containerRemoved: 1, sandboxStopped: 1, sandboxRemoved: 1,
	}) {
		if e.Type == containerDied && (e.ExitCode == nil || *e.ExitCode != 7 || e.Container != "app") {
			t.Errorf("death: %+v", e)
		}
		if e.OccurredAt.After(e.ObservedAt) || e.ObservedAt.Sub(e.OccurredAt) > time.Minute {
			t.Errorf("%s occurred at %s and was seen at %s", e.Type, e.OccurredAt, e.ObservedAt)
		}
	}
}

// TestLifecycleWithoutPleg: what happens while pleg is killed again and again is in the journal, once.
func TestLifecycleWithoutPleg(t *testing.T) {
	s, ctx := newStack(t), testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("twice", `
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: $IMAGE, args: [serve, -addr, ":8080"], livenessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 1}}]
`)); err != nil {
		t.Fatal(err)
	}
	killPleg(t, s)
	p, err := s.WaitReady(ctx, ns(t), "twice")
	if err != nil {
		t.Fatal(err)
	}
	client := testkit.Containerd(t).Client(t)
	for range 2 {
		old := harness.ContainerID(p, "app")
		killPleg(t, s)
		if err := client.StopContainer(ctx, old, 0); err != nil {
			t.Fatal(err)
		}
		killPleg(t, s)
		if p, err = s.WaitPod(ctx, ns(t), "twice", "runs again", func(p *corev1.Pod) bool {
			id := harness.ContainerID(p, "app")
			return harness.IsReady(p) && id != "" && id != old
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Delete(ctx, ns(t), "twice", 1); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitGone(ctx, ns(t), "twice"); err != nil {
		t.Fatal(err)
	}
	wantLifecycle(t, ctx, s, string(p.UID), map[string]int{
		sandboxStarted: 1, containerCreated: 3, containerStarted: 3, containerDied: 3, containerRemoved: 3, sandboxStopped: 1, sandboxRemoved: 1,
	})
}

// killPleg kills pleg; a pleg that is dead at this moment was killed.
func killPleg(t *testing.T, s *harness.Stack) {
	t.Helper()
	if err := s.Kill("pleg"); err != nil && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}
