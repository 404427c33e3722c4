package e2e_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	corev1 "k8s.io/api/core/v1"

	podimage "github.com/podplane/podplane/internal/image"
	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

// privateImage stores a copy of the test image, with content of its own, in a repository that asks for alice's password.
func privateImage(t *testing.T, node *testkit.Node, name string) (full, repository string) {
	t.Helper()
	local, err := testkit.Local()
	if err != nil {
		t.Fatal(err)
	}
	img, err := podimage.ReadArchive(filepath.Join(local, "images", "app.tar"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	own := config.Config.DeepCopy()
	unique := strings.ToLower(rand.Text()) // the node outlives this run of the test
	own.Env = append(own.Env, "IMAGE="+unique)
	if img, err = mutate.Config(img, *own); err != nil {
		t.Fatal(err)
	}
	repository = ns(t) + "/" + name + "-" + unique
	full = node.Push(t, repository+":1", img)
	setRule(t, node, repository, &testkit.Rule{User: "alice", Password: "wonderland"})
	return full, repository
}

func setRule(t *testing.T, node *testkit.Node, repository string, rule *testkit.Rule) {
	t.Helper()
	node.Registry.SetRule(repository, rule)
	t.Cleanup(func() { node.Registry.SetRule(repository, nil) })
}

// pullSecret makes a Secret with credentials for the registry.
func pullSecret(t *testing.T, s *harness.Stack, namespace, name, registry, user, password string) {
	t.Helper()
	config, err := json.Marshal(map[string]any{"auths": map[string]any{registry: map[string]string{"username": user, "password": password}}})
	if err != nil {
		t.Fatal(err)
	}
	secret, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]string{"name": name}, "type": corev1.SecretTypeDockerConfigJson,
		"stringData": map[string]string{corev1.DockerConfigJsonKey: string(config)},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := "/api/v1/namespaces/" + namespace + "/secrets"
	if _, err := s.Want(t.Context(), 201, http.MethodPost, path, "application/json", secret); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		if _, err := s.Want(ctx, 200, http.MethodDelete, path+"/"+name, "", nil); err != nil {
			t.Error(err)
		}
	})
}

// waiting waits until the pod's first container waits for this reason.
func waiting(ctx context.Context, s *harness.Stack, namespace, name, reason string) (*corev1.Pod, error) {
	return s.WaitPod(ctx, namespace, name, "waits with reason "+reason, func(p *corev1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == reason
	})
}

// TestPrivateImage: a pod gets a private image once its secret is there, and other pods without that secret do not get it though it is on the node.
func TestPrivateImage(t *testing.T) {
	t.Parallel()
	s, ctx, node := shared(t), testContext(t), testkit.Containerd(t)
	private, repository := privateImage(t, node, "private")
	apply := func(name, more string) {
		t.Helper()
		if _, err := s.Apply(ctx, ns(t), manifest(name, fmt.Sprintf(`
  terminationGracePeriodSeconds: 1%s
  containers: [{name: app, image: %q, args: [sleep, forever]}]
`, more, private))); err != nil {
			t.Fatal(err)
		}
	}
	const withSecret = "\n  imagePullSecrets: [{name: alice}]"
	apply("owner", withSecret)
	if _, err := waiting(ctx, s, ns(t), "owner", "ImagePullBackOff"); err != nil {
		t.Fatal(err)
	}
	wantEvents(t, s, ns(t), "owner", "FailedToRetrieveImagePullSecret", "Pulling", "Failed", "BackOff")
	pullSecret(t, s, ns(t), "alice", node.Registry.Host, "alice", "wonderland")
	if _, err := s.WaitReady(ctx, ns(t), "owner"); err != nil {
		t.Fatal(err)
	}
	once := node.Registry.Pulls(repository)
	apply("friend", withSecret)
	if _, err := s.WaitReady(ctx, ns(t), "friend"); err != nil {
		t.Fatal(err)
	}
	if n := node.Registry.Pulls(repository); n != once {
		t.Errorf("the image that is there was pulled again")
	}
	apply("stranger", "")
	p, err := waiting(ctx, s, ns(t), "stranger", "ImagePullBackOff")
	if err != nil {
		t.Fatal(err)
	}
	if m := p.Status.ContainerStatuses[0].State.Waiting.Message; !strings.Contains(m, "Back-off pulling image") || !strings.Contains(m, "ErrImagePull") {
		t.Errorf("message %q", m)
	}
	for _, e := range events(t, s, ctx, ns(t)) {
		if strings.Contains(e.Message, "wonderland") {
			t.Errorf("an Event tells the password: %s", e.Message)
		}
	}
}

// TestPullSurvivesSyncd kills syncd in the middle of a pull: the pod gets its image from the next one, and it is for this pod only.
func TestPullSurvivesSyncd(t *testing.T) {
	node := testkit.Containerd(t)
	s, ctx := newStack(t), testContext(t)
	private, repository := privateImage(t, node, "held")
	hold := make(chan struct{})
	reached := make(chan struct{}, 100)
	setRule(t, node, repository, &testkit.Rule{User: "alice", Password: "wonderland", Blob: func(ctx context.Context, _ int) error {
		select {
		case reached <- struct{}{}:
		default:
		}
		select {
		case <-hold:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}})
	pullSecret(t, s, ns(t), "alice", "http://"+node.Registry.Host+"/v2/", "alice", "wonderland")
	spec := `
  terminationGracePeriodSeconds: 1%s
  containers: [{name: app, image: "` + private + `", args: [sleep, forever]}]
`
	if _, err := s.Apply(ctx, ns(t), manifest("owner", fmt.Sprintf(spec, "\n  imagePullSecrets: [{name: alice}]"))); err != nil {
		t.Fatal(err)
	}
	select {
	case <-reached:
	case <-ctx.Done():
		t.Fatal("the pull did not begin")
	}
	if err := s.Kill("syncd"); err != nil {
		t.Fatal(err)
	}
	close(hold)
	if _, err := s.WaitReady(ctx, ns(t), "owner"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Apply(ctx, ns(t), manifest("stranger", fmt.Sprintf(spec, ""))); err != nil {
		t.Fatal(err)
	}
	if _, err := waiting(ctx, s, ns(t), "stranger", "ErrImagePull"); err != nil {
		t.Fatal(err)
	}
}

// TestImageVolume mounts images, whole and in part, in two containers, one of them for init.
func TestImageVolume(t *testing.T) {
	t.Parallel()
	s, ctx, node := shared(t), testContext(t), testkit.Containerd(t)
	content, err := podimage.Build(podimage.Spec{Files: map[string]podimage.File{
		"/hello": {Content: []byte("from the image\n"), Mode: 0o644}, "/dir/inner": {Content: []byte("from within\n"), Mode: 0o644},
	}})
	if err != nil {
		t.Fatal(err)
	}
	data := node.Push(t, ns(t)+"/data:1", content)
	if _, err := s.Apply(ctx, ns(t), manifest("volume", fmt.Sprintf(`
  restartPolicy: Never
  volumes:
  - {name: data, image: {reference: %q}}
  - {name: scratch, emptyDir: {}}
  initContainers: [{name: first, image: $IMAGE, args: [cat, /v/hello], volumeMounts: [{name: data, mountPath: /v}]}]
  containers:
  - {name: whole, image: $IMAGE, args: [seq, cat, /v/hello, /v/dir/inner, --, write, /v/new, x], volumeMounts: [{name: data, mountPath: /v}, {name: scratch, mountPath: /s}]}
  - {name: part, image: $IMAGE, args: [cat, /p/inner], volumeMounts: [{name: data, mountPath: /p, subPath: dir}]}
`, data))); err != nil {
		t.Fatal(err)
	}
	p, err := s.WaitPod(ctx, ns(t), "volume", "has ended", func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodFailed })
	if err != nil {
		t.Fatal(err)
	}
	for container, want := range map[string]string{"first": "from the image\n", "whole": "from the image\nfrom within\n", "part": "from within\n"} {
		log, err := s.Log(ctx, ns(t), "volume", "container="+container)
		if err != nil || !strings.Contains(log, want) {
			t.Errorf("container %s printed %q: %v", container, log, err)
		}
		if container == "whole" && !strings.Contains(log, "read-only file system") {
			t.Errorf("an image was written to: %q", log)
		}
	}
	if err := s.Delete(ctx, ns(t), "volume", 0); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitGone(ctx, ns(t), "volume"); err != nil {
		t.Fatal(err)
	}
	wantNothingLeft(t, s, string(p.UID))
}

// TestImageVolumeThatCannotBePulled: the container that mounts it waits and says why, the other one runs.
func TestImageVolumeThatCannotBePulled(t *testing.T) {
	t.Parallel()
	s, ctx, node := shared(t), testContext(t), testkit.Containerd(t)
	if _, err := s.Apply(ctx, ns(t), manifest("volume", fmt.Sprintf(`
  terminationGracePeriodSeconds: 1
  volumes: [{name: data, image: {reference: %q}}]
  containers:
  - {name: app, image: $IMAGE, args: [sleep, forever], volumeMounts: [{name: data, mountPath: /v}]}
  - {name: other, image: $IMAGE, args: [sleep, forever]}
`, node.Registry.Name("nothing:1")))); err != nil {
		t.Fatal(err)
	}
	p, err := waiting(ctx, s, ns(t), "volume", "ImagePullBackOff")
	if err != nil {
		t.Fatal(err)
	}
	if m := p.Status.ContainerStatuses[0].State.Waiting.Message; !strings.Contains(m, "nothing:1") {
		t.Errorf("message %q", m)
	}
	if _, err := s.WaitPod(ctx, ns(t), "volume", "runs its other container", func(p *corev1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) == 2 && p.Status.ContainerStatuses[1].State.Running != nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestCredentialProviderAndProgress: a plugin has the credentials; the pull that it is for takes long and says so.
func TestCredentialProviderAndProgress(t *testing.T) {
	node := testkit.Containerd(t)
	private, repository := privateImage(t, node, "plugged")
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("plugin", "#!/bin/sh\ncat > "+dir+"/asked\n"+`echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Registry",`+
		`"auth":{"`+node.Registry.Host+`":{"username":"alice","password":"wonderland"}}}'`+"\n", 0o700)
	config := write("providers.yaml", `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: plugin
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ["`+node.Registry.Host+`"]
  defaultCacheDuration: 10m
`, 0o600)
	s := newStack(t, "PODPLANE_SYNCD_IMAGES_CREDENTIAL_PROVIDER_CONFIG="+config, "PODPLANE_SYNCD_IMAGES_CREDENTIAL_PROVIDER_BIN_DIR="+dir,
		"PODPLANE_SYNCD_IMAGES_PULL_PROGRESS=1s")
	ctx := testContext(t)
	hold := make(chan struct{})
	setRule(t, node, repository, &testkit.Rule{User: "alice", Password: "wonderland", Blob: func(ctx context.Context, _ int) error {
		select {
		case <-hold:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}})
	if _, err := s.Apply(ctx, ns(t), manifest("plugged", `
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: "`+private+`", args: [sleep, forever]}]
`)); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, "an Event tells how far the pull is", func() bool {
		for _, e := range events(t, s, ctx, ns(t)) {
			if e.Reason == "Pulling" && strings.Contains(e.Message, "Still pulling image") && strings.Contains(e.Message, "downloads under way") {
				return true
			}
		}
		return false
	})
	close(hold)
	if _, err := s.WaitReady(ctx, ns(t), "plugged"); err != nil {
		t.Fatal(err)
	}
	asked, err := os.ReadFile(filepath.Join(dir, "asked"))
	if err != nil || !strings.Contains(string(asked), `"image":"`+node.Registry.Host+"/"+repository+`"`) {
		t.Errorf("the plugin was asked %q: %v", asked, err)
	}
}
