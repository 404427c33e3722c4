package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/testkit"
)

// step is a span that the trace of a pod's start has to hold.
type step struct {
	what       string // for messages, and for under
	service    string
	name       string
	attributes map[string]string
	under      string // the step that it is below, at any depth
	ofPod      bool   // it says which pod it is about
}

const traced = `
  terminationGracePeriodSeconds: 1
  volumes: [{name: scratch, emptyDir: {}}, {name: settings, configMap: {name: settings}}]
  containers:
  - name: app
    image: %s
    args: [serve, -addr, ":8080"]
    volumeMounts: [{name: scratch, mountPath: /scratch}, {name: settings, mountPath: /settings}]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
`

// TestOneTrace follows a pod from the POST to Ready in one trace, in a real Jaeger, the runtime's own spans included.
func TestOneTrace(t *testing.T) {
	t.Parallel()
	j, ctx := testkit.StartJaeger(t), testContext(t)
	node := testkit.NewNode(t, append(j.Env(), "OTEL_SERVICE_NAME=containerd")...)
	s := newStackOn(t, node, j.Env()...)
	if _, err := s.Want(ctx, http.StatusCreated, http.MethodPost, "/api/v1/namespaces/"+ns(t)+"/configmaps", "application/yaml",
		[]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {color: blue}\n")); err != nil {
		t.Fatal(err)
	}
	body := manifest("traced", fmt.Sprintf(traced, node.Registry.Name("app:1")))
	a, err := s.Want(ctx, http.StatusCreated, http.MethodPost, pods(t), "application/yaml", []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	id := a.Header.Get("Trace-Id")
	if len(id) != 32 {
		t.Fatalf("the answer's Trace-Id is %q", id)
	}
	p, err := s.WaitReady(ctx, ns(t), "traced")
	if err != nil {
		t.Fatal(err)
	}
	steps := podSteps(s.Node(), p)
	var trace spans
	testkit.Eventually(ctx, t, "the trace is complete", func(ctx context.Context) error {
		list, err := j.Trace(ctx, id)
		if err != nil {
			return err
		}
		trace = spans{}
		for _, s := range list {
			trace[s.ID] = s
		}
		for _, st := range steps {
			if len(trace.matching(st.service, st.name, st.attributes)) == 0 {
				return fmt.Errorf("no span for %s (%s %s %v) in\n%s", st.what, st.service, st.name, st.attributes, trace)
			}
		}
		return trace.connected()
	})
	t.Logf("trace %s:\n%s", id, trace)
	checkSteps(t, trace, steps, p)
	checkOrder(t, trace)
	checkAbout(t, trace, s.Node(), p)
	// The answers to reading are traces of their own, not part of the pod's.
	if n := len(trace.matching("podplane-gateway", "GET /api/v1/namespaces/{namespace}/pods/{name}", nil)); n > 0 {
		t.Errorf("%d reading requests are in the pod's trace", n)
	}
}

// podSteps are the spans of the start of a pod.
func podSteps(node string, p *corev1.Pod) []step {
	uid := string(p.UID)
	put := func(bucket string) map[string]string {
		return map[string]string{"messaging.system": "nats", "messaging.destination.name": "$KV." + bucket + "." + node + "." + uid}
	}
	app := map[string]string{"k8s.container.name": "app"}
	started := map[string]string{"k8s.container.name": "app", "podplane.lifecycle.type": "ContainerStarted"}
	probe := map[string]string{"k8s.container.name": "app", "podplane.probe.kind": "readiness", "podplane.probe.result": "success"}
	const runtime, image, create = "runtime.v1.RuntimeService/", "runtime.v1.ImageService/", "podplane.v1.PodService/CreatePod"
	return []step{
		{what: "request", service: "podplane-gateway", name: "POST /api/v1/namespaces/{namespace}/pods"},
		{what: "call", service: "podplane-gateway", name: create, under: "request"},
		{what: "served call", service: "podplane-syncd", name: create, under: "call"},
		{what: "creation", service: "podplane-syncd", name: "pod.create", under: "served call", ofPod: true},
		{what: "store", service: "podplane-syncd", name: "bus.record.put", attributes: put("pods"), under: "creation"},
		{what: "set-up of volumes", service: "podplane-volumed", name: "volume.setup", under: "creation", ofPod: true},
		{what: "record of volumes", service: "podplane-volumed", name: "bus.record.put", attributes: put("volumes"), under: "creation"},
		{what: "sync", service: "podplane-syncd", name: "pod.sync", under: "creation", ofPod: true},
		{what: "sandbox", service: "podplane-syncd", name: runtime + "RunPodSandbox", under: "sync"},
		{what: "pull", service: "podplane-syncd", name: image + "PullImage", under: "sync"},
		{what: "container", service: "podplane-syncd", name: runtime + "CreateContainer", under: "sync"},
		{what: "start", service: "podplane-syncd", name: runtime + "StartContainer", under: "sync"},
		{what: "event", service: "podplane-pleg", name: "lifecycle.event.publish", attributes: started, under: "creation", ofPod: true},
		{what: "first probe", service: "podplane-prober", name: "probe.first_success", attributes: probe, under: "creation", ofPod: true},
		{what: "record of probe", service: "podplane-prober", name: "bus.record.put", under: "creation"},
		{what: "Ready", service: "podplane-syncd", name: "pod.status.ready", under: "creation", ofPod: true},
		{what: "record of Ready", service: "podplane-syncd", name: "bus.record.put", attributes: put("status"), under: "creation"},
		{what: "event's container", service: "podplane-pleg", name: "lifecycle.event.publish", attributes: app, under: "sync"},
		{what: "runtime's sandbox", service: "containerd", name: runtime + "RunPodSandbox", under: "sandbox"},
		{what: "runtime's pull", service: "containerd", name: image + "PullImage", under: "pull"},
		{what: "runtime's start", service: "containerd", name: runtime + "StartContainer", under: "start"},
	}
}

// spans is one trace, by span id.
type spans map[string]testkit.Span

func podOf(s testkit.Span) string {
	return s.Tags["k8s.namespace.name"] + "/" + s.Tags["k8s.pod.name"] + " " + s.Tags["k8s.pod.uid"]
}

// matching gives the spans of a service and a name that have all of the attributes, the earliest first.
func (t spans) matching(service, name string, attributes map[string]string) []testkit.Span {
	var list []testkit.Span
	for _, s := range t {
		fits := s.Service == service && s.Name == name
		for k, v := range attributes {
			fits = fits && s.Tags[k] == v
		}
		if fits {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, byStart)
	return list
}

func byStart(a, b testkit.Span) int { return a.Start.Compare(b.Start) }

// below says whether a span is below another one.
func (t spans) below(s, ancestor testkit.Span) bool {
	for range t {
		var ok bool
		if s, ok = t[s.ParentID]; !ok || s.ID == ancestor.ID {
			return ok
		}
	}
	return false
}

// String draws the tree.
func (t spans) String() string {
	children := map[string][]testkit.Span{}
	for _, s := range t {
		above := s.ParentID
		if _, ok := t[above]; !ok {
			above = ""
		}
		children[above] = append(children[above], s)
	}
	var b strings.Builder
	var draw func(list []testkit.Span, depth int)
	draw = func(list []testkit.Span, depth int) {
		slices.SortFunc(list, byStart)
		for _, s := range list {
			fmt.Fprintf(&b, "%s%s %s %v %s\n", strings.Repeat("  ", depth), s.Service, s.Name, s.Duration, s.Tags["messaging.destination.name"])
			draw(children[s.ID], depth+1)
		}
	}
	draw(children[""], 0)
	return b.String()
}

// connected says whether the trace has one root and every span's parent.
func (t spans) connected() error {
	var roots []string
	for _, s := range t {
		switch {
		case s.ParentID == "":
			roots = append(roots, s.Service+" "+s.Name)
		case t[s.ParentID].ID == "":
			return fmt.Errorf("the parent of %s %s is not in\n%s", s.Service, s.Name, t)
		}
	}
	if len(roots) != 1 {
		return fmt.Errorf("the trace has the roots %v, want one\n%s", roots, t)
	}
	return nil
}

// checkSteps finds each step below the one that it belongs to.
func checkSteps(t *testing.T, trace spans, steps []step, p *corev1.Pod) {
	t.Helper()
	found := map[string][]testkit.Span{}
	pod := p.Namespace + "/" + p.Name + " " + string(p.UID)
	for _, st := range steps {
		for _, s := range trace.matching(st.service, st.name, st.attributes) {
			below := st.under == ""
			for _, above := range found[st.under] {
				below = below || trace.below(s, above)
			}
			if below {
				found[st.what] = append(found[st.what], s)
			}
			if st.ofPod && podOf(s) != pod {
				t.Errorf("%s is about pod %s, want %s", st.what, podOf(s), pod)
			}
		}
		if len(found[st.what]) == 0 {
			t.Errorf("no span of %s is below %s", st.what, st.under)
		}
	}
	for _, what := range []string{"request", "creation", "store", "set-up of volumes", "sandbox", "pull", "container", "start", "first probe", "Ready"} {
		if n := len(found[what]); n != 1 {
			t.Errorf("%d spans of %s, want 1", n, what)
		}
	}
	for _, what := range []string{"sandbox", "container", "start"} {
		for _, s := range found[what] {
			if s.Tags["k8s.pod.uid"] != string(p.UID) {
				t.Errorf("%s %s is about pod %q, want %s", what, s.Name, s.Tags["k8s.pod.uid"], p.UID)
			}
		}
	}
}

// checkAbout looks at every span of ours for what it is about, by the names of OpenTelemetry's conventions.
func checkAbout(t *testing.T, trace spans, node string, p *corev1.Pod) {
	t.Helper()
	for _, s := range trace {
		if !strings.HasPrefix(s.Service, "podplane-") {
			continue // the runtime's own
		}
		want := map[string]string{"k8s.pod.uid": string(p.UID), "k8s.namespace.name": p.Namespace, "k8s.pod.name": p.Name}
		for _, ofContainer := range []string{"PullImage", "CreateContainer", "StartContainer", "probe.first_success"} {
			if strings.HasSuffix(s.Name, ofContainer) {
				want["k8s.container.name"] = "app"
			}
		}
		if strings.HasPrefix(s.Tags["podplane.lifecycle.type"], "Container") {
			want["k8s.container.name"] = "app"
		}
		for k, v := range want {
			if s.Tags[k] != v {
				t.Errorf("%s %s %s: %s is %q, want %q", s.Service, s.Name, s.Tags["messaging.destination.name"], k, s.Tags[k], v)
			}
		}
		if s.Process["k8s.node.name"] != node || s.Process["service.instance.id"] == "" || s.Process["service.version"] == "" {
			t.Errorf("%s %s is from %v", s.Service, s.Name, s.Process)
		}
	}
}

// checkOrder compares the times of what can only happen one after the other.
func checkOrder(t *testing.T, trace spans) {
	t.Helper()
	one := func(service, name string) testkit.Span {
		list := trace.matching("podplane-"+service, name, nil)
		if len(list) == 0 {
			t.Fatalf("no span %s of %s", name, service)
		}
		return list[0]
	}
	const runtime = "runtime.v1.RuntimeService/"
	order := []testkit.Span{
		one("gateway", "POST /api/v1/namespaces/{namespace}/pods"), one("syncd", "pod.create"), one("syncd", runtime+"RunPodSandbox"),
		one("syncd", runtime+"CreateContainer"), one("syncd", runtime+"StartContainer"), one("prober", "probe.first_success"), one("syncd", "pod.status.ready"),
	}
	for i := 1; i < len(order); i++ {
		if order[i].Start.Before(order[i-1].Start) {
			t.Errorf("%s begins before %s", order[i].Name, order[i-1].Name)
		}
	}
	volumes, container := one("volumed", "volume.setup"), order[3]
	if ready := volumes.Start.Add(volumes.Duration); container.Start.Before(ready) {
		t.Errorf("the container was created %v before its volumes were set up", ready.Sub(container.Start))
	}
}

// TestNoTrace: without OTEL_* variables there is no trace, and nobody tries to send one.
func TestNoTrace(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	a, err := s.Want(ctx, http.StatusCreated, http.MethodPost, pods(t), "application/yaml",
		[]byte(manifest("untraced", "\n  containers: [{name: app, image: $IMAGE, args: [sleep, forever]}]\n")))
	if err != nil {
		t.Fatal(err)
	}
	if id := a.Header.Get("Trace-Id"); id != "" {
		t.Errorf("the answer's Trace-Id is %q", id)
	}
	if strings.Contains(string(a.Body), "traceparent") {
		t.Errorf("the pod has a trace: %s", a.Body)
	}
	if _, err := s.WaitReady(ctx, ns(t), "untraced"); err != nil {
		t.Fatal(err)
	}
	if logs := s.Logs(); strings.Contains(logs, "exporting telemetry") {
		t.Errorf("a service exports:\n%s", logs)
	}
}
