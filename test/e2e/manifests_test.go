package e2e_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/test/harness"
)

// TestManifestDirectory puts, changes, breaks and removes files.
func TestManifestDirectory(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	good := filepath.Join(s.ManifestDir(), ns(t)+"-good.yaml")
	bad := filepath.Join(s.ManifestDir(), ns(t)+"-bad.yaml")
	t.Cleanup(func() { _ = os.Remove(good); _ = os.Remove(bad) })
	m := strings.Replace(manifest("static", "\n  terminationGracePeriodSeconds: 1\n  containers: [{name: app, image: $IMAGE, args: [sleep, forever]}]\n"),
		"metadata:", "metadata:\n  namespace: "+ns(t), 1)
	put(t, bad, "apiVersion: v1\nkind: Pod\nmetadata:\n  name: [\n")
	put(t, good, m)
	name := "static-" + s.Node()
	first, err := s.WaitReady(ctx, ns(t), name)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, "an Event names the broken file and its line", func() bool {
		for _, e := range events(t, s, ctx, "") {
			if strings.Contains(e.Message, filepath.Base(bad)) && strings.Contains(e.Message, "line") {
				return true
			}
		}
		return false
	})
	put(t, good, strings.Replace(m, "[sleep, forever]", "[sleep, 1000s]", 1))
	if _, err := s.WaitPod(ctx, ns(t), name, "is another pod", func(p *corev1.Pod) bool {
		return harness.IsReady(p) && p.UID != first.UID
	}); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(good); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitGone(ctx, ns(t), name); err != nil {
		t.Fatal(err)
	}
	wantNothingLeft(t, s, string(first.UID))
}

// put writes a file as an editor does: beside, then renamed.
func put(t *testing.T, path, content string) {
	t.Helper()
	next := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
	if err := os.WriteFile(next, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

// events lists a namespace's Events; an empty namespace: all.
func events(t *testing.T, s *harness.Stack, ctx context.Context, namespace string) []corev1.Event {
	t.Helper()
	path := "/api/v1/events"
	if namespace != "" {
		path = "/api/v1/namespaces/" + namespace + "/events"
	}
	a, err := s.Want(ctx, 200, "GET", path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	var l corev1.EventList
	if err := json.Unmarshal(a.Body, &l); err != nil {
		t.Fatal(err)
	}
	return l.Items
}
