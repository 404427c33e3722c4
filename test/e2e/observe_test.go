package e2e_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

// deploy is the directory of what is shipped for Prometheus and Grafana.
const deploy = "../../deploy"

// busy is a pod that has what the dashboard shows: a probe, a volume, a Secret in its environment.
const busy = `
  terminationGracePeriodSeconds: 1
  volumes: [{name: scratch, emptyDir: {}}, {name: key, secret: {secretName: key}}]
  containers:
  - name: app
    image: $IMAGE
    args: [serve, -addr, ":8080"]
    env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: key, key: password}}}]
    volumeMounts: [{name: scratch, mountPath: /scratch}, {name: key, mountPath: /key}]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
    livenessProbe: {exec: {command: [/app, exit, "0"]}, periodSeconds: 1}
`

// TestObserved looks at a running Podplane as one who operates it does: with a real Prometheus that has the shipped rules, with the shipped
// dashboard's queries, with a real Jaeger, and at the logs.
func TestObserved(t *testing.T) {
	t.Parallel()
	j, ctx, node := testkit.StartJaeger(t), testContext(t), testkit.Containerd(t)
	s, err := harness.New(harness.Options{
		CRIEndpoint: node.Endpoint, Node: "testobserved", Root: filepath.Join(node.Dir, "testobserved"),
		CgroupRoot: filepath.Join(node.CgroupParent, "testobserved"), Env: j.Env(), Args: []string{"--log-format", "json", "--log-level", "debug"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	const password = "correct-horse-battery-staple"
	if _, err := s.Want(ctx, http.StatusCreated, http.MethodPost, "/api/v1/namespaces/"+ns(t)+"/secrets", "application/yaml",
		[]byte("apiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {password: "+password+"}\n")); err != nil {
		t.Fatal(err)
	}
	prometheus := startPrometheus(t, s)
	traceID := create(ctx, t, s, "busy", busy)
	if _, err := s.WaitReady(ctx, ns(t), "busy"); err != nil {
		t.Fatal(err)
	}
	// One that cannot be started, so that the services have something to warn of.
	badTrace := create(ctx, t, s, "wrong", "\n  containers: [{name: app, image: localhost:1/absent:1}]\n")
	if _, err := s.WaitPod(ctx, ns(t), "wrong", "waits for its image", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			strings.Contains(p.Status.ContainerStatuses[0].State.Waiting.Reason, "Pull")
	}); err != nil {
		t.Fatal(err)
	}
	t.Run("metrics", func(t *testing.T) { everyQueryHasAnAnswer(ctx, t, prometheus) })
	t.Run("exemplars", func(t *testing.T) { exemplarsLeadToTraces(ctx, t, prometheus, j, traceID) })
	t.Run("logs", func(t *testing.T) { logsSayWhatTheyAreAbout(t, s, password, traceID, badTrace) })
}

// create posts a pod and gives its trace.
func create(ctx context.Context, t *testing.T, s *harness.Stack, name, spec string) string {
	t.Helper()
	a, err := s.Want(ctx, http.StatusCreated, http.MethodPost, pods(t), "application/yaml", []byte(manifest(name, spec)))
	if err != nil {
		t.Fatal(err)
	}
	id := a.Header.Get("Trace-Id")
	if len(id) != 32 {
		t.Fatalf("the answer's Trace-Id is %q", id)
	}
	return id
}

// startPrometheus starts a Prometheus with the shipped configuration and gives its address.
func startPrometheus(t *testing.T, s *harness.Stack) string {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatalf("%v: run `make test-host` first", err)
	}
	list, err := s.Services(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	gateway := list[slices.IndexFunc(list, func(s harness.Service) bool { return s.Service == "gateway" })].HTTPAddress
	dir := t.TempDir()
	for from, edit := range map[string]*strings.Replacer{
		"prometheus.yaml": strings.NewReplacer("http://gateway:9090", "http://"+gateway, "15s", "1s", "10s", "1s"),
		"alerts.yaml":     strings.NewReplacer(),
	} {
		data, err := os.ReadFile(filepath.Join(deploy, "prometheus", from))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, from), []byte(edit.Replace(string(data))), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	address := testkit.FreeAddress(t)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--enable-feature=exemplar-storage")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			said, _ := os.ReadFile(log.Name())
			t.Logf("Prometheus says:\n%s", said)
		}
		if err := errors.Join(cmd.Process.Kill(), log.Close()); err != nil {
			t.Errorf("end Prometheus: %v", err)
		}
		_ = cmd.Wait() // it was killed, which Wait calls an error
	})
	return "http://" + address
}

func askPrometheus(ctx context.Context, address string, query url.Values, answer any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	r.Close = true
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, body)
	}
	return json.Unmarshal(body, answer)
}

// everyQueryHasAnAnswer asks what the dashboard asks, and looks at the rules.
func everyQueryHasAnAnswer(ctx context.Context, t *testing.T, prometheus string) {
	queries := dashboardQueries(t)
	if len(queries) < 20 {
		t.Fatalf("%d queries were found in the dashboard", len(queries))
	}
	for _, q := range queries {
		testkit.Eventually(ctx, t, q, func(ctx context.Context) error {
			var answer struct{ Data struct{ Result []any } }
			err := askPrometheus(ctx, prometheus+"/api/v1/query", url.Values{"query": {strings.ReplaceAll(q, "$node", ".*")}}, &answer)
			if err == nil && len(answer.Data.Result) == 0 {
				err = errors.New("no series")
			}
			return err
		})
	}
	testkit.Eventually(ctx, t, "all rules are evaluated and none has anything to say", func(ctx context.Context) error {
		var rules struct {
			Data struct {
				Groups []struct {
					Rules []struct{ Name, State, Health, LastError, LastEvaluation string }
				}
			}
		}
		if err := askPrometheus(ctx, prometheus+"/api/v1/rules", nil, &rules); err != nil {
			return err
		}
		n := 0
		for _, g := range rules.Data.Groups {
			for _, r := range g.Rules {
				if n++; r.Health != "ok" || r.State == "firing" {
					return fmt.Errorf("%s is %s and %s: %s", r.Name, r.Health, r.State, r.LastError)
				}
			}
		}
		if n < 10 {
			return fmt.Errorf("%d rules", n)
		}
		return nil
	})
	// The rules name no metric that is not there: a rule about one would never fire.
	var known struct{ Data []string }
	if err := askPrometheus(ctx, prometheus+"/api/v1/label/__name__/values", nil, &known); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(deploy, "prometheus", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range strings.FieldsFunc(string(text), func(r rune) bool { return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789_", r) }) {
		for _, prefix := range []string{"kubelet_", "podplane_", "prober_", "process_", "volume_", "storage_"} {
			if strings.HasPrefix(word, prefix) && !slices.Contains(known.Data, word) {
				t.Errorf("the rules are about %s, which there is not", word)
			}
		}
	}
}

// dashboardQueries are the queries of the shipped dashboard.
func dashboardQueries(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(deploy, "grafana", "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(data, &dashboard); err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			list = append(list, target.Expr)
		}
	}
	return list
}

// exemplarsLeadToTraces goes from a histogram to a trace in Jaeger.
func exemplarsLeadToTraces(ctx context.Context, t *testing.T, prometheus string, j *testkit.Jaeger, podTrace string) {
	for _, metric := range []string{
		"kubelet_pod_start_duration_seconds_bucket", "kubelet_pod_worker_duration_seconds_bucket", "kubelet_runtime_operations_duration_seconds_bucket",
		"kubelet_run_podsandbox_duration_seconds_bucket", "storage_operation_duration_seconds_bucket", "podplane_pleg_event_publish_seconds_bucket",
		"podplane_gateway_request_duration_seconds_bucket",
	} {
		testkit.Eventually(ctx, t, "an exemplar of "+metric+" leads to a trace", func(ctx context.Context) error {
			var answer struct {
				Data []struct {
					Exemplars []struct {
						Labels map[string]string
					}
				}
			}
			query := url.Values{"query": {metric}, "start": {"0"}, "end": {"9999999999"}}
			if err := askPrometheus(ctx, prometheus+"/api/v1/query_exemplars", query, &answer); err != nil {
				return err
			}
			last := errors.New("there is none")
			for _, series := range answer.Data {
				for _, e := range series.Exemplars {
					id := e.Labels["trace_id"]
					if metric == "kubelet_pod_start_duration_seconds_bucket" && id != podTrace {
						t.Fatalf("the only pod that became ready has trace %s, the exemplar %s", podTrace, id)
					}
					list, err := j.Trace(ctx, id)
					if err != nil {
						return err
					}
					if slices.ContainsFunc(list, func(s testkit.Span) bool { return strings.HasPrefix(s.ID, e.Labels["span_id"]) && s.ID != "" }) {
						return nil
					}
					last = fmt.Errorf("trace %s has no span %s", id, e.Labels["span_id"])
				}
			}
			return last
		})
	}
}

// logsSayWhatTheyAreAbout reads all services' logs: lines of JSON, with the trace wherever a pod is named, and without anything secret.
func logsSayWhatTheyAreAbout(t *testing.T, s *harness.Stack, secret string, traces ...string) {
	seen := map[string]map[string]bool{}
	for _, service := range append([]string{"nats"}, harness.Services...) {
		data, err := os.ReadFile(filepath.Join(s.Root(), "log", service+".log"))
		if err != nil {
			t.Fatal(err)
		}
		for _, form := range []string{secret, base64.StdEncoding.EncodeToString([]byte(secret))} {
			if strings.Contains(string(data), form) {
				t.Errorf("the log of %s has the Secret as %s", service, form)
			}
		}
		for line := range strings.Lines(string(data)) {
			var entry map[string]any
			if err := json.Unmarshal([]byte(line), &entry); err != nil {
				t.Errorf("%s: %v: %s", service, err, line)
				continue
			}
			for _, key := range []string{"time", "level", "msg", "service"} {
				if entry[key] == nil {
					t.Errorf("%s: a line without %s: %s", service, key, line)
				}
			}
			id, _ := entry["trace_id"].(string)
			if (entry["k8s.pod.uid"] != nil || entry["request.id"] != nil) && len(id) != 32 {
				t.Errorf("%s: a line about a pod or a request without its trace: %s", service, line)
			}
			if seen[id] == nil {
				seen[id] = map[string]bool{}
			}
			seen[id][service] = true
		}
	}
	for _, id := range traces {
		if len(seen[id]) < 2 {
			t.Errorf("lines of trace %s are only in the logs of %v", id, seen[id])
		}
	}
}

// TestErrorsAreKept samples nothing: the trace of a pod that works is never sent, that of one that does not is, by every service that had part in it.
func TestErrorsAreKept(t *testing.T) {
	t.Parallel()
	j, ctx := testkit.StartJaeger(t), testContext(t)
	s := newStack(t, append(j.Env(), "OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0")...)
	good := create(ctx, t, s, "good", "\n  containers: [{name: app, image: $IMAGE, args: [sleep, forever]}]\n")
	if _, err := s.WaitReady(ctx, ns(t), "good"); err != nil {
		t.Fatal(err)
	}
	bad := create(ctx, t, s, "bad", `
  volumes: [{name: scratch, emptyDir: {}}]
  containers: [{name: app, image: $IMAGE, args: [exit, "3"], volumeMounts: [{name: scratch, mountPath: /scratch}]}]
`)
	testkit.Eventually(ctx, t, "the trace with an error is sent by all", func(ctx context.Context) error {
		list, err := j.Trace(ctx, bad)
		if err != nil {
			return err
		}
		var services []string
		root := false
		for _, span := range list {
			services = append(services, strings.TrimPrefix(span.Service, "podplane-"))
			root = root || span.ParentID == "" && strings.HasPrefix(span.Name, "POST ")
			if span.Tags["podplane.trace.kept_for"] != "error" {
				t.Errorf("%s %s does not say why it was sent", span.Service, span.Name)
			}
		}
		slices.Sort(services)
		if services = slices.Compact(services); !root || !slices.Equal(services, []string{"gateway", "pleg", "syncd", "volumed"}) {
			return fmt.Errorf("spans of %v, the request among them: %v", services, root)
		}
		return nil
	})
	never := create(ctx, t, s, "never", `
  terminationGracePeriodSeconds: 1
  containers:
  - {name: app, image: $IMAGE, args: [sleep, forever], readinessProbe: {exec: {command: [/app, exit, "1"]}, periodSeconds: 1}}
`)
	testkit.Eventually(ctx, t, "a probe that fails is an error of the trace", func(ctx context.Context) error {
		list, err := j.Trace(ctx, never)
		if err == nil && !slices.ContainsFunc(list, func(s testkit.Span) bool {
			return s.Name == "probe.failure" && s.Tags["k8s.container.name"] == "app" && s.Tags["error"] == "true"
		}) {
			err = fmt.Errorf("it is not among %d spans", len(list))
		}
		return err
	})
	if list, err := j.Trace(ctx, good); err != nil || len(list) > 0 {
		t.Errorf("%d spans of a trace without an error were sent, %v", len(list), err)
	}
}
