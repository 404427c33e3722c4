package e2e_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podplane/podplane/test/harness"
)

// command runs the command line on the stack's host: its standard output, and whether it succeeded.
func command(t *testing.T, s *harness.Stack, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(testContext(t), s.Binary(), args...)
	cmd.Env = append(os.Environ(), "PODPLANE_SERVER="+s.Server())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// mustCommand is command for what has to succeed.
func mustCommand(t *testing.T, s *harness.Stack, args ...string) string {
	t.Helper()
	out, err := command(t, s, args...)
	if err != nil {
		t.Fatalf("podplane %s: %v\n%s\n%s", strings.Join(args, " "), err, out, s.Logs())
	}
	return out
}

// hostArgs name the stack's directories to a command of the host.
func hostArgs(s *harness.Stack) []string {
	return []string{"--root", s.Root(), "--run-dir", s.RunDir()}
}

// TestRestoreAdoptsRunningPods loses the disk with the records under running pods and has them back from a backup: the containers go on, what was
// deleted meanwhile comes back, what was made meanwhile ends.
func TestRestoreAdoptsRunningPods(t *testing.T) {
	s := newStack(t)
	ctx := testContext(t)
	for path, object := range map[string]string{
		"configmaps": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {colour: green}\n",
		"secrets":    "apiVersion: v1\nkind: Secret\nmetadata: {name: login}\nstringData: {password: correct-horse-battery}\n",
	} {
		if _, err := s.Want(ctx, 201, "POST", "/api/v1/namespaces/"+ns(t)+"/"+path, "application/yaml", []byte(object)); err != nil {
			t.Fatal(err)
		}
	}
	spec := `
  containers:
  - name: main
    image: $IMAGE
    args: [sleep, forever]
    env:
    - {name: COLOUR, valueFrom: {configMapKeyRef: {name: settings, key: colour}}}
`
	for _, name := range []string{"kept", "deleted"} {
		if _, err := s.Apply(ctx, ns(t), manifest(name, spec)); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := s.WaitReady(ctx, ns(t), "kept")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitReady(ctx, ns(t), "deleted"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "records.backup")
	mustCommand(t, s, append([]string{"backup", file}, hostArgs(s)...)...)
	if data, err := os.ReadFile(file); err != nil || bytes.Contains(data, []byte("correct-horse")) || bytes.Contains(data, []byte("settings")) {
		t.Errorf("the backup is not encrypted, or can't be read: %v", err)
	}
	later, err := s.Apply(ctx, ns(t), manifest("later", spec))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitReady(ctx, ns(t), "later"); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(ctx, ns(t), "deleted", 0); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitGone(ctx, ns(t), "deleted"); err != nil {
		t.Fatal(err)
	}
	restore := append([]string{"restore", file}, hostArgs(s)...)
	if out, err := command(t, s, restore...); err == nil || !strings.Contains(out, "up already") {
		t.Errorf("restored under a running Podplane: %v %s", err, out)
	}
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if out, err := command(t, s, restore...); err == nil || !strings.Contains(out, "not empty") || !strings.Contains(out, "2 pods") {
		t.Errorf("restored over records: %v %s", err, out)
	}
	if err := os.RemoveAll(filepath.Join(s.Root(), "nats")); err != nil {
		t.Fatal(err)
	}
	mustCommand(t, s, restore...)
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	checkRestored(t, ctx, s, containerOf{kept.Name, harness.ContainerID(kept, "main")}, string(later.UID))
}

// containerOf is a pod's container.
type containerOf struct{ pod, id string }

func checkRestored(t *testing.T, ctx context.Context, s *harness.Stack, kept containerOf, later string) {
	t.Helper()
	p, err := s.WaitReady(ctx, ns(t), kept.pod)
	if err != nil {
		t.Fatal(err)
	}
	if got := harness.ContainerID(p, "main"); got != kept.id || p.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the running container was not adopted: %s, was %s, %d restarts", got, kept.id, p.Status.ContainerStatuses[0].RestartCount)
	}
	if _, err := s.WaitReady(ctx, ns(t), "deleted"); err != nil {
		t.Errorf("a pod of the backup does not come back: %v", err)
	}
	if err := s.WaitGone(ctx, ns(t), "later"); err != nil {
		t.Error(err)
	}
	wantNothingLeft(t, s, later)
	a, err := s.Want(ctx, 200, "GET", "/api/v1/namespaces/"+ns(t)+"/secrets/login", "", nil)
	if err != nil || !strings.Contains(string(a.Body), "Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5") {
		t.Errorf("the secret: %s %v", a.Body, err)
	}
	journal, err := s.Want(ctx, 200, "GET", "/podplane/v1/lifecycle", "", nil)
	if err != nil || !strings.Contains(string(journal.Body), kept.id) {
		t.Errorf("the journal does not know the container %s any more: %v", kept.id, err)
	}
	events, err := s.Want(ctx, 200, "GET", "/api/v1/namespaces/"+ns(t)+"/events", "", nil)
	if err != nil || !strings.Contains(string(events.Body), "Started") {
		t.Errorf("the Events are gone: %v", err)
	}
}
