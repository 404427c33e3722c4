package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

// gate is a directory that a pod mounts at /gate, in which it waits for a file.
type gate struct{ dir string }

func newGate(t *testing.T) gate { return gate{t.TempDir()} }

func (g gate) volume() string {
	return "\n  volumes: [{name: gate, hostPath: {path: " + g.dir + ", type: Directory}}]"
}

const gateMount = "volumeMounts: [{name: gate, mountPath: /gate}]"

func (g gate) open(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, "open"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestLogFollow reads a line while its container waits for the reader, then the last line and the end.
func TestLogFollow(t *testing.T) {
	t.Parallel()
	s, ctx, g := shared(t), testContext(t), newGate(t)
	if _, err := s.Apply(ctx, ns(t), manifest("talk", g.volume()+`
  restartPolicy: Never
  containers: [{name: app, image: $IMAGE, args: [seq, echo, first, --, wait-file, /gate/open, --, echo, last], `+gateMount+`}]
`)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitPod(ctx, ns(t), "talk", "runs", phaseIs(corev1.PodRunning)); err != nil {
		t.Fatal(err)
	}
	body := follow(t, ctx, s, "talk", "")
	if line, err := body.ReadString('\n'); line != "first\n" || err != nil {
		t.Fatalf("first line is %q, %v", line, err)
	}
	g.open(t)
	if rest, err := io.ReadAll(body); string(rest) != "last\n" || err != nil {
		t.Errorf("then came %q, %v; want the last line and the end", rest, err)
	}
	if _, err := s.WaitPod(ctx, ns(t), "talk", "has succeeded", phaseIs(corev1.PodSucceeded)); err != nil {
		t.Fatal(err)
	}
	if all, err := io.ReadAll(follow(t, ctx, s, "talk", "")); string(all) != "first\nlast\n" || err != nil {
		t.Errorf("to follow a container that has ended gave %q, %v", all, err)
	}
}

// follow reads a pod's log as it is written.
func follow(t *testing.T, ctx context.Context, s *harness.Stack, name, query string) *bufio.Reader {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Server()+pods(t)+"/"+name+"/log?follow=true&"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(resp.Body)
		t.Fatalf("follow the log of %s: %s: %s", name, resp.Status, body)
	}
	return bufio.NewReader(resp.Body)
}

// TestLogOptions cuts a log in each way.
func TestLogOptions(t *testing.T) {
	t.Parallel()
	s, ctx, g := shared(t), testContext(t), newGate(t)
	if _, err := s.Apply(ctx, ns(t), manifest("lines", g.volume()+`
  restartPolicy: Never
  containers: [{name: app, image: $IMAGE, args: [seq, log, -n, "5", line, --, wait-file, /gate/open, --, echo, late], `+gateMount+`}]
`)); err != nil {
		t.Fatal(err)
	}
	const early = "line 1\nline 2\nline 3\nline 4\nline 5\n"
	var stamped string
	testkit.Eventually(ctx, t, "the first lines", func(ctx context.Context) error {
		log, err := s.Log(ctx, ns(t), "lines", "timestamps=true")
		if err == nil && strings.Count(log, "\n") < 5 {
			err = fmt.Errorf("log is %q", log)
		}
		stamped = log
		return err
	})
	text, times := unstamp(t, stamped)
	if text != early {
		t.Errorf("without its times the log is %q", text)
	}
	for query, want := range map[string]string{
		"":                          early,
		"tailLines=2":               "line 4\nline 5\n",
		"tailLines=0":               "",
		"tailLines=99":              early,
		"limitBytes=8":              "line 1\nl",
		"tailLines=3&limitBytes=13": "line 3\nline 4",
		"sinceSeconds=3600":         early,
		"sinceTime=" + url.QueryEscape(times[4].Format(time.RFC3339Nano)): "line 5\n",
	} {
		if got, err := s.Log(ctx, ns(t), "lines", query); err != nil || got != want {
			t.Errorf("log?%s = %q, %v; want %q", query, got, err, want)
		}
	}
	eventually(t, ctx, "the first lines are some seconds old", func() bool { return time.Since(times[4]) > 4*time.Second })
	g.open(t)
	if _, err := s.WaitPod(ctx, ns(t), "lines", "has succeeded", phaseIs(corev1.PodSucceeded)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(ctx, t, "sinceSeconds leaves out what is older", func(ctx context.Context) error {
		query := fmt.Sprintf("sinceSeconds=%d", int(time.Since(times[4]).Seconds()))
		if got, err := s.Log(ctx, ns(t), "lines", query); err != nil || got != "late\n" {
			return fmt.Errorf("log?%s = %q, %w", query, got, err)
		}
		return nil
	})
}

// unstamp takes the time off each line, and fails unless they are in order.
func unstamp(t *testing.T, log string) (text string, times []time.Time) {
	t.Helper()
	for line := range strings.Lines(log) {
		stamp, rest, _ := strings.Cut(line, " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil {
			t.Fatalf("line %q has no time: %v", line, err)
		}
		if len(times) > 0 && at.Before(times[len(times)-1]) {
			t.Errorf("line %q is earlier than the one before", line)
		}
		text, times = text+rest, append(times, at)
	}
	return text, times
}

// TestLogPrevious reads the log of the instance before, which there may not be.
func TestLogPrevious(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("twice", `
  restartPolicy: OnFailure
  volumes: [{name: v, emptyDir: {}}]
  containers: [{name: app, image: $IMAGE, args: [fail-until, /v/n, "1"], volumeMounts: [{name: v, mountPath: /v}]}]
`)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Apply(ctx, ns(t), manifest("once", `
  restartPolicy: Never
  containers: [{name: app, image: $IMAGE, args: [echo, hello]}]
`)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"twice", "once"} {
		if _, err := s.WaitPod(ctx, ns(t), name, "has succeeded", phaseIs(corev1.PodSucceeded)); err != nil {
			t.Fatal(err)
		}
	}
	for query, want := range map[string]string{"": "run 2\n", "previous=true": "run 1\n"} {
		if got, err := s.Log(ctx, ns(t), "twice", query); err != nil || got != want {
			t.Errorf("log?%s = %q, %v; want %q", query, got, err, want)
		}
	}
	wantRefused(t, ctx, s, "once/log?previous=true", http.StatusBadRequest, `previous terminated container "app" in pod "once" not found`)
}

// TestLogErrors asks for what there is not, and is told so in Kubernetes' words.
func TestLogErrors(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	for name, spec := range map[string]string{
		"two": `
  initContainers: [{name: first, image: $IMAGE, args: [echo, hello]}]
  containers: [{name: a, image: $IMAGE, args: [sleep, forever]}, {name: b, image: $IMAGE, args: [sleep, forever]}]
`,
		"stuck": `
  volumes: [{name: v, configMap: {name: not-there}}]
  containers: [{name: app, image: $IMAGE, args: [sleep, forever], volumeMounts: [{name: v, mountPath: /v}]}]
`,
	} {
		if _, err := s.Apply(ctx, ns(t), manifest(name, spec)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.WaitReady(ctx, ns(t), "two"); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		path string
		code int
		want string
	}{
		{"two/log", http.StatusBadRequest, "a container name must be specified for pod two, choose one of: [a b] or one of the init containers: [first]"},
		{"two/log?container=c", http.StatusBadRequest, "container c is not valid for pod two"},
		{"two/log?container=a&previous=true", http.StatusBadRequest, `previous terminated container "a" in pod "two" not found`},
		{"stuck/log", http.StatusBadRequest, `container "app" in pod "stuck" is waiting to start: ContainerCreating`},
		{"nobody/log", http.StatusNotFound, `pods "nobody" not found`},
		{"two/log?container=a&tailLines=-1", http.StatusUnprocessableEntity, "tailLines"},
		{"two/log?container=a&limitBytes=0", http.StatusUnprocessableEntity, "limitBytes"},
		{"two/log?container=a&tailLines=many", http.StatusBadRequest, "tailLines"},
		{"two/log?container=a&sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z", http.StatusUnprocessableEntity, "sinceSeconds"},
	} {
		wantRefused(t, ctx, s, tc.path, tc.code, tc.want)
	}
	if log, err := s.Log(ctx, ns(t), "two", "container=first"); err != nil || log != "hello\n" {
		t.Errorf("log of the init container = %q, %v", log, err)
	}
}

// wantRefused GETs a path below the test's pods and wants a Status with a code and a message.
func wantRefused(t *testing.T, ctx context.Context, s *harness.Stack, path string, code int, message string) {
	t.Helper()
	a, err := s.Call(ctx, http.MethodGet, pods(t)+"/"+path, "", nil)
	if err != nil {
		t.Error(err)
		return
	}
	if a.Code != code || !strings.Contains(status(t, a).Message, message) {
		t.Errorf("%s: %d %s\nwant %d %s", path, a.Code, a.Body, code, message)
	}
}

// TestLogRotation follows a container while its log is rotated: no line is lost and none comes twice.
func TestLogRotation(t *testing.T) {
	t.Parallel()
	const lines = 6000 // at one in 5 ms some 30 s: syncd looks each 10 s whether a log is to be rotated
	s, ctx := newStack(t, "PODPLANE_SYNCD_CONTAINER_LOG_MAX_SIZE=4096", "PODPLANE_SYNCD_CONTAINER_LOG_FILES=3"), testContext(t)
	p, err := s.Apply(ctx, ns(t), manifest("chatty", fmt.Sprintf(`
  restartPolicy: Never
  containers: [{name: app, image: $IMAGE, args: [log, -n, "%d", -every, 5ms, line]}]
`, lines)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitPod(ctx, ns(t), "chatty", "runs", phaseIs(corev1.PodRunning)); err != nil {
		t.Fatal(err)
	}
	body, n := follow(t, ctx, s, "chatty", ""), 0
	for ; ; n++ {
		line, err := body.ReadString('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("after %d lines: %v", n, err)
		}
		if want := fmt.Sprintf("line %d\n", n+1); line != want {
			t.Fatalf("got %q, want %q", line, want)
		}
	}
	if n != lines {
		t.Errorf("%d lines came, want %d", n, lines)
	}
	dir := filepath.Join(s.PodLogDir(), ns(t)+"_chatty_"+string(p.UID), "app")
	files, err := filepath.Glob(filepath.Join(dir, "0.log*"))
	if err != nil || len(files) != 3 {
		t.Errorf("files of the log: %v, %v; want the present one and 2 rotated ones", files, err)
	}
}
