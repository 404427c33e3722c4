package runtime_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/services/syncd/internal/images"
	"github.com/podplane/podplane/services/syncd/internal/runtime"
	"github.com/podplane/podplane/services/syncd/internal/worker"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// realNode is an Executor on a real containerd.
func realNode(t *testing.T) (*runtime.Executor, *testkit.Node, *cri.Client) {
	n := newNode(t)
	containerd := testkit.Containerd(t)
	client := containerd.Client(t)
	return runtime.New(runtime.Config{
		Node: "n1", Root: n.dir, PodLogDir: filepath.Join(n.dir, "logs"), HostIPs: []string{"192.0.2.1"},
		Cgroups: runtime.NewCgroups(containerd.CgroupParent),
	}, client, images.New(images.Config{}, client, n, n), n, n), containerd, client
}

// interrupted is a container that does not run as far as CRI knows, while a process of it does: so containerd is left when a start is
// given up half-way. Where that is depends on the moment; here the process is started behind CRI's back.
func interrupted(ctx context.Context, t *testing.T, exec *runtime.Executor, n *testkit.Node, client *cri.Client, p *v1.Pod, s pod.Sandbox) string {
	t.Helper()
	id, err := client.CreateContainer(ctx, s.ID, &cri.ContainerConfig{
		Name: "c", Image: cri.ImageSpec{Image: testkit.App}, Args: []string{"sleep", "forever"}, LogPath: "c.log",
		Labels: map[string]string{pod.LabelPodUID: string(p.UID), pod.LabelContainerName: "c"},
	}, &cri.SandboxConfig{
		Name: p.Name, Namespace: p.Namespace, UID: string(p.UID), LogDirectory: exec.LogDir(p),
		CgroupParent: runtime.NewCgroups(n.CgroupParent).Parent(p),
	})
	if err != nil {
		t.Fatal(err)
	}
	n.Ctr(t, "tasks", "start", "--detach", id)
	if err := client.StopContainer(ctx, id, 0); err != nil {
		t.Fatal(err)
	}
	if err := client.RemoveContainer(ctx, id); err == nil {
		t.Fatal("containerd removed a container whose process runs: what is tested here is not needed any more")
	}
	return id
}

func TestInterruptedStartIsCleared(t *testing.T) {
	exec, n, client := realNode(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p := newPod()
	p.UID = "u-interrupted"
	s, err := exec.CreateSandbox(ctx, p, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = exec.Cleanup(context.WithoutCancel(ctx), p) })
	t.Run("by removing the container", func(t *testing.T) {
		id := interrupted(ctx, t, exec, n, client, p, s)
		if err := exec.RemoveContainer(ctx, p, &pod.Container{ID: id, Name: "c", State: pod.ContainerCreated}); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("by starting it", func(t *testing.T) {
		id := interrupted(ctx, t, exec, n, client, p, s)
		if _, err := exec.StartContainer(ctx, worker.StartRequest{Pod: p, Container: "c", ID: id, Sandbox: s}); err == nil {
			t.Error("what runs was started again")
		}
		c, err := client.ContainerStatus(ctx, id)
		if err != nil || c.State != pod.ContainerExited {
			t.Fatalf("after the refused start it is %v, %v; want it to have ended", c.State, err)
		}
		if err := exec.RemoveContainer(ctx, p, &c); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("by removing the sandbox", func(t *testing.T) {
		interrupted(ctx, t, exec, n, client, p, s)
		if err := exec.StopSandbox(ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		if err := exec.RemoveSandbox(ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		left, err := client.PodStatus(ctx, string(p.UID))
		if err != nil || len(left.Sandboxes)+len(left.Containers) != 0 {
			t.Errorf("left: %+v, %v", left, err)
		}
	})
}

// TestInterruptedSandboxIsCleared: containerd's CRI knows nothing of the pod any more, containerd still has a container and a process of it.
func TestInterruptedSandboxIsCleared(t *testing.T) {
	exec, n, client := realNode(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p := newPod()
	p.UID = "u-forgotten"
	dir := runtime.NewCgroups(n.CgroupParent).Parent(p)
	id := strings.Repeat("5eed", 16)
	n.Ctr(t, "run", "--detach", "--cgroup", filepath.Join(dir, id), testkit.App, id, "/app", "sleep", "forever")
	left, err := client.PodStatus(ctx, string(p.UID))
	if err != nil || len(left.Sandboxes)+len(left.Containers) != 0 {
		t.Fatalf("CRI knows of %+v, %v", left, err)
	}
	if err := exec.Cleanup(ctx, p); err != nil {
		t.Fatal(err)
	}
	if has := n.Ctr(t, "containers", "list") + n.Ctr(t, "tasks", "list"); strings.Contains(has, id) {
		t.Errorf("containerd still has it:\n%s", has)
	}
}
