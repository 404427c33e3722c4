package e2e_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestVolumes mounts one of each kind and reads what is in them.
func TestVolumes(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	host := t.TempDir()
	if err := os.WriteFile(filepath.Join(host, "from-host"), []byte("host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for path, body := range map[string]string{
		"configmaps": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cm}\ndata: {greeting: \"hello\\n\"}\n",
		"secrets":    "apiVersion: v1\nkind: Secret\nmetadata: {name: sec}\nstringData: {password: \"hunter2\\n\"}\n",
	} {
		if _, err := s.Want(ctx, http.StatusCreated, http.MethodPost, "/api/v1/namespaces/"+ns(t)+"/"+path, "application/yaml", []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	p, err := s.Apply(ctx, ns(t), manifest("vols", `
  restartPolicy: Never
  volumes:
  - {name: scratch, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: host, hostPath: {path: `+host+`, type: Directory}}
  - {name: cm, configMap: {name: cm, items: [{key: greeting, path: deep/greeting.txt, mode: 0400}]}}
  - {name: sec, secret: {secretName: sec}}
  - {name: maybe, configMap: {name: not-there, optional: true}}
  containers:
  - name: app
    image: $IMAGE
    args: [seq, write, /scratch/f, x, --, cat, /host/from-host, /cm/deep/greeting.txt, /sec/password, --, mounts, /memory, --, mounts, /sec, --, ls, /maybe]
    volumeMounts:
    - {name: scratch, mountPath: /scratch}
    - {name: memory, mountPath: /memory}
    - {name: host, mountPath: /host, readOnly: true}
    - {name: cm, mountPath: /cm}
    - {name: sec, mountPath: /sec}
    - {name: maybe, mountPath: /maybe}
`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitPod(ctx, ns(t), "vols", "has succeeded", phaseIs(corev1.PodSucceeded)); err != nil {
		t.Fatal(err)
	}
	log, err := s.Log(ctx, ns(t), "vols", "")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(log, "host\nhello\nhunter2\n") || strings.Count(log, "tmpfs") < 2 {
		t.Errorf("log:\n%s", log)
	}
	// A pod that ran to its end keeps its record, not its volumes.
	eventually(t, ctx, "the volumes of the ended pod are torn down", func() bool {
		entries, err := os.ReadDir(filepath.Join(s.Root(), "pods", string(p.UID), "volumes"))
		return os.IsNotExist(err) || err == nil && len(entries) == 0
	})
	if err := s.Delete(ctx, ns(t), "vols", 1); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitGone(ctx, ns(t), "vols"); err != nil {
		t.Fatal(err)
	}
	wantNothingLeft(t, s, string(p.UID))
	if _, err := os.Stat(filepath.Join(host, "from-host")); err != nil {
		t.Errorf("the host's own file: %v", err)
	}
}

// TestConfigMapUpdatesReachARunningPod changes a ConfigMap under a pod.
func TestConfigMapUpdatesReachARunningPod(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	base := "/api/v1/namespaces/" + ns(t) + "/configmaps"
	body := func(v string) []byte {
		return []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cm}\ndata: {file: " + v + "}\n")
	}
	if _, err := s.Want(ctx, 201, http.MethodPost, base, "application/yaml", body("before")); err != nil {
		t.Fatal(err)
	}
	p, err := s.Apply(ctx, ns(t), manifest("reader", `
  volumes: [{name: cm, configMap: {name: cm}}]
  containers: [{name: app, image: $IMAGE, args: [sleep, forever], volumeMounts: [{name: cm, mountPath: /cm}]}]
`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitReady(ctx, ns(t), "reader"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Want(ctx, 200, http.MethodPut, base+"/cm", "application/yaml", body("after")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(s.Root(), "pods", string(p.UID), "volumes", "kubernetes.io~configmap", "cm", "file")
	eventually(t, ctx, "the mounted file has the new content", func() bool {
		data, err := os.ReadFile(file)
		return err == nil && string(data) == "after"
	})
}

// TestMissingConfigMapIsExplained holds the pod back and says why, then lets
// it start when the object comes.
func TestMissingConfigMapIsExplained(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("waits", `
  volumes: [{name: cm, configMap: {name: later}}]
  containers: [{name: app, image: $IMAGE, args: [sleep, forever], volumeMounts: [{name: cm, mountPath: /cm}]}]
`)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitPod(ctx, ns(t), "waits", "is ContainerCreating", func(p *corev1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == "ContainerCreating"
	}); err != nil {
		t.Fatal(err)
	}
	wantEvents(t, s, ns(t), "waits", "FailedMount")
	if _, err := s.Want(ctx, 201, http.MethodPost, "/api/v1/namespaces/"+ns(t)+"/configmaps", "application/yaml",
		[]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: later}\ndata: {a: b}\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitReady(ctx, ns(t), "waits"); err != nil {
		t.Fatal(err)
	}
}

// TestSecretsStaySecret looks for a secret's value wherever it has no business.
func TestSecretsStaySecret(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), testContext(t)
	const value = "correct-horse-battery-staple"
	if _, err := s.Want(ctx, 201, http.MethodPost, "/api/v1/namespaces/"+ns(t)+"/secrets", "application/yaml",
		[]byte("apiVersion: v1\nkind: Secret\nmetadata: {name: sec}\nstringData: {password: "+value+"}\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Apply(ctx, ns(t), manifest("holder", `
  volumes: [{name: sec, secret: {secretName: sec}}]
  containers:
  - name: app
    image: $IMAGE
    args: [sleep, forever]
    env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: sec, key: password}}}]
    volumeMounts: [{name: sec, mountPath: /sec}]
`)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitReady(ctx, ns(t), "holder"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pods(t) + "/holder", "/api/v1/namespaces/" + ns(t) + "/events", "/podplane/v1/volumes", "/podplane/v1/lifecycle"} {
		a, err := s.Want(ctx, 200, http.MethodGet, path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(a.Body), value) {
			t.Errorf("%s holds the secret's value", path)
		}
	}
	logs, err := filepath.Glob(filepath.Join(s.Root(), "log", "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("no logs of the services: %v", err)
	}
	for _, f := range logs {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), value) {
			t.Errorf("%s holds the secret's value", f)
		}
	}
}
