package images_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/syncd/internal/images"
	"github.com/podplane/podplane/services/syncd/internal/images/access"
)

// registry is a runtime with an image that needs credentials.
type registry struct {
	present  bool
	password string
	pulls    []string
	began    []time.Time
	handlers []string
	inspect  error
}

func (r *registry) ImageStatus(_ context.Context, image cri.ImageSpec) (cri.Image, error) {
	if r.inspect != nil {
		return cri.Image{}, r.inspect
	}
	if !r.present {
		return cri.Image{}, fault.New(fault.NotFound, "no image %s", image.Image)
	}
	return cri.Image{ID: "sha256:1", Size: 7}, nil
}

func (r *registry) ListImages(context.Context) ([]cri.Image, error) { return nil, nil }

func (r *registry) Downloads(context.Context) ([]cri.Download, error) {
	return nil, fault.New(fault.Unimplemented, "not here")
}

func (r *registry) PullImage(_ context.Context, image cri.ImageSpec, auth *cri.AuthConfig, _ *cri.SandboxConfig) (string, error) {
	given := ""
	if auth != nil {
		given = auth.Username + ":" + auth.Password
	}
	r.pulls, r.began, r.handlers = append(r.pulls, given), append(r.began, time.Now()), append(r.handlers, image.RuntimeHandler)
	if given != r.password {
		return "", &cri.ImageError{Image: image.Image, Reason: cri.ReasonErrImagePull, Err: fault.New(fault.Unauthenticated, "denied")}
	}
	r.present = true
	return "sha256:1", nil
}

type surroundings struct {
	secrets map[string]*v1.Secret
	events  []string
}

func (s *surroundings) Secret(_, name string) (*v1.Secret, bool) {
	x, ok := s.secrets[name]
	return x, ok
}

func (s *surroundings) PodEvent(_ *v1.Pod, container, _, reason, message string) {
	s.events = append(s.events, container+" "+reason+" "+message)
}

func pod(policy v1.PullPolicy, image string, secrets ...string) (*v1.Pod, images.Want) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: image, ImagePullPolicy: policy}}}}
	for _, s := range secrets {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, v1.LocalObjectReference{Name: s})
	}
	return p, images.Want{Container: "c", Image: image, Policy: policy}
}

// Pulls over the rate wait, in their order, and end with their context.
func TestPullRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := &registry{}, &surroundings{}
		puller := images.New(images.Config{QPS: 2, Burst: 3}, r, s, s)
		p, c := pod(v1.PullAlways, "app:1")
		began := time.Now()
		for range 7 {
			if _, err := puller.Ensure(t.Context(), p, c); err != nil {
				t.Fatal(err)
			}
		}
		for i, want := range []time.Duration{0, 0, 0, 500, 1000, 1500, 2000} {
			if got := r.began[i].Sub(began); got != want*time.Millisecond {
				t.Errorf("pull %d began after %s, want %s", i, got, want*time.Millisecond)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := puller.Ensure(ctx, p, c); !errors.Is(err, context.Canceled) || len(r.pulls) != 7 {
			t.Errorf("a pull that nobody waits for: %v, %d pulls", err, len(r.pulls))
		}
	})
}

func TestPullForAHandler(t *testing.T) {
	r, s := &registry{}, &surroundings{}
	handler := func(p *v1.Pod) (string, error) { return "of-" + p.Namespace, nil }
	p, c := pod(v1.PullAlways, "app:1")
	if _, err := images.New(images.Config{Handler: handler}, r, s, s).Ensure(t.Context(), p, c); err != nil || strings.Join(r.handlers, " ") != "of-ns" {
		t.Errorf("pulled for %q, %v", r.handlers, err)
	}
	handler = func(*v1.Pod) (string, error) { return "", fault.New(fault.NotFound, "no such class") }
	_, err := images.New(images.Config{Handler: handler}, r, s, s).Ensure(t.Context(), p, c)
	if e, ok := errors.AsType[*cri.ImageError](err); !ok || e.Reason != images.ReasonImageInspectError || len(r.pulls) != 1 {
		t.Errorf("for a class that there is not: %v, %d pulls", err, len(r.pulls))
	}
}

func TestPolicies(t *testing.T) {
	for name, test := range map[string]struct {
		policy  v1.PullPolicy
		present bool
		pulls   int
		reason  string
		event   string
	}{
		"present":        {policy: v1.PullIfNotPresent, present: true, event: "Pulled Container image"},
		"not present":    {policy: v1.PullIfNotPresent, pulls: 1, event: "Pulled Successfully pulled"},
		"always":         {policy: v1.PullAlways, present: true, pulls: 1, event: "Pulling"},
		"never, present": {policy: v1.PullNever, present: true, event: "Pulled Container image"},
		"never":          {policy: v1.PullNever, reason: images.ReasonErrImageNeverPull, event: "ErrImageNeverPull"},
	} {
		t.Run(name, func(t *testing.T) {
			r, s := &registry{present: test.present}, &surroundings{}
			p, c := pod(test.policy, "app:1")
			img, err := images.New(images.Config{}, r, s, s).Ensure(t.Context(), p, c)
			if e, ok := errors.AsType[*cri.ImageError](err); test.reason != "" && (!ok || e.Reason != test.reason) || test.reason == "" && (err != nil || img.ID != "sha256:1") {
				t.Errorf("image %+v, error %v", img, err)
			}
			if len(r.pulls) != test.pulls {
				t.Errorf("%d pulls", len(r.pulls))
			}
			if !strings.Contains(strings.Join(s.events, "\n"), test.event) {
				t.Errorf("events %q", s.events)
			}
		})
	}
}

func TestInvalidName(t *testing.T) {
	r, s := &registry{}, &surroundings{}
	p, c := pod(v1.PullIfNotPresent, "BAD!!")
	_, err := images.New(images.Config{}, r, s, s).Ensure(t.Context(), p, c)
	if e, ok := errors.AsType[*cri.ImageError](err); !ok || e.Reason != cri.ReasonInvalidImageName {
		t.Errorf("error %v", err)
	}
}

func TestCredentials(t *testing.T) {
	encoded := base64.StdEncoding.EncodeToString([]byte("me:secret"))
	secrets := map[string]*v1.Secret{
		"json":  {Data: map[string][]byte{v1.DockerConfigJsonKey: []byte(`{"auths":{"https://reg.example/v2/":{"auth":"` + encoded + `"},"other.example":{"username":"x","password":"y"}}}`)}},
		"cfg":   {Data: map[string][]byte{v1.DockerConfigKey: []byte(`{"reg.example":{"username":"me","password":"secret"}}`)}},
		"wrong": {Data: map[string][]byte{v1.DockerConfigKey: []byte(`{"reg.example/team":{"username":"me","password":"old"}}`)}},
		"hub":   {Data: map[string][]byte{v1.DockerConfigKey: []byte(`{"https://index.docker.io/v1/":{"username":"me","password":"secret"}}`)}},
		"any":   {Data: map[string][]byte{v1.DockerConfigKey: []byte(`{"*.example":{"username":"me","password":"secret"}}`)}},
		"bad":   {Data: map[string][]byte{v1.DockerConfigJsonKey: []byte(`{`)}},
	}
	for name, test := range map[string]struct {
		image   string
		secrets []string
		pulls   string
		ok      bool
	}{
		"json":                  {"reg.example/app:1", []string{"json"}, "me:secret", true},
		"cfg":                   {"reg.example/app@sha256:" + strings.Repeat("0", 64), []string{"cfg"}, "me:secret", true},
		"most specific first":   {"reg.example/team/app:1", []string{"cfg", "wrong"}, "me:old me:secret", true},
		"another path":          {"reg.example/teams/app:1", []string{"wrong"}, "", false},
		"docker hub, official":  {"busybox", []string{"hub"}, "me:secret", true},
		"docker hub, user's":    {"me/app:1", []string{"hub"}, "me:secret", true},
		"wildcard":              {"a.example/app", []string{"any"}, "me:secret", true},
		"wildcard is one label": {"a.b.example/app", []string{"any"}, "", false},
		"another port":          {"reg.example:5000/app", []string{"cfg"}, "", false},
		"unreadable":            {"reg.example/app", []string{"bad", "missing"}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			r, s := &registry{password: "me:secret"}, &surroundings{secrets: secrets}
			p, c := pod(v1.PullAlways, test.image, test.secrets...)
			_, err := images.New(images.Config{}, r, s, s).Ensure(t.Context(), p, c)
			if (err == nil) != test.ok || strings.Join(r.pulls, " ") != test.pulls {
				t.Errorf("pulled with %q: %v", r.pulls, err)
			}
			if all := strings.Join(s.events, "\n"); strings.Contains(all, "secret\"") || strings.Contains(all, "me:") {
				t.Errorf("credentials in %q", all)
			}
		})
	}
}

func TestBudgetEndsWithItsContext(t *testing.T) {
	hold := make(chan struct{})
	started := make(chan struct{})
	slow := &slowRuntime{started: started, hold: hold}
	s := &surroundings{}
	puller := images.New(images.Config{Parallel: 1}, slow, s, s)
	p, c := pod(v1.PullAlways, "app:1")
	done := make(chan error, 1)
	go func() {
		_, err := puller.Ensure(t.Context(), p, c)
		done <- err
	}()
	<-started
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := puller.Ensure(ctx, p, c); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for the budget ended with %v", err)
	}
	close(hold)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

type slowRuntime struct {
	registry
	started, hold chan struct{}
}

func (r *slowRuntime) PullImage(context.Context, cri.ImageSpec, *cri.AuthConfig, *cri.SandboxConfig) (string, error) {
	close(r.started)
	<-r.hold
	r.present = true
	return "sha256:1", nil
}

func TestInspectFails(t *testing.T) {
	r, s := &registry{inspect: fault.New(fault.Internal, "broken store")}, &surroundings{}
	p, c := pod(v1.PullIfNotPresent, "app:1")
	_, err := images.New(images.Config{}, r, s, s).Ensure(t.Context(), p, c)
	if e, ok := errors.AsType[*cri.ImageError](err); !ok || e.Reason != images.ReasonImageInspectError {
		t.Errorf("error %v", err)
	}
	if all := strings.Join(s.events, "\n"); all != `c InspectFailed Failed to inspect image "app:1": broken store` {
		t.Errorf("events %q", all)
	}
}

// TestNodeConfig: the first file that there is counts, and is read again when it has changed.
func TestNodeConfig(t *testing.T) {
	root, home := t.TempDir(), t.TempDir()
	r, s := &registry{password: "me:secret"}, &surroundings{secrets: map[string]*v1.Secret{
		"pod's": {Data: map[string][]byte{v1.DockerConfigKey: []byte(`{"reg.example":{"username":"pod","password":"own"}}`)}},
	}}
	puller := images.New(images.Config{NodeConfigs: images.NodeConfigFiles(root, home)}, r, s, s)
	pulls := func(secrets ...string) string {
		t.Helper()
		r.pulls = nil
		p, c := pod(v1.PullAlways, "reg.example/app:1", secrets...)
		_, err := puller.Ensure(t.Context(), p, c)
		return fmt.Sprint(strings.Join(r.pulls, " "), " ", err == nil)
	}
	write := func(path, content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct{ file, content, want string }{
		{filepath.Join(home, ".dockercfg"), `{"reg.example":{"username":"me","password":"secret"}}`, "me:secret true"},
		{filepath.Join(home, ".docker/config.json"), `{"auths":{"reg.example":{"username":"old","password":"x"}}}`, "old:x false"},
		{filepath.Join(home, ".docker/config.json"), `{"auths":{"reg.example":{"username":"me","password":"secret"},"x":{}}}`, "me:secret true"},
		{filepath.Join(root, "config.json"), `{"auths":{"other.example":{"username":"me","password":"secret"}}}`, " false"},
		{filepath.Join(root, "config.json"), `{"auths":{"reg.example":{"auth":"bWU6c2VjcmV0"}}}`, "me:secret true"},
	} {
		write(step.file, step.content)
		if got := pulls(); got != step.want {
			t.Errorf("%s %s: %q, want %q", step.file, step.content, got, step.want)
		}
	}
	if got := pulls("pod's"); got != "pod:own me:secret true" {
		t.Errorf("the pod's own come first: %q", got)
	}
	s.events = nil
	write(filepath.Join(root, "config.json"), "{")
	if got := pulls(); got != " false" || !strings.Contains(strings.Join(s.events, "\n"), "FailedToRetrieveImagePullCredentials") {
		t.Errorf("a broken file: %q, events %q", got, s.events)
	}
	if err := os.Remove(filepath.Join(root, "config.json")); err != nil {
		t.Fatal(err)
	}
	if got := pulls(); got != "me:secret true" {
		t.Errorf("without the first file: %q", got)
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := images.NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := access.Open(t.TempDir(), access.Rule{Policy: access.AlwaysVerify})
	if err != nil {
		t.Fatal(err)
	}
	r, s := &registry{}, &surroundings{}
	puller := images.New(images.Config{Metrics: m, Guard: guard}, r, s, s)
	for range 2 {
		p, c := pod(v1.PullIfNotPresent, "app:1")
		if _, err := puller.Ensure(t.Context(), p, c); err != nil {
			t.Fatal(err)
		}
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		for _, x := range f.GetMetric() {
			var labels []string
			for _, l := range x.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			got = append(got, fmt.Sprint(f.GetName(), " ", strings.Join(labels, ","), " ", x.GetCounter().GetValue()+float64(x.GetHistogram().GetSampleCount())))
		}
	}
	want := []string{
		"kubelet_image_manager_ensure_image_requests_total false,IfNotPresent,true 1", "kubelet_image_manager_ensure_image_requests_total true,IfNotPresent,false 1",
		"kubelet_image_pull_duration_seconds 0-10MB 1", "kubelet_imagemanager_image_mustpull_checks_total allowed 1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
