//go:build compose

// Package compose_test runs deploy/ as it stands with a real Docker and Compose, which run.sh starts.
package compose_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Main(m, func() error { http.DefaultClient.CloseIdleConnections(); return nil })
}

const pod = `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 2
  volumes: [{name: memory, emptyDir: {medium: Memory}}]
  containers:
  - name: web
    image: podplane.local/demo:1
    volumeMounts: [{name: memory, mountPath: /memory}]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
    livenessProbe: {exec: {command: [/app, exists, /memory]}, periodSeconds: 1}
`

// TestDeployment follows a user: up, a pod, looking at it, accidents, down, up again, down for good.
func TestDeployment(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	before := mounts(t)
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := exec.Command("/usr/bin/docker", "ps", "-a").CombinedOutput() // only to explain
			t.Logf("%s\n%s", out, logs())
		}
		if out, err := compose(context.WithoutCancel(ctx), "down", "-v", "--timeout", "5"); err != nil {
			t.Errorf("down -v: %v: %s", err, out)
		}
	})
	began := time.Now()
	must(t)(compose(ctx, "build"))
	t.Logf("built in %s", time.Since(began).Round(time.Second))
	began = time.Now()
	must(t)(compose(ctx, "up", "-d", "--wait", "--wait-timeout", "180"))
	t.Logf("up after %s", time.Since(began).Round(time.Second))
	traceID := create(ctx, t)
	first := ready(ctx, t, "")
	testSteps(ctx, t, traceID, first)

	must(t)(compose(ctx, "down"))
	if left := left(ctx, t); !slices.Equal(left, []string{
		"volume podplane_authority", "volume podplane_containerd", "volume podplane_keys", "volume podplane_logs", "volume podplane_nats",
		"volume podplane_nats-config", "volume podplane_prometheus", "volume podplane_run", "volume podplane_state",
	}) {
		t.Errorf("down left %v, want the named volumes only", left)
	}
	checkHost(t, before)
	must(t)(compose(ctx, "up", "-d", "--wait", "--wait-timeout", "180"))
	if again := ready(ctx, t, ""); again.UID != first.UID {
		t.Errorf("after down and up the pod is %s, want %s as before", again.UID, first.UID)
	}
	remove(ctx, t)
	must(t)(compose(ctx, "down", "-v"))
	if left := left(ctx, t); len(left) > 0 {
		t.Errorf("down -v left %v", left)
	}
	checkHost(t, before)
}

func testSteps(ctx context.Context, t *testing.T, traceID string, first *corev1.Pod) {
	t.Run("log", func(t *testing.T) {
		answer, err := request(ctx, http.MethodGet, gateway+"/api/v1/namespaces/default/pods/web/log", "")
		if err != nil || !strings.Contains(answer, "listening on") {
			t.Errorf("got %q, %v", answer, err)
		}
	})
	t.Run("trace", func(t *testing.T) { testTrace(ctx, t, traceID) })
	t.Run("metrics", func(t *testing.T) { testMetrics(ctx, t) })
	t.Run("privileges", func(t *testing.T) { testPrivileges(ctx, t) })
	t.Run("tls", func(t *testing.T) { testTLS(ctx, t) })
	t.Run("certificates renewed", func(t *testing.T) { testRenewal(ctx, t) })
	t.Run("keys lost", func(t *testing.T) { testLostKeys(ctx, t) })
	t.Run("scale", func(t *testing.T) { testScale(ctx, t) })
	t.Run("upgrade", func(t *testing.T) { testUpgrade(ctx, t) })
	t.Run("kills", func(t *testing.T) { testKills(ctx, t, first) })
	t.Run("containerd killed", func(t *testing.T) { testContainerdKilled(ctx, t) })
	t.Run("runtime killed", func(t *testing.T) { testRuntimeKilled(ctx, t) })
	t.Run("sandbox killed", func(t *testing.T) { testSandboxKilled(ctx, t) })
}

// testTrace finds one trace that spans every service and the runtime.
func testTrace(ctx context.Context, t *testing.T, id string) {
	want := []string{"containerd", "podplane-gateway", "podplane-pleg", "podplane-prober", "podplane-syncd", "podplane-volumed"}
	testkit.Eventually(ctx, t, "the trace is complete", func(ctx context.Context) error {
		var answer struct {
			Data []struct {
				Processes map[string]struct{ ServiceName string }
			}
		}
		if err := get(ctx, jaeger+"/api/traces/"+id, &answer); err != nil {
			return err
		}
		var have []string
		for _, trace := range answer.Data {
			for _, p := range trace.Processes {
				have = append(have, p.ServiceName)
			}
		}
		slices.Sort(have)
		if have = slices.Compact(have); !slices.Equal(have, want) {
			return fmt.Errorf("trace %s has spans of %v, want %v", id, have, want)
		}
		return nil
	})
}

var metricName = regexp.MustCompile(`\b(?:(?:kubelet|podplane|prober|volume_manager|storage|process)_[a-z0-9_]+|up)\b`)

// testMetrics sees that Prometheus finds and reads every service, has the alert rules, and knows every metric that the rules and the
// dashboard name.
func testMetrics(ctx context.Context, t *testing.T) {
	testkit.Eventually(ctx, t, "Prometheus reads all services", func(ctx context.Context) error {
		var answer struct {
			Data struct {
				ActiveTargets []struct {
					Labels            map[string]string
					Health, LastError string
				}
			}
		}
		if err := get(ctx, prometheus+"/api/v1/targets", &answer); err != nil {
			return err
		}
		var up []string
		for _, target := range answer.Data.ActiveTargets {
			if target.Health != "up" {
				return fmt.Errorf("%v is %s: %s", target.Labels, target.Health, target.LastError)
			}
			up = append(up, target.Labels["job"])
		}
		slices.Sort(up)
		if want := services(); !slices.Equal(up, want) {
			return fmt.Errorf("targets are %v, want %v", up, want)
		}
		return nil
	})
	names := append(metricsIn(t, "../../deploy/prometheus/alerts.yaml"), metricsIn(t, "../../deploy/grafana/dashboard.json")...)
	testkit.Eventually(ctx, t, "all metrics of the rules and the dashboard are there", func(ctx context.Context) error {
		var known struct{ Data []string }
		if err := get(ctx, prometheus+"/api/v1/label/__name__/values", &known); err != nil {
			return err
		}
		for _, name := range names {
			if !slices.Contains(known.Data, name) {
				return fmt.Errorf("there is no metric %s", name)
			}
		}
		return nil
	})
	var rules struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, State string }
			}
		}
	}
	if err := get(ctx, prometheus+"/api/v1/rules", &rules); err != nil || len(rules.Data.Groups) == 0 || len(rules.Data.Groups[0].Rules) < 5 {
		t.Fatalf("rules: %+v, %v", rules, err)
	}
	for _, r := range rules.Data.Groups[0].Rules {
		if r.Health == "err" || r.State == "firing" {
			t.Errorf("rule %s is %s, %s", r.Name, r.Health, r.State)
		}
	}
}

// metricsIn are the metrics that a file's expressions name.
func metricsIn(t *testing.T, file string) []string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(content)) {
		if strings.Contains(line, "(") && !strings.Contains(line, "description") && !strings.Contains(line, "definition") {
			names = append(names, metricName.FindAllString(line, -1)...)
		}
	}
	if len(names) < 5 {
		t.Fatalf("%s names %v: is it read right?", file, names)
	}
	return names
}

// testPrivileges sees what the containers may.
func testPrivileges(ctx context.Context, t *testing.T) {
	for _, c := range inspect(ctx, t) {
		if c.HostConfig.Privileged {
			t.Errorf("%s is privileged", c.Name)
		}
		if !c.HostConfig.ReadonlyRootfs {
			t.Errorf("the root of %s can be written", c.Name)
		}
		if c.HostConfig.Memory == 0 {
			t.Errorf("%s has no limit of memory", c.Name)
		}
		if c.HostConfig.LogConfig.Config["max-size"] == "" {
			t.Errorf("the log of %s has no bound", c.Name)
		}
		if root := c.Config.User == "" || strings.HasPrefix(c.Config.User, "0"); root && slices.Contains([]string{"nats", "gateway", "pleg", "prober", "jaeger"}, c.service()) {
			t.Errorf("%s runs as root", c.Name)
		}
		for port, bindings := range c.HostConfig.PortBindings {
			for _, b := range bindings {
				if b.HostIP != "127.0.0.1" {
					t.Errorf("%s: port %s is open on %q", c.Name, port, b.HostIP)
				}
			}
		}
	}
}

// testKills kills the containers of Podplane in random order, each as soon as the one before has been started again, so that several
// are on their way up at a time. No pod may notice.
func testKills(ctx context.Context, t *testing.T, first *corev1.Pod) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	victims := append(services(), "nats")
	r.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
	old := map[string]int{}
	for _, service := range victims {
		old[service] = killOnly(ctx, t, service)
		back(ctx, t, service, old[service], false)
	}
	for _, service := range victims {
		back(ctx, t, service, old[service], true)
	}
	last := ready(ctx, t, "")
	if a, b := first.Status.ContainerStatuses[0], last.Status.ContainerStatuses[0]; a.ContainerID != b.ContainerID || a.RestartCount != b.RestartCount {
		t.Errorf("the container was %s (%d restarts) and is %s (%d restarts)", a.ContainerID, a.RestartCount, b.ContainerID, b.RestartCount)
	}
}

// testContainerdKilled ends containerd alone: it is started again, and pods do not notice.
func testContainerdKilled(ctx context.Context, t *testing.T) {
	before := ready(ctx, t, "").Status.ContainerStatuses[0]
	old := containerd(ctx, t)
	if old == 0 {
		t.Fatal("no containerd runs")
	}
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(ctx, t, "containerd is back", func(ctx context.Context) error {
		if now := containerd(ctx, t); now == 0 || now == old {
			return errors.New("not yet")
		}
		_, err := docker(ctx, "exec", "podplane-runtime-1", "/podplane", "health", "--cri-endpoint", "unix:///run/podplane/containerd/containerd.sock")
		return err
	})
	after := ready(ctx, t, "").Status.ContainerStatuses[0]
	if before.ContainerID != after.ContainerID || before.RestartCount != after.RestartCount {
		t.Errorf("the container was %s (%d restarts) and is %s (%d restarts)", before.ContainerID, before.RestartCount, after.ContainerID, after.RestartCount)
	}
}

// containerd is the process of the runtime's containerd, 0 if there is none.
func containerd(ctx context.Context, t *testing.T) int {
	t.Helper()
	out, err := docker(ctx, "top", "podplane-runtime-1", "-eo", "pid,args")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if pid, err := strconv.Atoi(fields[0]); err == nil && len(fields) > 1 && filepath.Base(fields[1]) == "containerd" {
			return pid
		}
	}
	return 0
}

// testRuntimeKilled is what a reboot is to the pods: their containers are gone, and come back with their volumes.
func testRuntimeKilled(ctx context.Context, t *testing.T) {
	before := ready(ctx, t, "").Status.ContainerStatuses[0].ContainerID
	kill(ctx, t, "runtime")
	after := ready(ctx, t, before)
	if after.Status.ContainerStatuses[0].RestartCount == 0 {
		t.Errorf("the container started again without counting: %+v", after.Status.ContainerStatuses[0])
	}
}

// testSandboxKilled ends what holds the namespaces, and does what docs/compose.md says about it.
func testSandboxKilled(ctx context.Context, t *testing.T) {
	before := ready(ctx, t, "").Status.ContainerStatuses[0].ContainerID
	killOnly(ctx, t, "sandbox")
	must(t)(compose(ctx, "up", "-d", "--wait", "--wait-timeout", "180", "--force-recreate", "--no-deps", "sandbox", "runtime", "syncd", "prober", "volumed"))
	ready(ctx, t, before)
}

// kill ends a container's first process, as the kernel might, and waits until Docker has started it again and it is well.
func kill(ctx context.Context, t *testing.T, service string) {
	t.Helper()
	back(ctx, t, service, killOnly(ctx, t, service), true)
}

// killOnly kills and gives the process that it was.
func killOnly(ctx context.Context, t *testing.T, service string) int {
	t.Helper()
	for _, c := range inspect(ctx, t) {
		if c.service() == service && c.State.Pid != 0 {
			if err := syscall.Kill(c.State.Pid, syscall.SIGKILL); err != nil {
				t.Fatalf("kill %s: %v", service, err)
			}
			return c.State.Pid
		}
	}
	t.Fatalf("%s does not run", service)
	return 0
}

// back waits until a service has another process than the old one, and perhaps until it is well.
func back(ctx context.Context, t *testing.T, service string, old int, well bool) {
	t.Helper()
	bounded, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	testkit.Eventually(bounded, t, service+" is back", func(context.Context) error {
		for _, c := range inspect(ctx, t) {
			if c.service() == service && c.State.Pid != 0 && c.State.Pid != old && (!well || c.State.Health.Status == "healthy") {
				return nil
			}
		}
		return errors.New("not yet")
	})
}

// checkHost looks for what pods and their runtime may leave on a host.
func checkHost(t *testing.T, mountsBefore []string) {
	t.Helper()
	for _, m := range mounts(t) {
		if !slices.Contains(mountsBefore, m) {
			t.Errorf("left mounted: %s", m)
		}
	}
	cgroup := os.Getenv("PODPLANE_CGROUP")
	for _, pattern := range []string{"/sys/fs/cgroup/*" + cgroup, "/sys/fs/cgroup" + cgroup} {
		dirs, err := filepath.Glob(pattern)
		if err != nil || len(dirs) > 0 {
			t.Errorf("left cgroups: %v, %v", dirs, err)
		}
	}
	if out, err := exec.Command("ip", "-o", "link").Output(); err != nil || strings.Contains(string(out), "podplane0") {
		t.Errorf("left interfaces: %s, %v", out, err)
	}
}

// mounts are those that dockerd sees, as they would be the host's.
func mounts(t *testing.T) []string {
	t.Helper()
	content, err := os.ReadFile("/proc/" + os.Getenv("DOCKERD") + "/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var points []string
	for line := range strings.Lines(string(content)) {
		points = append(points, strings.Fields(line)[4])
	}
	return points
}

func create(ctx context.Context, t *testing.T) (traceID string) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway+"/api/v1/namespaces/default/pods", strings.NewReader(pod))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/yaml")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusCreated {
		body, err := io.ReadAll(resp.Body)
		t.Fatalf("create the pod: %s: %s, %v", resp.Status, body, err)
	}
	return resp.Header.Get("Trace-Id")
}

// ready waits until the pod is ready, with another container than the one named.
func ready(ctx context.Context, t *testing.T, notContainer string) *corev1.Pod {
	t.Helper()
	var p corev1.Pod
	testkit.Eventually(ctx, t, "the pod is ready", func(ctx context.Context) error {
		p = corev1.Pod{}
		if err := get(ctx, gateway+"/api/v1/namespaces/default/pods/web", &p); err != nil {
			return err
		}
		if cs := p.Status.ContainerStatuses; len(cs) != 1 || !cs[0].Ready || cs[0].ContainerID == notContainer {
			return fmt.Errorf("phase %s, containers %+v", p.Status.Phase, cs)
		}
		return nil
	})
	return &p
}

func remove(ctx context.Context, t *testing.T) {
	t.Helper()
	if _, err := request(ctx, http.MethodDelete, gateway+"/api/v1/namespaces/default/pods/web", ""); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(ctx, t, "the pod is gone", func(ctx context.Context) error {
		var list corev1.PodList
		if err := get(ctx, gateway+"/api/v1/pods", &list); err != nil {
			return err
		}
		if len(list.Items) > 0 {
			return fmt.Errorf("%d pods", len(list.Items))
		}
		return nil
	})
}

func services() []string { return []string{"evictd", "gateway", "pleg", "prober", "syncd", "volumed"} }

func get(ctx context.Context, url string, into any) error {
	body, err := request(ctx, http.MethodGet, url, "")
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(body), into)
}
