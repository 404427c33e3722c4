package e2e_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/test/harness"
)

// TestInitContainersRunInOrder lets two init containers and the app each add a
// line to one file.
func TestInitContainersRunInOrder(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("order", `
  restartPolicy: Never
  volumes: [{name: shared, emptyDir: {}}]
  initContainers:
  - {name: one, image: $IMAGE, args: [append, /shared/log, one], volumeMounts: [{name: shared, mountPath: /shared}]}
  - {name: two, image: $IMAGE, args: [append, /shared/log, two], volumeMounts: [{name: shared, mountPath: /shared}]}
  containers:
  - {name: app, image: $IMAGE, args: [cat, /shared/log], volumeMounts: [{name: shared, mountPath: /shared}]}
`)); err != nil {
		t.Fatal(err)
	}
	p, err := s.WaitPod(ctx, ns(t), "order", "has succeeded", phaseIs(corev1.PodSucceeded))
	if err != nil {
		t.Fatal(err)
	}
	if log, err := s.Log(ctx, ns(t), "order", "container=app"); err != nil || log != "one\ntwo\n" {
		t.Errorf("log = %q, %v; want the init containers' lines in order", log, err)
	}
	for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
		if c.State.Terminated == nil || c.State.Terminated.Reason != "Completed" || c.State.Terminated.ExitCode != 0 {
			t.Errorf("container %s: %+v, want Completed", c.Name, c.State)
		}
	}
}

// TestFailedInitContainerFailsThePod never starts the app.
func TestFailedInitContainerFailsThePod(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("broken", `
  restartPolicy: Never
  initContainers: [{name: one, image: $IMAGE, args: [exit, "3"]}]
  containers: [{name: app, image: $IMAGE, args: [sleep, forever]}]
`)); err != nil {
		t.Fatal(err)
	}
	p, err := s.WaitPod(ctx, ns(t), "broken", "has failed", phaseIs(corev1.PodFailed))
	if err != nil {
		t.Fatal(err)
	}
	if st := p.Status.InitContainerStatuses[0].State.Terminated; st == nil || st.ExitCode != 3 || st.Reason != "Error" {
		t.Errorf("init container: %+v, want exit code 3", p.Status.InitContainerStatuses[0].State)
	}
	if st := p.Status.ContainerStatuses[0].State; st.Waiting == nil || st.Waiting.Reason != "PodInitializing" {
		t.Errorf("app: %+v, want waiting PodInitializing", st)
	}
}

// TestCrashLoop restarts at once, then backs off and says so.
func TestCrashLoop(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("crash", `
  containers: [{name: app, image: $IMAGE, args: [exit, "7"]}]
`)); err != nil {
		t.Fatal(err)
	}
	p, err := s.WaitPod(ctx, ns(t), "crash", "backs off", func(p *corev1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == "CrashLoopBackOff"
	})
	if err != nil {
		t.Fatal(err)
	}
	c := p.Status.ContainerStatuses[0]
	if last := c.LastTerminationState.Terminated; last == nil || last.ExitCode != 7 || last.Reason != "Error" {
		t.Errorf("last state %+v, want exit code 7", c.LastTerminationState)
	}
	if !strings.Contains(c.State.Waiting.Message, "back-off") || p.Status.Phase != corev1.PodRunning {
		t.Errorf("phase %s, message %q", p.Status.Phase, c.State.Waiting.Message)
	}
	wantEvents(t, s, ns(t), "crash", "BackOff")
	if log, err := s.Log(ctx, ns(t), "crash", "previous=true"); err != nil {
		t.Errorf("previous log: %q, %v", log, err)
	}
}

// TestRestartPolicies ends one container with 0 and one with 1 under each policy.
func TestRestartPolicies(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	for _, tc := range []struct {
		name, policy, code string
		want               corev1.PodPhase
	}{
		{"never-zero", "Never", "0", corev1.PodSucceeded},
		{"never-one", "Never", "1", corev1.PodFailed},
		{"onfailure-zero", "OnFailure", "0", corev1.PodSucceeded},
	} {
		if _, err := s.Apply(ctx, ns(t), manifest(tc.name, `
  restartPolicy: `+tc.policy+`
  containers: [{name: app, image: $IMAGE, args: [exit, "`+tc.code+`"]}]
`)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.WaitPod(ctx, ns(t), tc.name, "is "+string(tc.want), phaseIs(tc.want)); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Apply(ctx, ns(t), manifest("onfailure-one", `
  restartPolicy: OnFailure
  volumes: [{name: v, emptyDir: {}}]
  containers: [{name: app, image: $IMAGE, args: [fail-until, /v/n, "1"], volumeMounts: [{name: v, mountPath: /v}]}]
`)); err != nil {
		t.Fatal(err)
	}
	p, err := s.WaitPod(ctx, ns(t), "onfailure-one", "has succeeded", phaseIs(corev1.PodSucceeded))
	if err != nil {
		t.Fatal(err)
	}
	if n := p.Status.ContainerStatuses[0].RestartCount; n != 1 {
		t.Errorf("restart count %d, want 1", n)
	}
}

// TestEnvironmentAndResources reads back what the container was given.
func TestEnvironmentAndResources(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	if _, err := s.Want(ctx, 201, "POST", "/api/v1/namespaces/"+ns(t)+"/configmaps", "application/yaml",
		[]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {color: blue, size: large}\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Apply(ctx, ns(t), manifest("env", `
  restartPolicy: Never
  containers:
  - name: app
    image: $IMAGE
    args: [env]
    resources: {requests: {cpu: 100m, memory: 16Mi}, limits: {cpu: 200m, memory: 64Mi}}
    envFrom: [{prefix: SET_, configMapRef: {name: settings}}]
    env:
    - {name: PLAIN, value: hello}
    - {name: EXPANDED, value: "$(PLAIN)-$$(PLAIN)-$(NOPE)"}
    - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: COLOR, valueFrom: {configMapKeyRef: {name: settings, key: color}}}
    - {name: LIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory}}}
`)); err != nil {
		t.Fatal(err)
	}
	p, err := s.WaitPod(ctx, ns(t), "env", "has succeeded", phaseIs(corev1.PodSucceeded))
	if err != nil {
		t.Fatal(err)
	}
	log, err := s.Log(ctx, ns(t), "env", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"SET_color=blue", "SET_size=large", "PLAIN=hello", "EXPANDED=hello-$(PLAIN)-$(NOPE)", "POD=env", "COLOR=blue", "LIMIT=67108864"} {
		if !strings.Contains(log, want+"\n") {
			t.Errorf("environment lacks %s:\n%s", want, log)
		}
	}
	if p.Status.QOSClass != corev1.PodQOSBurstable {
		t.Errorf("QoS class %s, want Burstable", p.Status.QOSClass)
	}
}

// TestOutOfMemory is killed by the kernel for its limit.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("oom", `
  restartPolicy: Never
  containers: [{name: app, image: $IMAGE, args: [hog, 64Mi], resources: {limits: {memory: 24Mi}}}]
`)); err != nil {
		t.Fatal(err)
	}
	p, err := s.WaitPod(ctx, ns(t), "oom", "has failed", phaseIs(corev1.PodFailed))
	if err != nil {
		t.Fatal(err)
	}
	if st := p.Status.ContainerStatuses[0].State.Terminated; st.Reason != "OOMKilled" || st.ExitCode != 137 {
		t.Errorf("container: %+v, want OOMKilled with 137", st)
	}
}

// TestGraceIsHonoured lets a container end in its own time, and kills one that won't.
func TestGraceIsHonoured(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	for name, args := range map[string]string{"polite": `[trap, 1s, "0"]`, "stubborn": "[stubborn]"} {
		if _, err := s.Apply(ctx, ns(t), manifest(name, `
  terminationGracePeriodSeconds: 3
  containers: [{name: app, image: $IMAGE, args: `+args+`}]
`)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.WaitReady(ctx, ns(t), name); err != nil {
			t.Fatal(err)
		}
	}
	for name, bounds := range map[string][2]time.Duration{"polite": {time.Second, 3 * time.Second}, "stubborn": {3 * time.Second, 20 * time.Second}} {
		began := time.Now()
		if err := s.Delete(ctx, ns(t), name, -1); err != nil {
			t.Fatal(err)
		}
		if err := s.WaitGone(ctx, ns(t), name); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < bounds[0] {
			t.Errorf("%s was gone after %v, before its grace of %v", name, took, bounds[0])
		}
	}
}

// TestHostPort reaches a pod on the node's own address, and refuses a second
// pod that wants the same port.
func TestHostPort(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	port := freePort(t)
	m := func(name string) string {
		return manifest(name, `
  containers:
  - name: app
    image: $IMAGE
    args: [serve, -addr, ":8080"]
    ports: [{containerPort: 8080, hostPort: `+port+`}]
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
`)
	}
	if _, err := s.Apply(ctx, ns(t), m("first")); err != nil {
		t.Fatal(err)
	}
	p, err := s.WaitReady(ctx, ns(t), "first")
	if err != nil {
		t.Fatal(err)
	}
	if body := get(t, "http://"+p.Status.HostIP+":"+port+"/healthz"); body == "" {
		t.Error("no answer on the host port")
	}
	a, err := s.Call(ctx, "POST", pods(t), "application/yaml", []byte(m("second")))
	if err != nil {
		t.Fatal(err)
	}
	if a.Code/100 != 4 || !strings.Contains(string(a.Body), port) {
		t.Errorf("second pod on the same host port: %d %s, want a refusal that names the port", a.Code, a.Body)
	}
}

// TestPullFailureIsExplained names an image that is nowhere.
func TestPullFailureIsExplained(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("nopull", `
  containers: [{name: app, image: "127.0.0.1:1/nothing:1"}]
`)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitPod(ctx, ns(t), "nopull", "backs off from pulling", func(p *corev1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == "ImagePullBackOff"
	}); err != nil {
		t.Fatal(err)
	}
	wantEvents(t, s, ns(t), "nopull", "Failed", "BackOff")
}

// TestUpdate changes an image: the container is replaced, the pod stays.
func TestUpdate(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	m := manifest("update", "\n  terminationGracePeriodSeconds: 1\n  containers: [{name: app, image: $IMAGE, args: [sleep, forever]}]\n")
	if _, err := s.Apply(ctx, ns(t), m); err != nil {
		t.Fatal(err)
	}
	before, err := s.WaitReady(ctx, ns(t), "update")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Want(ctx, 422, "PUT", pods(t)+"/update", "application/yaml", []byte(strings.Replace(m, "forever", "9s", 1))); err != nil {
		t.Error(err)
	}
	if _, err := s.Want(ctx, 200, "PUT", pods(t)+"/update", "application/yaml", []byte(strings.ReplaceAll(m, image, otherImage(t)))); err != nil {
		t.Fatal(err)
	}
	after, err := s.WaitPod(ctx, ns(t), "update", "runs another container", func(p *corev1.Pod) bool {
		return harness.IsReady(p) && harness.ContainerID(p, "app") != harness.ContainerID(before, "app")
	})
	if err != nil {
		t.Fatal(err)
	}
	if after.UID != before.UID || after.Status.PodIP != before.Status.PodIP {
		t.Errorf("pod %s at %s became %s at %s: only the container was to change", before.UID, before.Status.PodIP, after.UID, after.Status.PodIP)
	}
}
