package testkit_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/internal/testkit"
)

// runPod starts a pod of one container and returns the sandbox's and the container's ID.
func runPod(t *testing.T, node *testkit.Node, name, image string, args ...string) (string, string) {
	t.Helper()
	return runPodOnPort(t, node, freePort(t), name, image, args...)
}

// runPodOnPort publishes the container's port 8080 on the host.
func runPodOnPort(t *testing.T, node *testkit.Node, port int32, name, image string, args ...string) (string, string) {
	t.Helper()
	client := node.Client(t)
	sandbox := &cri.SandboxConfig{
		Name: name, Namespace: "default", UID: "uid-" + name, Hostname: name,
		LogDirectory: filepath.Join(node.Dir, "logs", name),
		CgroupParent: node.CgroupParent,
		PortMappings: []cri.PortMapping{{ContainerPort: 8080, HostPort: port}},
		Labels:       map[string]string{pod.LabelPodName: name, pod.LabelPodUID: "uid-" + name},
	}
	if err := os.MkdirAll(sandbox.LogDirectory, 0o755); err != nil {
		t.Fatal(err)
	}
	sandboxID, err := client.RunSandbox(t.Context(), sandbox)
	if err != nil {
		t.Fatal(err)
	}
	id, err := client.CreateContainer(t.Context(), sandboxID, &cri.ContainerConfig{
		Name: "main", Image: cri.ImageSpec{Image: image}, Args: args, LogPath: "main.log",
		Labels: map[string]string{pod.LabelContainerName: "main", pod.LabelPodUID: "uid-" + name},
	}, sandbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.StartContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	return sandboxID, id
}

func freePort(t *testing.T) int32 {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("address is a %T", listener.Addr())
	}
	return int32(address.Port)
}

func get(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(response.Body)
	return string(body), errors.Join(err, response.Body.Close())
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestPodHasAddressAndAnswers(t *testing.T) {
	testkit.CheckLeaks(t)
	node := testkit.Containerd(t)
	port := freePort(t)
	sandboxID, id := runPodOnPort(t, node, port, "answers", testkit.App, "serve")
	client := node.Client(t)
	status, err := client.SandboxStatus(t.Context(), sandboxID)
	if err != nil {
		t.Fatal(err)
	}
	if len(status.IPs) != 1 {
		t.Fatalf("addresses of the sandbox are %v, want one", status.IPs)
	}
	for _, address := range []string{status.IPs[0] + ":8080", fmt.Sprintf("127.0.0.1:%d", port)} {
		testkit.Eventually(bounded(t), t, "the pod answers at "+address, func(ctx context.Context) error {
			body, err := get(ctx, "http://"+address+"/")
			if err == nil && body != "hello from answers\n" {
				return fmt.Errorf("the answer is %q", body)
			}
			return err
		})
	}
	result, err := client.ExecSync(t.Context(), id, []string{"/app", "id"}, 10*time.Second)
	if err != nil || !strings.Contains(string(result.Stdout), "uid=0") {
		t.Errorf("exec says %q, %v", result.Stdout, err)
	}
	if err := client.RemoveSandbox(t.Context(), sandboxID); err != nil {
		t.Error(err)
	}
}

func TestPullFromRegistry(t *testing.T) {
	node := testkit.Containerd(t)
	client := node.Client(t)
	name := node.Registry.Name("app:1")
	before := node.Registry.Pulls("app")
	if _, err := client.PullImage(t.Context(), cri.ImageSpec{Image: name}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if node.Registry.Pulls("app") <= before {
		t.Error("the registry saw no pull")
	}

	node.Registry.SetRule("app", &testkit.Rule{User: "me", Password: "secret"})
	t.Cleanup(func() { node.Registry.SetRule("app", nil) })
	if _, err := client.PullImage(t.Context(), cri.ImageSpec{Image: name}, nil, nil); err == nil {
		t.Error("a pull without credentials succeeded")
	}
	if _, err := client.PullImage(t.Context(), cri.ImageSpec{Image: name}, &cri.AuthConfig{Username: "me", Password: "secret"}, nil); err != nil {
		t.Errorf("a pull with credentials failed: %v", err)
	}

	node.Registry.SetRule("app", &testkit.Rule{Status: http.StatusServiceUnavailable})
	if _, err := client.PullImage(t.Context(), cri.ImageSpec{Image: name}, nil, nil); err == nil {
		t.Error("a pull from a registry that fails succeeded")
	}
}

func TestContainersOutliveContainerd(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(*testkit.Node, testing.TB)
	}{
		{"stopped", (*testkit.Node).Stop},
		{"killed", (*testkit.Node).Kill},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := testkit.NewNode(t)
			_, id := runPod(t, node, c.name, testkit.Busybox, "sleep", "1000")
			c.end(node, t)
			node.Restart(t)
			status, err := node.Client(t).ContainerStatus(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if status.State != pod.ContainerRunning {
				t.Errorf("the container is %v after containerd was %s", status.State, c.name)
			}
		})
	}
}

// world lists what a node could leave on the host.
func world(t *testing.T) []string {
	t.Helper()
	var all []string
	add := func(kind, text string) {
		for line := range strings.Lines(text) {
			all = append(all, kind+" "+strings.TrimSpace(line))
		}
	}
	run := func(name string, args ...string) string {
		out, err := exec.CommandContext(t.Context(), name, args...).Output()
		// find fails when a directory goes while it looks: others use this host too.
		var exit *exec.ExitError
		if err != nil && (name != "find" || !errors.As(err, &exit)) {
			t.Fatalf("%s: %v", name, err)
		}
		return string(out)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	add("mount", string(mounts))
	add("link", run("ip", "-o", "link"))
	add("rule", run("iptables", "-t", "nat", "-S"))
	add("rule", run("iptables", "-t", "filter", "-S"))
	add("process", run("ps", "-e", "-o", "pid=,args="))
	add("file", run("find", "/sys/fs/cgroup", "/tmp", "/run", "/var/lib/cni", "-maxdepth", "3", "-not", "-name", "*.log"))
	return all
}

// leftovers are the lines about a node's name that appeared since.
func leftovers(t *testing.T, before []string, names ...string) []string {
	t.Helper()
	var left []string
	for _, line := range world(t) {
		if slices.Contains(before, line) || strings.HasPrefix(line, "file "+filepath.Join(os.TempDir(), "podplane-testkit")) {
			continue
		}
		if slices.ContainsFunc(names, func(name string) bool { return strings.Contains(line, name) }) {
			left = append(left, line)
		}
	}
	return left
}

func TestNothingIsLeft(t *testing.T) {
	before := world(t)
	var names []string
	t.Run("node", func(t *testing.T) {
		node := testkit.NewNode(t)
		sandboxID, id := runPod(t, node, "left", testkit.App, "spawn", "3")
		names = []string{filepath.Base(node.Dir), sandboxID, id}
		if found := leftovers(t, before, names...); len(found) < 5 {
			t.Errorf("while the pod runs, only this is found of it: %q", found)
		}
	})
	if left := leftovers(t, before, names...); len(left) > 0 {
		t.Errorf("left on the host:\n%s", strings.Join(left, "\n"))
	}
}

// nodeVariable makes TestKilledTest the test that is to be killed.
const nodeVariable = "PODPLANE_TESTKIT_VICTIM"

func TestKilledTest(t *testing.T) {
	if os.Getenv(nodeVariable) != "" {
		node := testkit.NewNode(t)
		sandboxID, id := runPod(t, node, "victim", testkit.App, "stubborn")
		fmt.Println("NODE", filepath.Base(node.Dir), sandboxID, id)
		<-t.Context().Done()
		return
	}
	before := world(t)
	victim := exec.Command(os.Args[0], "-test.run=^TestKilledTest$", "-test.v")
	victim.Env = append(os.Environ(), nodeVariable+"=1")
	victim.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	victim.Stderr = os.Stderr
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	var names []string
	var said strings.Builder
	for lines := bufio.NewScanner(stdout); names == nil && lines.Scan(); {
		fmt.Fprintln(&said, lines.Text())
		if words := strings.Fields(lines.Text()); len(words) == 4 && words[0] == "NODE" {
			names = words[1:]
		}
	}
	if err := victim.Process.Kill(); err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := victim.Wait(); !errors.As(err, &exit) {
		t.Errorf("the killed test ended with %v", err)
	}
	if names == nil {
		t.Fatalf("the test to be killed did not start its pod:\n%s", said.String())
	}
	testkit.Eventually(bounded(t), t, "the killed test's node is removed", func(context.Context) error {
		if left := leftovers(t, before, names...); len(left) > 0 {
			return fmt.Errorf("left on the host:\n%s", strings.Join(left, "\n"))
		}
		return nil
	})
}
