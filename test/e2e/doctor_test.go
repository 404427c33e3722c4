package e2e_test

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

// finding is one of `podplane doctor`.
type finding struct{ Check, Level, Found, Why, Mend string }

// doctor runs `podplane doctor`: its findings, and whether it was content.
func doctor(t *testing.T, s *harness.Stack, args ...string) ([]finding, bool) {
	t.Helper()
	args = append([]string{
		"doctor", "-o", "json", "--node", s.Node(), "--pod-log-dir", s.PodLogDir(), "--cgroup-root", filepath.Join(testkit.Containerd(t).CgroupParent, s.Node()),
		"--cri-endpoint", testkit.Containerd(t).Endpoint,
	}, append(hostArgs(s), args...)...)
	out, err := command(t, s, args...)
	data, _, _ := strings.Cut(out, "\npodplane doctor:") // what went to the standard error
	var report struct {
		Worst    string
		Findings []finding
	}
	if decode := json.Unmarshal([]byte(data), &report); decode != nil {
		t.Fatalf("%v\n%s", decode, out)
	}
	if (err != nil) != (report.Worst == "problem") {
		t.Errorf("the worst is %s and the command ended with %v", report.Worst, err)
	}
	return report.Findings, err == nil
}

func wantFinding(t *testing.T, findings []finding, check, level, found string) {
	t.Helper()
	for _, f := range findings {
		if f.Check == check && f.Level == level && strings.Contains(f.Found, found) {
			return
		}
	}
	t.Errorf("no finding %s %s that says %q in %+v", check, level, found, findings)
}

// TestDoctor looks at a stack that is well, and then at what is done to it: nothing else is a problem.
func TestDoctor(t *testing.T) {
	s := newStack(t)
	ctx := testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("one", "\n  containers:\n  - {name: main, image: $IMAGE, args: [sleep, forever]}\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitReady(ctx, ns(t), "one"); err != nil {
		t.Fatal(err)
	}
	findings, well := doctor(t, s)
	if !well {
		t.Fatalf("a stack that is well: %+v\n%s", findings, s.Logs())
	}
	for check, found := range map[string]string{
		"bus": "answers", "services": "6 replicas are ready", "leftovers": "none", "records": "MiB", "key": "nats.key", "runtime": "containerd",
		"RuntimeReady": "", "NetworkReady": "", "port": "podplane",
	} {
		wantFinding(t, findings, check, "ok", found)
	}

	// A pod's directory that nobody knows.
	stray := filepath.Join(s.Root(), "pods", "00000000-1111-4222-8333-444444444444")
	eventually(t, ctx, "doctor sees the directory", func() bool {
		if err := os.MkdirAll(stray, 0o700); err != nil { // syncd may have swept it away
			t.Fatal(err)
		}
		findings, well := doctor(t, s)
		for _, f := range findings {
			if f.Check == "leftovers" && f.Level == "warning" && strings.Contains(f.Found, stray) {
				return well
			}
		}
		return false
	})
	if err := os.RemoveAll(stray); err != nil {
		t.Fatal(err)
	}

	brokenService(t, s)
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	brokenHost(t, s)
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

// brokenService stops prober: nobody is killed for it, and doctor says that it is silent once its registration is gone.
func brokenService(t *testing.T, s *harness.Stack) {
	pid, err := s.PID("prober")
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	}()
	eventually(t, testContext(t), "prober is not registered any more", func() bool {
		findings, well := doctor(t, s)
		for _, f := range findings {
			if f.Level == "problem" && f.Found == "prober is not registered" {
				return !well
			}
		}
		return false
	})
}

// brokenHost has another program on the port, no key of the records, and no runtime.
func brokenHost(t *testing.T, s *harness.Stack) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	key := filepath.Join(s.Root(), "nats.key")
	if err := os.Rename(key, key+".lost"); err != nil {
		t.Fatal(err)
	}
	findings, well := doctor(t, s, "--listen", l.Addr().String(), "--cri-endpoint", "unix:///nowhere.sock")
	if err := os.Rename(key+".lost", key); err != nil {
		t.Fatal(err)
	}
	if well {
		t.Error("a broken host is well")
	}
	wantFinding(t, findings, "port", "problem", "e2e.test")
	wantFinding(t, findings, "key", "problem", "is gone")
	wantFinding(t, findings, "runtime", "problem", "no socket")
	wantFinding(t, findings, "podplane", "warning", "not up")
	if _, err := os.Stat(key); err != nil {
		t.Errorf("doctor changed something: %v", err)
	}
}
