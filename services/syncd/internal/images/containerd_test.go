package images_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/random"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/services/syncd/internal/images"
	"github.com/podplane/podplane/services/syncd/internal/images/access"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// rig pulls with a real containerd from a real registry.
type rig struct {
	t      *testing.T
	node   *testkit.Node
	client *cri.Client
	dir    string

	mu      sync.Mutex
	events  []string
	said    chan struct{} // closed and replaced at each event
	secrets map[string]*v1.Secret
}

func newRig(t *testing.T) *rig {
	node := testkit.Containerd(t)
	return &rig{t: t, node: node, client: node.Client(t), dir: t.TempDir(), said: make(chan struct{}), secrets: map[string]*v1.Secret{}}
}

func (r *rig) PodEvent(p *v1.Pod, container, eventType, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf("%s %s %s %s", p.Name, eventType, reason, message))
	close(r.said)
	r.said = make(chan struct{})
}

func (r *rig) Secret(namespace, name string) (*v1.Secret, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.secrets[namespace+"/"+name]
	return s, ok
}

// waitFor waits for an Event that contains the words.
func (r *rig) waitFor(words string) {
	r.t.Helper()
	timeout := time.After(time.Minute)
	for {
		r.mu.Lock()
		said, all := r.said, strings.Join(r.events, "\n")
		r.mu.Unlock()
		if strings.Contains(all, words) {
			return
		}
		select {
		case <-said:
		case <-timeout:
			r.t.Fatalf("no event says %q:\n%s", words, all)
		}
	}
}

func (r *rig) told(words string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Contains(strings.Join(r.events, "\n"), words)
}

// push stores a new image of about this size and returns its name and repository.
func (r *rig) push(kib int64) (image, repository string) {
	r.t.Helper()
	img, err := random.Image(kib<<10, 1)
	if err != nil {
		r.t.Fatal(err)
	}
	// The node outlives this run of the test.
	repository = strings.ToLower(strings.ReplaceAll(r.t.Name(), "/", "-") + "-" + rand.Text())
	return r.node.Push(r.t, repository+":1", img), repository
}

// private makes a repository ask for alice's password.
func (r *rig) private(repository string, token bool) {
	r.node.Registry.SetRule(repository, &testkit.Rule{User: "alice", Password: "wonder land", Token: token})
	r.t.Cleanup(func() { r.node.Registry.SetRule(repository, nil) })
}

func (r *rig) rule(repository string, rule *testkit.Rule) {
	r.node.Registry.SetRule(repository, rule)
	r.t.Cleanup(func() { r.node.Registry.SetRule(repository, nil) })
}

// secret makes a pull secret for the registry, and its name.
func (r *rig) secret(namespace, name, user, password string) {
	raw, err := json.Marshal(map[string]any{"auths": map[string]any{"http://" + r.node.Registry.Host: map[string]string{"username": user, "password": password}}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.secrets[namespace+"/"+name] = &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)},
		Type:       v1.SecretTypeDockerConfigJson, Data: map[string][]byte{v1.DockerConfigJsonKey: raw},
	}
}

func podOf(namespace, name string, secrets ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "-" + name)}}
	for _, s := range secrets {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, v1.LocalObjectReference{Name: s})
	}
	return p
}

func (r *rig) guard(policy access.Policy) *access.Guard {
	r.t.Helper()
	g, err := access.Open(filepath.Join(r.dir, "image_manager"), access.Rule{Policy: policy})
	if err != nil {
		r.t.Fatal(err)
	}
	return g
}

func (r *rig) puller(cfg images.Config) *images.Puller { return images.New(cfg, r.client, r, r) }

func ensure(ctx context.Context, p *images.Puller, pod *v1.Pod, image string, policy v1.PullPolicy) error {
	_, err := p.Ensure(ctx, pod, images.Want{Container: "c", Image: image, Policy: policy})
	return err
}

func reason(err error) string {
	if e, ok := errors.AsType[*cri.ImageError](err); ok {
		return e.Reason
	}
	return ""
}

// TestPrivateImages: basic and token authentication, by secret and by the node's configuration.
func TestPrivateImages(t *testing.T) {
	for name, token := range map[string]bool{"basic": false, "token": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			image, repository := r.push(16)
			r.private(repository, token)
			p := r.puller(images.Config{NodeConfigs: []string{filepath.Join(r.dir, "none"), filepath.Join(r.dir, "config.json")}})
			if err := ensure(t.Context(), p, podOf("a", "without"), image, v1.PullIfNotPresent); !fault.Is(err, fault.Unauthenticated) || reason(err) != "ErrImagePull" {
				t.Errorf("without credentials: %v", err)
			}
			r.secret("a", "wrong", "alice", "guess")
			if err := ensure(t.Context(), p, podOf("a", "with-wrong", "wrong"), image, v1.PullIfNotPresent); !fault.Is(err, fault.Unauthenticated) {
				t.Errorf("with wrong credentials: %v", err)
			}
			r.secret("a", "good", "alice", "wonder land")
			if err := ensure(t.Context(), p, podOf("a", "with-both", "wrong", "good"), image, v1.PullAlways); err != nil {
				t.Errorf("with wrong and good credentials: %v", err)
			}
			config := fmt.Sprintf(`{"auths":{"%s/%s":{"auth":"YWxpY2U6d29uZGVyIGxhbmQ="}}}`, r.node.Registry.Host, repository)
			if err := os.WriteFile(filepath.Join(r.dir, "config.json"), []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := ensure(t.Context(), p, podOf("b", "by-node"), image, v1.PullAlways); err != nil {
				t.Errorf("with the node's credentials: %v", err)
			}
			if r.told("wonder land") || r.told("guess") {
				t.Errorf("events tell passwords: %q", r.events)
			}
		})
	}
}

// TestPodsNeedCredentialsOfTheirOwn: an image that one pod's secret pulled is not for pods without it.
func TestPodsNeedCredentialsOfTheirOwn(t *testing.T) {
	r := newRig(t)
	image, repository := r.push(16)
	r.private(repository, false)
	p := r.puller(images.Config{Guard: r.guard(access.NeverVerifyPreloadedImages)})
	r.secret("a", "s", "alice", "wonder land")
	r.secret("b", "copy", "alice", "wonder land")
	r.secret("b", "wrong", "mallory", "guess")
	pulled := func() int { return r.node.Registry.Pulls(repository) }
	if err := ensure(t.Context(), p, podOf("a", "first", "s"), image, v1.PullIfNotPresent); err != nil {
		t.Fatal(err)
	}
	once := pulled()
	for _, good := range []*v1.Pod{podOf("a", "again", "s"), podOf("b", "other", "copy")} {
		if err := ensure(t.Context(), p, good, image, v1.PullIfNotPresent); err != nil || pulled() != once {
			t.Errorf("%s: %v, %d pulls", good.Name, err, pulled()-once)
		}
	}
	for _, bad := range []*v1.Pod{podOf("b", "stranger"), podOf("b", "thief", "wrong"), podOf("a", "namesake")} {
		if err := ensure(t.Context(), p, bad, image, v1.PullIfNotPresent); reason(err) != "ErrImagePull" || !fault.Is(err, fault.Unauthenticated) {
			t.Errorf("%s may use the image: %v", bad.Name, err)
		}
		if err := ensure(t.Context(), p, bad, image, v1.PullNever); reason(err) != images.ReasonErrImageNeverPull {
			t.Errorf("%s may use the image that is never pulled: %v", bad.Name, err)
		}
	}
	r.rule(repository, &testkit.Rule{Away: true})
	if err := ensure(t.Context(), p, podOf("a", "offline", "s"), image, v1.PullIfNotPresent); err != nil {
		t.Errorf("with the registry away: %v", err)
	}
	next := r.puller(images.Config{Guard: r.guard(access.NeverVerifyPreloadedImages)})
	if err := ensure(t.Context(), next, podOf("b", "later"), image, v1.PullIfNotPresent); reason(err) != "ErrImagePull" {
		t.Errorf("after a restart: %v", err)
	}
	if err := ensure(t.Context(), next, podOf("b", "preloaded"), testkit.App, v1.PullIfNotPresent); err != nil {
		t.Errorf("an image that was not pulled here: %v", err)
	}
	always := r.puller(images.Config{Guard: r.guard(access.AlwaysVerify)})
	if err := ensure(t.Context(), always, podOf("b", "verified"), testkit.App, v1.PullIfNotPresent); reason(err) == "" {
		t.Error("a preloaded image needs no verification, though all do")
	}
	never := r.puller(images.Config{Guard: r.guard(access.NeverVerify)})
	if err := ensure(t.Context(), never, podOf("b", "trusted"), image, v1.PullIfNotPresent); err != nil {
		t.Errorf("without verification: %v", err)
	}
}

// TestImagesForAll: what was pulled without credentials is for all pods.
func TestImagesForAll(t *testing.T) {
	r := newRig(t)
	image, repository := r.push(16)
	p := r.puller(images.Config{Guard: r.guard(access.AlwaysVerify)})
	for i := range 3 {
		if err := ensure(t.Context(), p, podOf("ns", fmt.Sprint("p", i)), image, v1.PullIfNotPresent); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.node.Registry.Pulls(repository); n != 1 {
		t.Errorf("pulled %d times", n)
	}
	r.waitFor("already present on machine and can be accessed by the pod")
}

// TestFailures: a registry that is away, answers with errors, or breaks off half-way.
func TestFailures(t *testing.T) {
	r := newRig(t)
	image, repository := r.push(512)
	p := r.puller(images.Config{Guard: r.guard(access.NeverVerifyPreloadedImages)})
	var left int
	var mu sync.Mutex
	for _, test := range []struct {
		name  string
		rule  *testkit.Rule
		image string
		kind  fault.Kind
	}{
		{"away", &testkit.Rule{Away: true}, image, fault.Unavailable},
		{"nobody listens", nil, "127.0.0.1:1/x:1", fault.Unavailable},
		{"error", &testkit.Rule{Status: 503}, image, fault.Unavailable},
		{"no such tag", nil, strings.TrimSuffix(image, "1") + "2", fault.NotFound},
		{"breaks off", &testkit.Rule{Blob: func(context.Context, int) error {
			mu.Lock()
			defer mu.Unlock()
			if left--; left < 0 {
				return errors.New("broken")
			}
			return nil
		}}, image, fault.Unavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			left = 4
			r.rule(repository, test.rule)
			pod := podOf("ns", strings.ReplaceAll(test.name, " ", "-"))
			err := ensure(t.Context(), p, pod, test.image, v1.PullIfNotPresent)
			if reason(err) != "ErrImagePull" || !fault.Is(err, test.kind) {
				t.Errorf("reason %q, kind %v: %v", reason(err), fault.KindOf(err), err)
			}
			if !r.told(fmt.Sprintf("%s Warning Failed Failed to pull image %q: ", pod.Name, test.image)) {
				t.Errorf("events %q", r.events)
			}
		})
	}
	r.node.Registry.SetRule(repository, nil)
	if err := ensure(t.Context(), p, podOf("ns", "healed"), image, v1.PullIfNotPresent); err != nil {
		t.Errorf("after all that: %v", err)
	}
}

// TestProgress: a pull that takes long is told of, with what is there already.
func TestProgress(t *testing.T) {
	r := newRig(t)
	image, repository := r.push(8 << 10)
	p := r.puller(images.Config{Progress: 100 * time.Millisecond})
	gate := make(chan struct{})
	r.rule(repository, &testkit.Rule{Blob: func(ctx context.Context, sent int) error {
		if sent < 5<<20 {
			return nil
		}
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}})
	done := make(chan error, 1)
	go func() { done <- ensure(t.Context(), p, podOf("ns", "slow"), image, v1.PullIfNotPresent) }()
	r.waitFor("slow Normal Pulling Still pulling image")
	r.waitFor("MiB of 8.0 MiB")
	close(gate)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r.waitFor("slow Normal Pulled Successfully pulled image \"" + image + "\" in ")
	r.waitFor("Image size: ")
}

// TestOneAfterTheOther: with one slot pulls wait for each other, in order, and say so; with several they do not.
func TestOneAfterTheOther(t *testing.T) {
	r := newRig(t)
	slow, repository := r.push(64)
	hold := make(chan struct{})
	r.rule(repository, &testkit.Rule{Hold: hold})
	run := func(p *images.Puller, name, image string) chan error {
		done := make(chan error, 1)
		go func() { done <- ensure(t.Context(), p, podOf("ns", name), image, v1.PullAlways) }()
		return done
	}
	quick := r.node.Registry.Name("app:1")
	serial := r.puller(images.Config{Parallel: 1})
	first := run(serial, "first", slow)
	r.waitFor("first Normal Pulling Pulling image")
	second := run(serial, "second", quick)
	r.waitFor("second Normal PullQueued Waiting to pull image \"" + quick + "\": 1 pulls are under way")
	parallel := r.puller(images.Config{Parallel: 2})
	third := run(parallel, "third", slow)
	r.waitFor("third Normal Pulling Pulling image")
	if err := <-run(parallel, "fourth", quick); err != nil {
		t.Errorf("beside a pull that waits: %v", err)
	}
	if r.told("second Normal Pulling ") {
		t.Error("two pulls at a time where one is allowed")
	}
	close(hold)
	for _, done := range []chan error{first, second, third} {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestCancelledPull: what waits for a registry ends with its context, and leaves no note.
func TestCancelledPull(t *testing.T) {
	r := newRig(t)
	image, repository := r.push(16)
	hold := make(chan struct{})
	defer close(hold)
	r.rule(repository, &testkit.Rule{Hold: hold})
	p := r.puller(images.Config{Guard: r.guard(access.NeverVerifyPreloadedImages)})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ensure(ctx, p, podOf("ns", "gone"), image, v1.PullAlways) }()
	r.waitFor("gone Normal Pulling Pulling image")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	left, err := os.ReadDir(filepath.Join(r.dir, "image_manager", "pulling"))
	if err != nil || len(left) > 0 || r.told("gone Warning") {
		t.Errorf("%d notes are left (%v), events %q", len(left), err, r.events)
	}
}
