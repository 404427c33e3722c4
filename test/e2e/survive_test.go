package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/podplane/podplane/test/harness"
)

// back is within which everything has to have converged after a kill.
const back = 5 * time.Second

const survivor = `
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: $IMAGE
    args: [serve, -addr, ":8080"]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
    livenessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
`

// TestKillEachService kills one service after the other, then the bus: the pod
// keeps its container, its Ready and its transition time, and a new pod starts.
func TestKillEachService(t *testing.T) {
	s, ctx := newStack(t), testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("survivor", survivor)); err != nil {
		t.Fatal(err)
	}
	p, err := s.WaitReady(ctx, ns(t), "survivor")
	if err != nil {
		t.Fatal(err)
	}
	want := harness.LifeOf(p)
	for i, name := range append([]string{"nats"}, harness.Services...) {
		if err := s.Kill(name); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		fresh := fmt.Sprintf("fresh-%d", i)
		if err := applyUntilStored(ctx, s, ns(t), manifest(fresh, survivor)); err != nil {
			t.Fatalf("after the kill of %s: %v", name, err)
		}
		if _, err := s.WaitReady(ctx, ns(t), fresh); err != nil {
			t.Fatalf("after the kill of %s: %v", name, err)
		}
		t.Logf("%s killed; a new pod was Ready after %v", name, time.Since(began).Round(time.Millisecond))
		p, err := s.Pod(ctx, ns(t), "survivor")
		if err != nil {
			t.Fatal(err)
		}
		if got := harness.LifeOf(p); got != want {
			t.Errorf("after the kill of %s: %+v, want %+v", name, got, want)
		}
	}
}

// TestKillEverything kills all processes at once and starts again: same
// container, same counts.
func TestKillEverything(t *testing.T) {
	s, ctx := newStack(t), testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("survivor", survivor)); err != nil {
		t.Fatal(err)
	}
	p, err := s.WaitReady(ctx, ns(t), "survivor")
	if err != nil {
		t.Fatal(err)
	}
	want := harness.LifeOf(p)
	if err := s.KillAll(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	wantSame(t, ctx, s, "survivor", want)
}

// TestCtrlCLeavesPodsAndTheNextUpAdoptsThem is the README's promise.
func TestCtrlCLeavesPodsAndTheNextUpAdoptsThem(t *testing.T) {
	s, ctx := newStack(t), testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("survivor", survivor)); err != nil {
		t.Fatal(err)
	}
	p, err := s.WaitReady(ctx, ns(t), "survivor")
	if err != nil {
		t.Fatal(err)
	}
	want := harness.LifeOf(p)
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if body := get(t, "http://"+p.Status.PodIP+":8080/healthz"); body == "" {
		t.Error("the pod does not answer while Podplane is down")
	}
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	wantSame(t, ctx, s, "survivor", want)
}

// wantSame waits until the pod is Ready and compares, then looks again after a
// second: what flips, flips soon.
func wantSame(t *testing.T, ctx context.Context, s *harness.Stack, name string, want harness.Life) {
	t.Helper()
	for range 2 {
		p, err := s.WaitReady(ctx, ns(t), name)
		if err != nil {
			t.Fatal(err)
		}
		if got := harness.LifeOf(p); got != want {
			t.Errorf("pod is %+v, was %+v", got, want)
		}
		wait(t, ctx, time.Second)
	}
}

// TestBusAway answers 503 with Retry-After while the bus is away, keeps pods
// running, and loses nothing that was answered 201.
func TestBusAway(t *testing.T) {
	s, ctx := newStack(t), testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("stored", survivor)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitReady(ctx, ns(t), "stored"); err != nil {
		t.Fatal(err)
	}
	release, err := s.Hold("nats")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = release() })
	a, err := s.Want(ctx, http.StatusServiceUnavailable, http.MethodPost, pods(t), "application/yaml", []byte(manifest("refused", survivor)))
	if err != nil {
		t.Fatal(err)
	}
	if a.Header.Get("Retry-After") == "" {
		t.Errorf("503 without Retry-After: %v", a.Header)
	}
	status(t, a)
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if err := applyUntilStored(ctx, s, ns(t), manifest("later", survivor)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"stored", "later"} {
		if _, err := s.WaitReady(ctx, ns(t), name); err != nil {
			t.Error(err)
		}
	}
}

// applyUntilStored repeats a POST that was answered 503, as Retry-After asks,
// or that met no gateway, and takes a 409 for an earlier try's success.
func applyUntilStored(ctx context.Context, s *harness.Stack, namespace, m string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		a, err := s.Call(ctx, http.MethodPost, "/api/v1/namespaces/"+namespace+"/pods", "application/yaml", []byte(m))
		switch {
		case err == nil && (a.Code == http.StatusCreated || a.Code == http.StatusConflict):
			return nil
		case err == nil && a.Code != http.StatusServiceUnavailable && a.Code != http.StatusGatewayTimeout:
			return fmt.Errorf("POST: %d: %s", a.Code, a.Body)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("never stored: %w (last: %d %s %v)", ctx.Err(), a.Code, a.Body, err)
		case <-tick.C:
		}
	}
}
