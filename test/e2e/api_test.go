package e2e_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/test/harness"
)

// TestRefused sends what can't be accepted: the answer names the field, and
// nothing is stored.
func TestRefused(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	for _, tc := range []struct {
		name, body string
		code       int
		// field is the path that the answer has to name.
		field string
	}{
		{"unknown field", manifest("x", "\n  containers: [{name: app, image: $IMAGE, imagePullPolice: Never}]\n"), 422, "spec.containers[0].imagePullPolice"},
		{"duplicate field", manifest("x", "\n  restartPolicy: Never\n  restartPolicy: Always\n  containers: [{name: app, image: $IMAGE}]\n"), 422, "restartPolicy"},
		{"no containers", manifest("x", "\n  restartPolicy: Never\n"), 422, "spec.containers"},
		{"bad name", manifest("Not_A_Name", "\n  containers: [{name: app, image: $IMAGE}]\n"), 422, "metadata.name"},
		{"two containers of one name", manifest("x", "\n  containers: [{name: app, image: $IMAGE}, {name: app, image: $IMAGE}]\n"), 422, "spec.containers[1].name"},
		{"no image", manifest("x", "\n  containers: [{name: app}]\n"), 422, "spec.containers[0].image"},
		{"mount of no volume", manifest("x", "\n  containers: [{name: app, image: $IMAGE, volumeMounts: [{name: v, mountPath: /v}]}]\n"), 422, "spec.containers[0].volumeMounts[0].name"},
		{"unsupported volume", manifest("x", "\n  containers: [{name: app, image: $IMAGE}]\n  volumes: [{name: v, nfs: {server: a, path: /b}}]\n"), 422, "spec.volumes[0]"},
		{"probe without handler", manifest("x", "\n  containers: [{name: app, image: $IMAGE, livenessProbe: {periodSeconds: 1}}]\n"), 422, "spec.containers[0].livenessProbe"},
		{"port out of range", manifest("x", "\n  containers: [{name: app, image: $IMAGE, ports: [{containerPort: 70000}]}]\n"), 422, "spec.containers[0].ports[0].containerPort"},
		{"limit below request", manifest("x", "\n  containers: [{name: app, image: $IMAGE, resources: {requests: {memory: 2Mi}, limits: {memory: 1Mi}}}]\n"), 422, "spec.containers[0].resources.requests"},
		{"another kind", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n", 422, "kind"},
		{"no yaml", "a: [b\n", 400, ""},
		{"nothing", "", 400, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, err := s.Call(ctx, http.MethodPost, pods(t), "application/yaml", []byte(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			st := status(t, a)
			if a.Code != tc.code || int(st.Code) != tc.code {
				t.Errorf("code %d, status %+v, want %d", a.Code, st, tc.code)
			}
			if !strings.Contains(st.Message, tc.field) {
				t.Errorf("message %q does not name %q", st.Message, tc.field)
			}
			if tc.code == 422 && (st.Details == nil || len(st.Details.Causes) == 0 || !strings.Contains(st.Details.Causes[0].Field, tc.field)) {
				t.Errorf("causes %+v, want one of field %q", st.Details, tc.field)
			}
		})
	}
	if n := len(list(t, s, pods(t)).Items); n != 0 {
		t.Errorf("%d pods were stored by requests that were refused", n)
	}
}

func TestTakenName(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	m := manifest("taken", "\n  containers: [{name: app, image: $IMAGE, args: [sleep, forever]}]\n")
	if _, err := s.Apply(ctx, ns(t), m); err != nil {
		t.Fatal(err)
	}
	a, err := s.Want(ctx, http.StatusConflict, http.MethodPost, pods(t), "application/yaml", []byte(m))
	if err != nil {
		t.Fatal(err)
	}
	if st := status(t, a); st.Reason != metav1.StatusReasonAlreadyExists {
		t.Errorf("reason %q, want AlreadyExists", st.Reason)
	}
}

func TestBodyTooLarge(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	body := append([]byte(manifest("large", "\n  containers: [{name: app, image: $IMAGE}]\n")), bytes.Repeat([]byte("# x\n"), 1<<20)...)
	a, err := s.Want(ctx, http.StatusRequestEntityTooLarge, http.MethodPost, pods(t), "application/yaml", body)
	if err != nil {
		t.Fatal(err)
	}
	if st := status(t, a); st.Code != 413 || !strings.Contains(st.Message, "3") {
		t.Errorf("status %+v, want 413 with the limit", st)
	}
}

func TestNotThere(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	for _, path := range []string{pods(t) + "/ghost", pods(t) + "/ghost/log", pods(t) + "/ghost/status", "/api/v1/namespaces/x/configmaps/ghost", "/api/v1/nodes/ghost", "/api/v2/pods"} {
		a, err := s.Want(ctx, http.StatusNotFound, http.MethodGet, path, "", nil)
		if err != nil {
			t.Error(err)
			continue
		}
		if st := status(t, a); st.Status != metav1.StatusFailure || st.Code != 404 {
			t.Errorf("%s: %+v", path, st)
		}
	}
}

// TestObjects is the whole life of a ConfigMap and of a Secret.
func TestObjects(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	for kind, plural := range map[string]string{"ConfigMap": "configmaps", "Secret": "secrets"} {
		base := "/api/v1/namespaces/" + ns(t) + "/" + plural
		field := map[string]string{"ConfigMap": "data", "Secret": "stringData"}[kind]
		body := func(value string) []byte {
			return []byte("apiVersion: v1\nkind: " + kind + "\nmetadata: {name: conf.d, labels: {a: b}}\n" + field + ": {key: " + value + "}\n")
		}
		steps := []struct {
			method, path, body string
			code               int
		}{
			{http.MethodPost, base, string(body("one")), 201},
			{http.MethodPost, base, string(body("one")), 409},
			{http.MethodGet, base + "/conf.d", "", 200},
			{http.MethodPut, base + "/conf.d", string(body("two")), 200},
			{http.MethodGet, base + "?labelSelector=a%3Db", "", 200},
			{http.MethodDelete, base + "/conf.d", "", 200},
			{http.MethodGet, base + "/conf.d", "", 404},
			{http.MethodPost, base, strings.Replace(string(body("x")), "key:", "\"../key\":", 1), 422},
		}
		for _, st := range steps {
			if _, err := s.Want(ctx, st.code, st.method, st.path, "application/yaml", []byte(st.body)); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		}
	}
}

// TestNode reads the node and its conditions.
func TestNode(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	a, err := s.Want(ctx, http.StatusOK, http.MethodGet, "/api/v1/nodes/"+s.Node(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"MemoryPressure"`, `"DiskPressure"`, `"PIDPressure"`, `"Ready"`, `"capacity"`, `"allocatable"`, `"containerRuntimeVersion"`} {
		if !bytes.Contains(a.Body, []byte(want)) {
			t.Errorf("node lacks %s: %s", want, a.Body)
		}
	}
}

// TestOwnConcerns reads every path under /podplane/v1 and the documents.
func TestOwnConcerns(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	for path, want := range map[string]string{
		"/podplane/v1/services":                               "gateway",
		"/podplane/v1/conditions":                             "MemoryPressure",
		"/podplane/v1/probes":                                 "",
		"/podplane/v1/volumes":                                "",
		"/podplane/v1/evictions":                              "",
		"/podplane/v1/evictions/rank?signal=memory.available": "",
		"/podplane/v1/lifecycle?since=1s":                     "",
		"/openapi.json":                                       "/api/v1/namespaces/{namespace}/pods",
		"/docs":                                               "<html",
		"/healthz":                                            "",
		"/readyz":                                             "",
		"/metrics":                                            "go_goroutines",
	} {
		a, err := s.Want(ctx, http.StatusOK, http.MethodGet, path, "", nil)
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.Contains(string(a.Body), want) {
			t.Errorf("%s lacks %q: %.300s", path, want, a.Body)
		}
	}
}

func status(t *testing.T, a harness.Answer) metav1.Status {
	t.Helper()
	var st metav1.Status
	if err := json.Unmarshal(a.Body, &st); err != nil || st.Kind != "Status" {
		t.Fatalf("answer %d is no Status: %s", a.Code, a.Body)
	}
	return st
}
