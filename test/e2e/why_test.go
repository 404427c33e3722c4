package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

// whyAnswer is what /podplane/v1/why answers.
type whyAnswer struct {
	UID     string `json:"uid"`
	Phase   string `json:"phase"`
	TraceID string `json:"traceId"`
	Chains  []struct {
		At      time.Time `json:"at"`
		TraceID string    `json:"traceId"`
		Steps   []struct {
			At                          time.Time
			Kind, Text, Source, TraceID string
		} `json:"steps"`
	} `json:"chains"`
	Waiting     []struct{ Step, Resource, Message string } `json:"waiting"`
	EarlierUIDs []string                                   `json:"earlierUids"`
	Missing     []string                                   `json:"missing"`
}

// why asks why, and gives the chains as lines.
func why(ctx context.Context, s *harness.Stack, namespace, name string, more ...string) (whyAnswer, []string, error) {
	q := url.Values{"namespace": {namespace}, "pod": {name}}
	for i := 0; i < len(more); i += 2 {
		q.Set(more[i], more[i+1])
	}
	var y whyAnswer
	a, err := s.Want(ctx, 200, "GET", "/podplane/v1/why?"+q.Encode(), "", nil)
	if err != nil {
		return y, nil, err
	}
	if err := json.Unmarshal(a.Body, &y); err != nil {
		return y, nil, fmt.Errorf("decode %s: %w", a.Body, err)
	}
	var lines []string
	for _, c := range y.Chains {
		var texts []string
		for _, st := range c.Steps {
			texts = append(texts, st.Text)
		}
		lines = append(lines, strings.Join(texts, " -> "))
	}
	return y, lines, nil
}

// wantWhy waits until the answer has, in this order, a line that matches each pattern. Every step has a time and a source.
func wantWhy(t *testing.T, ctx context.Context, s *harness.Stack, name string, patterns ...string) whyAnswer {
	t.Helper()
	var y whyAnswer
	testkit.Eventually(ctx, t, "why "+name, func(ctx context.Context) error {
		var lines []string
		var err error
		if y, lines, err = why(ctx, s, ns(t), name); err != nil {
			return err
		}
		rest := lines
		for _, p := range patterns {
			re := regexp.MustCompile("^" + p + "$")
			i := 0
			for i < len(rest) && !re.MatchString(rest[i]) {
				i++
			}
			if i == len(rest) {
				return fmt.Errorf("no line %q in:\n%s", p, strings.Join(lines, "\n"))
			}
			rest = rest[i+1:]
		}
		return nil
	})
	for _, c := range y.Chains {
		for _, st := range c.Steps {
			if st.At.IsZero() || st.Source == "" || st.Text == "" {
				t.Errorf("a step lacks its time, its source or its text: %+v", st)
			}
		}
	}
	if len(y.Missing) > 0 {
		t.Errorf("missing: %v", y.Missing)
	}
	return y
}

// count is how many lines match.
func count(t *testing.T, ctx context.Context, s *harness.Stack, name, pattern string) int {
	t.Helper()
	_, lines, err := why(ctx, s, ns(t), name)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, l := range lines {
		if regexp.MustCompile(pattern).MatchString(l) {
			n++
		}
	}
	return n
}

const (
	whyRuns  = `pod created over the API -> it is to run here -> sandbox ready`
	whyFirst = `sandbox ready -> its image and volumes are there -> container app started`
)

// TestWhyCrash tells of a crash loop, whose back-off outlives a kill of syncd, and still does when the pod is gone.
func TestWhyCrash(t *testing.T) {
	s, ctx := newStack(t, "PODPLANE_SYNCD_MAX_RESTART_DELAY=5s"), testContext(t)
	p, err := s.Apply(ctx, ns(t), manifest("crash", `
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: $IMAGE, args: [exit, "7"]}]
`))
	if err != nil {
		t.Fatal(err)
	}
	wantWhy(t, ctx, s, "crash", `container app ended with exit code 7 -> restartPolicy Always, back-off 5s.*`)
	if err := s.Kill("syncd"); err != nil {
		t.Fatal(err)
	}
	wantWhy(t, ctx, s, "crash", whyRuns, whyFirst,
		`container app ended with exit code 7 -> restartPolicy Always -> container app started as restart 1.*`,
		`container app ended with exit code 7 -> restartPolicy Always, back-off 5s -> container app started as restart 2.*`)
	if n := count(t, ctx, s, "crash", `back-off 5s.*as restart 2`); n != 1 {
		t.Errorf("the restart that syncd was killed before is told %d times", n)
	}
	if err := s.Delete(ctx, ns(t), "crash", 1); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitGone(ctx, ns(t), "crash"); err != nil {
		t.Fatal(err)
	}
	y := wantWhy(t, ctx, s, "crash", whyRuns, whyFirst, `.*as restart 2.*`, `pod deleted, grace period 1s -> .* -> the pod is gone`)
	if y.UID != string(p.UID) || y.Phase != "Gone" {
		t.Errorf("pod %s is %s, want %s to be Gone", y.UID, y.Phase, p.UID)
	}
	// Another pod of the name: the last one is told of, and the one before is named.
	again, err := s.Apply(ctx, ns(t), manifest("crash", `
  containers: [{name: app, image: $IMAGE, args: [sleep, forever]}]
`))
	if err != nil {
		t.Fatal(err)
	}
	y = wantWhy(t, ctx, s, "crash", whyRuns, whyFirst)
	if y.UID != string(again.UID) || len(y.EarlierUIDs) != 1 || y.EarlierUIDs[0] != string(p.UID) || y.Phase == "Gone" {
		t.Errorf("the second pod: %+v", y)
	}
	if _, lines, err := why(ctx, s, ns(t), "", "uid", string(p.UID)); err != nil || len(lines) < 5 {
		t.Errorf("the first one by its UID: %v, %v", lines, err)
	}
	// Whoever may read one namespace reads no other one by a UID.
	for path, code := range map[string]int{
		"namespace=other&uid=" + string(p.UID): 404, "namespace=" + ns(t) + "&pod=never": 404, "namespace=" + ns(t): 400, "pod=a&since=tomorrow": 400,
	} {
		if _, err := s.Want(ctx, code, "GET", "/podplane/v1/why?"+path, "", nil); err != nil {
			t.Error(err)
		}
	}
}

// TestWhyOOM tells that the kernel ended a container.
func TestWhyOOM(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("oom", `
  restartPolicy: Never
  containers: [{name: app, image: $IMAGE, args: [hog, 200Mi], resources: {limits: {memory: 32Mi}}}]
`)); err != nil {
		t.Fatal(err)
	}
	wantWhy(t, ctx, s, "oom", whyRuns, whyFirst,
		`container app ended with exit code 137 \(OOMKilled\) -> restartPolicy Never: nothing is left to run -> no container of the pod runs any more -> sandbox stopped`)
}

// TestWhyProbes tells which probe made a pod not ready, which killed its container, and what came of it.
func TestWhyProbes(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("sick", `
  terminationGracePeriodSeconds: 2
  containers:
  - name: app
    image: $IMAGE
    args: [serve, -addr, ":8080", -unhealthy-after, 3s]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 1}
    livenessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 3}
`)); err != nil {
		t.Fatal(err)
	}
	wantWhy(t, ctx, s, "sick", whyRuns, whyFirst,
		`readiness probe HTTP /healthz succeeded -> ready`,
		`readiness probe HTTP /healthz failed.*: 50\d -> not ready`,
		`liveness probe HTTP /healthz failed 3 times: 50\d -> asked to stop within 2s -> container app ended with exit code \d+ after .* -> restartPolicy Always -> container app started as restart 1.*`)
}

// TestWhySpecChange tells that a changed image restarted a container.
func TestWhySpecChange(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	p, err := s.Apply(ctx, ns(t), manifest("changed", `
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: $IMAGE, args: [sleep, forever]}]
`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitReady(ctx, ns(t), "changed"); err != nil {
		t.Fatal(err)
	}
	p.Spec.Containers[0].Image, p.ResourceVersion = otherImage(t), ""
	body, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Want(ctx, 200, "PUT", pods(t)+"/changed", "application/json", body); err != nil {
		t.Fatal(err)
	}
	wantWhy(t, ctx, s, "changed", whyRuns, whyFirst,
		`definition of container app changed: its image is \S+ now -> asked to stop within \S+ -> container app ended with exit code 0.* -> restartPolicy Always -> container app started as restart 1.*`)
}

// TestWhyWaits tells what a pod waits for, and since when.
func TestWhyWaits(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("waits", `
  volumes: [{name: config, configMap: {name: nowhere}}]
  containers: [{name: app, image: $IMAGE, args: [sleep, forever], volumeMounts: [{name: config, mountPath: /c}]}]
`)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(ctx, t, "the pod says what it waits for", func(ctx context.Context) error {
		out, err := exec.CommandContext(ctx, s.Binary(), "why", "waits", "-n", ns(t), "-s", s.Server()).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if !regexp.MustCompile(`(?m)^now: waits \S+s for volumes config: .*nowhere`).Match(out) {
			return fmt.Errorf("it says %s", out)
		}
		return nil
	})
}

// TestWhyEviction tells that the node was short of memory, and which pod paid for it.
func TestWhyEviction(t *testing.T) {
	proc := t.TempDir()
	pretend(t, proc, "4000000")
	s, ctx := newStack(t, "PODPLANE_EVICTD_PROC_ROOT="+proc, "PODPLANE_EVICTD_CGROUP_ROOT="+proc,
		"PODPLANE_EVICTD_EVICTION_HARD=memory.available<1Gi", "PODPLANE_EVICTD_EVICTION_PRESSURE_TRANSITION_PERIOD=5s"), testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("greedy", `
  terminationGracePeriodSeconds: 2
  containers: [{name: app, image: $IMAGE, args: [sleep, forever]}]
`)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitReady(ctx, ns(t), "greedy"); err != nil {
		t.Fatal(err)
	}
	wantRankOf(t, ctx, s, "greedy")
	pretend(t, proc, "900000")
	if _, err := s.WaitPod(ctx, ns(t), "greedy", "is evicted", phaseIs(corev1.PodFailed)); err != nil {
		t.Fatal(err)
	}
	pretend(t, proc, "4000000")
	wantWhy(t, ctx, s, "greedy", whyRuns, whyFirst,
		`evicted: The node was low on resource: memory.* -> its containers are stopped.*`,
		`evicted: The node was low on resource: memory.* -> (killed at once|asked to stop within .*) -> container app ended with exit code \d+.*`)
}

// wantRankOf waits until evictd has measured the pod.
func wantRankOf(t *testing.T, ctx context.Context, s *harness.Stack, name string) {
	t.Helper()
	eventually(t, ctx, "the pod is ranked", func() bool {
		a, err := s.Want(ctx, 200, "GET", "/podplane/v1/evictions/rank?signal=memory.available", "", nil)
		return err == nil && strings.Contains(string(a.Body), name)
	})
}
