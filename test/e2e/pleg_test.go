package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

// proxiedStack is a Podplane whose runtime the test can make hang.
func proxiedStack(t *testing.T, env ...string) (*harness.Stack, *testkit.CRIProxy) {
	t.Helper()
	node := testkit.Containerd(t)
	proxy := testkit.NewCRIProxy(t, node.Endpoint)
	behind := *node
	behind.Endpoint = proxy.Endpoint
	return newStackOn(t, &behind, env...), proxy
}

// runtimeReady is the condition RuntimeReady.
func runtimeReady(ctx context.Context, s *harness.Stack) (status, message string, err error) {
	a, err := s.Want(ctx, 200, "GET", "/podplane/v1/conditions", "", nil)
	if err != nil {
		return "", "", err
	}
	var l struct {
		Conditions []struct{ Type, Status, Message string } `json:"conditions"`
	}
	if err := json.Unmarshal(a.Body, &l); err != nil {
		return "", "", err
	}
	for _, c := range l.Conditions {
		if c.Type == "RuntimeReady" {
			return c.Status, c.Message, nil
		}
	}
	return "", "", errors.New("no condition RuntimeReady")
}

const sleeper = `
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: $IMAGE, args: [sleep, forever]}]
`

// TestHungInspection makes the status of one pod's container hang while there is no stream of events: that pod is named with its age within
// 5 s, the others start and end as ever, the runtime counts as ready, and nothing is lost.
func TestHungInspection(t *testing.T) {
	s, proxy := proxiedStack(t)
	ctx := testContext(t)
	p := applyReady(t, ctx, s, "stuck")
	id := harness.ContainerID(p, "app")
	proxy.Events(false)
	release := proxy.Hang("ContainerStatus", id)
	defer release()
	if err := testkit.Containerd(t).Client(t).StopContainer(ctx, id, 0); err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(regexp.QuoteMeta(ns(t)+"/stuck") + `.* since (\S+)`)
	testkit.Eventually(ctx, t, "the pod is named", func(ctx context.Context) error {
		status, message, err := runtimeReady(ctx, s)
		if err != nil {
			return err
		}
		m := named.FindStringSubmatch(message)
		if m == nil || status != "True" {
			return fmt.Errorf("RuntimeReady is %s: %s", status, message)
		}
		since, err := time.Parse(time.RFC3339, m[1])
		if err != nil {
			t.Errorf("message %q: %v", message, err)
		}
		// The time in the message is cut to seconds.
		if age := time.Since(since); age > 6*time.Second {
			t.Errorf("named after %s", age)
		}
		return nil
	})
	// The others go on.
	began := time.Now()
	other := applyReady(t, ctx, s, "other")
	t.Logf("another pod was ready after %s", time.Since(began))
	// A pod that comes and goes between two lists would not be seen: the next list, a second later at most, has to have it.
	wantLifecycle(t, ctx, s, string(other.UID), map[string]int{sandboxStarted: 1, containerCreated: 1, containerStarted: 1})
	if err := s.Delete(ctx, ns(t), "other", 1); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitGone(ctx, ns(t), "other"); err != nil {
		t.Fatal(err)
	}
	for _, e := range wantLifecycle(t, ctx, s, string(other.UID), map[string]int{
		sandboxStarted: 1, containerCreated: 1, containerStarted: 1, containerDied: 1, containerRemoved: 1, sandboxStopped: 1, sandboxRemoved: 1,
	}) {
		if e.Via != "relist" {
			t.Errorf("%s was seen by %s, and there is no stream", e.Type, e.Via)
		}
	}
	release()
	proxy.Events(true)
	wantLifecycle(t, ctx, s, string(p.UID), map[string]int{sandboxStarted: 1, containerCreated: 1, containerStarted: 1, containerDied: 1, sandboxStopped: 1})
	testkit.Eventually(ctx, t, "nobody is named any more", func(ctx context.Context) error {
		status, message, err := runtimeReady(ctx, s)
		if err == nil && (status != "True" || named.MatchString(message)) {
			err = fmt.Errorf("RuntimeReady is %s: %s", status, message)
		}
		return err
	})
	wantStreamAgain(t, ctx, s)
}

// wantStreamAgain waits until events come by the stream.
func wantStreamAgain(t *testing.T, ctx context.Context, s *harness.Stack) {
	t.Helper()
	for try := 0; ; try++ {
		p := applyReady(t, ctx, s, fmt.Sprintf("again-%d", try))
		list, err := lifecycle(ctx, s, string(p.UID))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if e.Via == "stream" {
				return
			}
		}
		if try == 20 {
			t.Fatalf("no event by the stream: %+v", list)
		}
	}
}

func applyReady(t *testing.T, ctx context.Context, s *harness.Stack, name string) *corev1.Pod {
	t.Helper()
	if _, err := s.Apply(ctx, ns(t), manifest(name, sleeper)); err != nil {
		t.Fatal(err)
	}
	p, err := s.WaitReady(ctx, ns(t), name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestForeignContainersAreLeftAlone runs a pod of another node's name and one without any beside a Podplane that is killed, that compares what
// runs with what is wished for: nobody touches them, and no event tells of them.
func TestForeignContainersAreLeftAlone(t *testing.T) {
	s, ctx := newStack(t, "PODPLANE_SYNCD_RESYNC=1s", "PODPLANE_PLEG_RELIST_PERIOD=1s"), testContext(t)
	foreign := map[string]string{"of another node": "somebody-else", "of nobody": ""}
	ids := make(map[string][2]string)
	for what, node := range foreign {
		ids[what] = foreignPod(t, ctx, node, "foreign-"+fmt.Sprint(len(node)))
	}
	mine := applyReady(t, ctx, s, "mine")
	for _, service := range []string{"syncd", "pleg", "evictd"} {
		if err := s.Kill(service); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(ctx, t, "syncd answers again", func(ctx context.Context) error {
		_, err := s.Want(ctx, 200, "GET", pods(t), "", nil)
		return err
	})
	again := applyReady(t, ctx, s, "again")
	if err := s.Delete(ctx, ns(t), "mine", 1); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitGone(ctx, ns(t), "mine"); err != nil {
		t.Fatal(err)
	}
	wantNothingLeft(t, s, string(mine.UID))
	// Some more comparisons of what runs with what is wished for.
	wait(t, ctx, 3*time.Second)
	for what, id := range ids {
		c, err := foreignClient(t, ctx, foreign[what]).ContainerStatus(ctx, id[1])
		if err != nil || c.State != pod.ContainerRunning {
			t.Errorf("the container %s: %v, %v", what, c.State, err)
		}
	}
	a, err := s.Want(ctx, 200, "GET", "/podplane/v1/lifecycle", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for what, id := range ids {
		if regexp.MustCompile(id[0] + "|" + id[1]).Match(a.Body) {
			t.Errorf("the journal tells of the pod %s", what)
		}
	}
	if p, err := s.Pod(ctx, ns(t), "again"); err != nil || p.UID != again.UID || !harness.IsReady(p) {
		t.Errorf("the pod that is wished for: %v, %v", p, err)
	}
}

func foreignClient(t *testing.T, ctx context.Context, node string) *cri.Client {
	t.Helper()
	c, err := cri.Dial(ctx, testkit.Containerd(t).Endpoint, cri.Options{Node: node})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // nothing is lost with it
	return c
}

// foreignPod runs a pod that somebody else made, with Kubernetes' labels, and returns the IDs of its sandbox and container.
func foreignPod(t *testing.T, ctx context.Context, node, uid string) [2]string {
	t.Helper()
	host := testkit.Containerd(t)
	client := foreignClient(t, ctx, node)
	config := &cri.SandboxConfig{
		Name: uid, Namespace: "elsewhere", UID: uid, LogDirectory: filepath.Join(t.TempDir(), uid), CgroupParent: filepath.Join(host.CgroupParent, uid),
		Labels: map[string]string{pod.LabelPodName: uid, pod.LabelPodNamespace: "elsewhere", pod.LabelPodUID: uid},
	}
	sandbox, err := client.RunSandbox(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		last, err := cri.Dial(ctx, host.Endpoint, cri.Options{Node: node})
		if err != nil {
			t.Error(err)
			return
		}
		if err := errors.Join(last.StopSandbox(ctx, sandbox), last.RemoveSandbox(ctx, sandbox), last.Close()); err != nil {
			t.Error(err)
		}
	})
	container, err := client.CreateContainer(ctx, sandbox, &cri.ContainerConfig{
		Name: "app", Image: cri.ImageSpec{Image: image}, Args: []string{"sleep", "forever"}, LogPath: "app.log",
		Labels: map[string]string{pod.LabelPodName: uid, pod.LabelPodNamespace: "elsewhere", pod.LabelPodUID: uid, pod.LabelContainerName: "app"},
	}, config)
	if err == nil {
		err = client.StartContainer(ctx, container)
	}
	if err != nil {
		t.Fatal(err)
	}
	return [2]string{sandbox, container}
}
