package e2e_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/test/harness"
)

// TestFirstPod is the way of the README: post, become Ready, answer, log, go.
func TestFirstPod(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	created, err := s.Apply(ctx, ns(t), manifest("web", `
  containers:
  - name: app
    image: $IMAGE
    args: [serve, -addr, ":8080"]
    ports: [{containerPort: 8080}]
    readinessProbe:
      httpGet: {path: /healthz, port: 8080}
      periodSeconds: 1
`))
	if err != nil {
		t.Fatal(err)
	}
	if created.UID == "" || created.ResourceVersion == "" || created.CreationTimestamp.IsZero() {
		t.Errorf("created pod lacks uid, resourceVersion or creationTimestamp: %+v", created.ObjectMeta)
	}
	if created.Spec.RestartPolicy != corev1.RestartPolicyAlways || created.Spec.NodeName != s.Node() {
		t.Errorf("defaults: restartPolicy %q, nodeName %q", created.Spec.RestartPolicy, created.Spec.NodeName)
	}
	p, err := s.WaitReady(ctx, ns(t), "web")
	if err != nil {
		t.Fatal(err)
	}
	checkRunning(t, p)
	body := get(t, "http://"+net.JoinHostPort(p.Status.PodIP, "8080")+"/healthz")
	if body == "" {
		t.Error("the pod answered nothing on its address")
	}
	if log, err := s.Log(ctx, ns(t), "web", "container=app"); err != nil || log == "" {
		t.Errorf("log = %q, %v", log, err)
	}
	wantEvents(t, s, ns(t), "web", "Created", "Started")
	if err := s.Delete(ctx, ns(t), "web", 1); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitGone(ctx, ns(t), "web"); err != nil {
		t.Fatal(err)
	}
	wantNothingLeft(t, s, string(p.UID))
}

func checkRunning(t *testing.T, p *corev1.Pod) {
	t.Helper()
	st := p.Status
	if st.Phase != corev1.PodRunning || st.PodIP == "" || st.HostIP == "" || st.StartTime == nil || st.QOSClass != corev1.PodQOSBestEffort {
		t.Errorf("status: phase %q, podIP %q, hostIP %q, startTime %v, qosClass %q", st.Phase, st.PodIP, st.HostIP, st.StartTime, st.QOSClass)
	}
	for _, c := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady, corev1.PodReadyToStartContainers} {
		if got := harness.Condition(p, c); got != corev1.ConditionTrue {
			t.Errorf("condition %s = %q, want True", c, got)
		}
	}
	c := st.ContainerStatuses[0]
	if c.State.Running == nil || !c.Ready || c.Started == nil || !*c.Started || c.RestartCount != 0 || !strings.HasPrefix(c.ContainerID, "containerd://") || c.ImageID == "" {
		t.Errorf("container status: %+v", c)
	}
}

// TestBodies sends the same pod as JSON and as YAML.
func TestBodies(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	for name, tc := range map[string]struct{ contentType, body string }{
		"json": {"application/json", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"json"},"spec":{"containers":[{"name":"app","image":"` + image + `","args":["sleep","forever"]}]}}`},
		"yaml": {"application/yaml", manifest("yaml", "\n  containers: [{name: app, image: $IMAGE, args: [sleep, forever]}]\n")},
	} {
		a, err := s.Want(ctx, http.StatusCreated, http.MethodPost, pods(t), tc.contentType, []byte(tc.body))
		if err != nil {
			t.Fatal(err)
		}
		if ct := a.Header.Get("Content-Type"); !strings.HasPrefix(ct, "application/json") {
			t.Errorf("%s: answer is %q", name, ct)
		}
		if _, err := s.WaitReady(ctx, ns(t), name); err != nil {
			t.Fatal(err)
		}
	}
}

// TestListsAndSelectors lists, selects, watches and deletes a collection.
func TestListsAndSelectors(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	for i, tier := range []string{"front", "back", "back"} {
		m := manifest(fmt.Sprintf("p%d", i), "\n  containers: [{name: app, image: $IMAGE, args: [sleep, forever]}]\n")
		m = strings.Replace(m, "metadata:", "metadata:\n  labels: {tier: "+tier+"}", 1)
		if _, err := s.Apply(ctx, ns(t), m); err != nil {
			t.Fatal(err)
		}
	}
	for query, want := range map[string]int{
		"":                                   3,
		"?labelSelector=tier%3Dback":         2,
		"?labelSelector=tier!%3Dback":        1,
		"?fieldSelector=metadata.name%3Dp1":  1,
		"?fieldSelector=metadata.name!%3Dp1": 2,
		"?labelSelector=tier%3Dnone":         0,
	} {
		if got := len(list(t, s, pods(t)+query).Items); got != want {
			t.Errorf("list %s: %d pods, want %d", query, got, want)
		}
	}
	if a, err := s.Call(ctx, http.MethodGet, pods(t)+"?fieldSelector=spec.color%3Dred", "", nil); err != nil || a.Code != http.StatusBadRequest {
		t.Errorf("unknown field selector: %d %s %v, want 400", a.Code, a.Body, err)
	}
	if _, err := s.Want(ctx, http.StatusOK, http.MethodDelete, pods(t)+"?labelSelector=tier%3Dback&gracePeriodSeconds=1", "", nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"p1", "p2"} {
		if err := s.WaitGone(ctx, ns(t), name); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(list(t, s, pods(t)).Items); got != 1 {
		t.Errorf("%d pods are left, want the one in front", got)
	}
}

// TestWatch sees a pod come, change and go, and goes on from a version.
func TestWatch(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	start := list(t, s, pods(t))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Server()+pods(t)+"?watch=true&resourceVersion="+start.ResourceVersion, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := s.Apply(ctx, ns(t), manifest("seen", "\n  containers: [{name: app, image: $IMAGE, args: [sleep, forever]}]\n")); err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(resp.Body)
	var types []string
	deleted := false
	for {
		var ev struct {
			Type   string     `json:"type"`
			Object corev1.Pod `json:"object"`
		}
		if err := dec.Decode(&ev); err != nil {
			t.Fatalf("after %v: %v", types, err)
		}
		if ev.Object.Name != "seen" {
			t.Fatalf("event %s about %q", ev.Type, ev.Object.Name)
		}
		types = append(types, ev.Type)
		if harness.IsReady(&ev.Object) && !deleted {
			deleted = true
			if err := s.Delete(ctx, ns(t), "seen", 1); err != nil {
				t.Fatal(err)
			}
		}
		if ev.Type == "DELETED" {
			break
		}
	}
	if types[0] != "ADDED" || types[1] != "MODIFIED" {
		t.Errorf("events %v, want ADDED, MODIFIED..., DELETED", types)
	}
	if a, err := s.Call(ctx, http.MethodGet, pods(t)+"?watch=true&resourceVersion=1&timeoutSeconds=1", "", nil); err != nil || !strings.Contains(string(a.Body), "Expired") && a.Code != http.StatusGone && start.ResourceVersion != "1" {
		t.Errorf("watch from a version long ago: %d %s %v, want 410 Expired", a.Code, a.Body, err)
	}
}

// get GETs a URL and returns the body of a 200.
func get(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s %s %v", url, resp.Status, body, err)
	}
	return string(body)
}
