//go:build compose

package compose_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/testkit"
)

const hostPod = `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 2
  volumes:
  - {name: memory, emptyDir: {medium: Memory}}
  - {name: host, hostPath: {path: %q, type: DirectoryOrCreate}}
  containers:
  - name: web
    image: podplane.local/app:1
    args: [seq, write, /host/file, written, --, serve]
    volumeMounts: [{name: memory, mountPath: /memory}, {name: host, mountPath: /host}]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
    livenessProbe: {exec: {command: [/app, mounts, /memory]}, periodSeconds: 1}
`

// hostFiles are what compose.host.yaml is used with.
var hostFiles = []string{"compose", "-f", "../../deploy/compose.yaml", "-f", "../../deploy/compose.host.yaml"}

// TestHostRuntime runs deploy/compose.host.yaml with a containerd that is outside of Docker, in the host's mounts.
func TestHostRuntime(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	node := testkit.NewNode(t)
	root := filepath.Join(node.Dir, "podplane")
	for name, value := range map[string]string{
		"PODPLANE_HOST_ROOT": root, "PODPLANE_HOST_LOGS": filepath.Join(node.Dir, "logs"), "PODPLANE_HOST_IMAGES": filepath.Join(node.Dir, "root"),
		"PODPLANE_HOST_CRI_DIR": filepath.Join(node.Dir, "run"), "PODPLANE_HOST_CRI_ENDPOINT": node.Endpoint,
		"PODPLANE_HOST_CGROUP": node.CgroupParent + "/podplane", "PODPLANE_NODE": "hosted",
		"PODPLANE_HOST_PID": strconv.Itoa(node.Runtime.PID()),
	} {
		t.Setenv(name, value)
	}
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	host := func(args ...string) error {
		_, err := docker(ctx, append(slices.Clone(hostFiles), args...)...)
		return err
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		if t.Failed() {
			out, err := docker(ctx, append(slices.Clone(hostFiles), "logs", "--tail", "30", "--no-color")...)
			t.Log(out, err)
		}
		if _, err := docker(ctx, append(slices.Clone(hostFiles), "down", "-v", "--timeout", "5")...); err != nil {
			t.Error(err)
		}
	})
	must(t)(compose(ctx, "build"))
	began := time.Now()
	if err := host("up", "-d", "--wait", "--wait-timeout", "120"); err != nil {
		t.Fatal(err)
	}
	t.Logf("up after %s", time.Since(began).Round(time.Second))
	shared := filepath.Join(node.Dir, "shared")
	if _, err := requestAs(ctx, http.MethodPost, gateway+podsPath, "application/yaml", fmt.Sprintf(hostPod, shared)); err != nil {
		t.Fatal(err)
	}
	first := ready(ctx, t, "")
	if got, err := os.ReadFile(filepath.Join(shared, "file")); err != nil || string(got) != "written\n" && string(got) != "written" {
		t.Errorf("the pod wrote %q on the host, %v", got, err)
	}
	if out := node.Ctr(t, "tasks", "list"); !strings.Contains(out, strings.TrimPrefix(first.Status.ContainerStatuses[0].ContainerID, "containerd://")) {
		t.Errorf("the host's containerd does not run the pod's container:\n%s", out)
	}
	testHostMounts(t, root, string(first.UID), true)
	t.Run("metrics", func(t *testing.T) { testMetrics(ctx, t) })
	t.Run("scale", func(t *testing.T) { testHostScale(ctx, t, host) })
	old := map[string]int{}
	for _, service := range services() {
		old[service] = killOnly(ctx, t, service)
	}
	for _, service := range services() {
		back(ctx, t, service, old[service], true)
	}
	unharmed(ctx, t, first)
	if err := host("down"); err != nil {
		t.Fatal(err)
	}
	if out := node.Ctr(t, "tasks", "list"); !strings.Contains(out, "RUNNING") {
		t.Errorf("the pods ended with the services:\n%s", out)
	}
	if err := host("up", "-d", "--wait", "--wait-timeout", "120"); err != nil {
		t.Fatal(err)
	}
	unharmed(ctx, t, first)
	remove(ctx, t)
	testHostMounts(t, root, string(first.UID), false)
	if err := host("down", "-v"); err != nil {
		t.Fatal(err)
	}
	if left := left(ctx, t); len(left) > 0 {
		t.Errorf("down -v left %v", left)
	}
}

// unharmed sees that the pod is as it was.
func unharmed(ctx context.Context, t *testing.T, before *corev1.Pod) {
	t.Helper()
	after := ready(ctx, t, "")
	if a, b := after.Status.ContainerStatuses[0], before.Status.ContainerStatuses[0]; after.UID != before.UID || a.ContainerID != b.ContainerID || a.RestartCount != b.RestartCount {
		t.Errorf("the pod is %s in %s (%d restarts), was %s in %s", after.UID, a.ContainerID, a.RestartCount, before.UID, b.ContainerID)
	}
}

// testHostMounts looks for the pod's volume in this process' mounts, which are the host's.
func testHostMounts(t *testing.T, root, uid string, want bool) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Contains(string(mounts), filepath.Join(root, "pods", uid)); got != want {
		t.Errorf("the pod's volume is mounted on the host: %v, want %v", got, want)
	}
	if _, err := os.Stat(filepath.Join(root, "pods", uid)); errors.Is(err, os.ErrNotExist) == want {
		t.Errorf("the pod's directory: %v", err)
	}
}

func testHostScale(ctx context.Context, t *testing.T, host func(...string) error) {
	for _, s := range []scale{{"prober": 3, "syncd": 2, "volumed": 2, "pleg": 2, "evictd": 2}, {}} {
		if err := host(s.args()...); err != nil {
			t.Fatal(err)
		}
		spread(ctx, t, s)
	}
}
