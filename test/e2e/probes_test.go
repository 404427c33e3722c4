package e2e_test

import (
	"net"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/test/harness"
)

// TestProbeHandlers becomes Ready by each kind of probe.
func TestProbeHandlers(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	for name, probe := range map[string]string{
		"http": "httpGet: {path: /healthz, port: web}",
		"tcp":  "tcpSocket: {port: 8080}",
		"exec": "exec: {command: [/app, get, \"http://127.0.0.1:8080/healthz\"]}",
	} {
		if _, err := s.Apply(ctx, ns(t), manifest(name, `
  containers:
  - name: app
    image: $IMAGE
    args: [serve, -addr, ":8080"]
    ports: [{name: web, containerPort: 8080}]
    startupProbe: {`+probe+`, periodSeconds: 1, failureThreshold: 30}
    readinessProbe: {`+probe+`, periodSeconds: 1}
    livenessProbe: {`+probe+`, periodSeconds: 1}
`)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"http", "tcp", "exec"} {
		p, err := s.WaitReady(ctx, ns(t), name)
		if err != nil {
			t.Error(err)
			continue
		}
		if n := p.Status.ContainerStatuses[0].RestartCount; n != 0 {
			t.Errorf("%s was restarted %d times", name, n)
		}
	}
}

// TestLivenessRestarts restarts a container that turns unhealthy.
func TestLivenessRestarts(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("sick", `
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: $IMAGE
    args: [serve, -addr, ":8080", -unhealthy-after, 2s]
    livenessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 2}
`)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitPod(ctx, ns(t), "sick", "was restarted", func(p *corev1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount >= 1
	}); err != nil {
		t.Fatal(err)
	}
	wantEvents(t, s, ns(t), "sick", "Unhealthy", "Killing")
}

// TestReadinessFollowsTheApplication goes True, False and True without a restart.
func TestReadinessFollowsTheApplication(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("moody", `
  containers:
  - name: app
    image: $IMAGE
    args: [serve, -addr, ":8080"]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 1}
`)); err != nil {
		t.Fatal(err)
	}
	p, err := s.WaitReady(ctx, ns(t), "moody")
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + net.JoinHostPort(p.Status.PodIP, "8080")
	post(t, base+"/healthz?ok=false", http.StatusServiceUnavailable)
	if _, err := s.WaitPod(ctx, ns(t), "moody", "is not Ready", func(p *corev1.Pod) bool { return p != nil && !harness.IsReady(p) }); err != nil {
		t.Fatal(err)
	}
	post(t, base+"/healthz?ok=true", http.StatusOK)
	p, err = s.WaitReady(ctx, ns(t), "moody")
	if err != nil {
		t.Fatal(err)
	}
	if n := p.Status.ContainerStatuses[0].RestartCount; n != 0 {
		t.Errorf("restarted %d times for its readiness", n)
	}
}

func post(t *testing.T, url string, want int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(""))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != want {
		t.Fatalf("POST %s: %s", url, resp.Status)
	}
}
