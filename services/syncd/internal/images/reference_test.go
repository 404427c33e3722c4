package images_test

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/services/syncd/internal/images"
)

func TestReferences(t *testing.T) {
	hex := strings.Repeat("a", 64)
	for image, want := range map[string]string{
		"busybox":                               "docker.io/library/busybox",
		"me/app:1":                              "docker.io/me/app",
		"index.docker.io/library/busybox":       "docker.io/library/busybox",
		"localhost/app":                         "localhost/app",
		"LOCAL/app":                             "LOCAL/app",
		"reg.example/a/b/c:v1.2-3_x":            "reg.example/a/b/c",
		"reg.example:5000/app@sha256:" + hex:    "reg.example:5000/app",
		"reg.example/app:1@sha256:" + hex:       "reg.example/app",
		"[::1]:5000/app":                        "[::1]:5000/app",
		"[fe80::1]/app":                         "[fe80::1]/app",
		"sha256:" + hex:                         "docker.io/library/sha256",
		"a__b/c--d.e":                           "docker.io/a__b/c--d.e",
		"":                                      "",
		":1":                                    "",
		"app:":                                  "",
		"app:-1":                                "",
		"app:" + strings.Repeat("x", 129):       "",
		"App":                                   "",
		"me/App":                                "",
		"BAD!!":                                 "",
		"a b":                                   "",
		"a//b":                                  "",
		"/a":                                    "",
		"a/":                                    "",
		"a..b":                                  "",
		"a._b":                                  "",
		"a___b":                                 "",
		"-a":                                    "",
		"a-":                                    "",
		"reg.example:x/app":                     "",
		"reg_x.example/app":                     "",
		"-reg.example/app":                      "",
		"[::1/app":                              "",
		"https://reg.example/app":               "",
		"app@sha256:abc":                        "",
		"app@" + hex:                            "",
		"app@sha256:" + strings.Repeat("g", 64): "",
		hex:                                     "",
		strings.Repeat("a/", 130) + "a":         "",
	} {
		got, err := images.Repository(image)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v, want %q", image, got, err, want)
		}
	}
}

func FuzzReference(f *testing.F) {
	for _, s := range []string{"busybox:1", "a.b:1/c@sha256:" + strings.Repeat("0", 32), "[::1]:1/a", "x/y/z:t"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, image string) {
		got, err := images.Repository(image)
		if err != nil {
			return
		}
		again, err := images.Repository(got)
		if err != nil || again != got {
			t.Errorf("%q is of repository %q, which is of %q: %v", image, got, again, err)
		}
	})
}

// FuzzPullSecret: whatever a Secret holds, an error does not tell it, and credentials for a path are for nothing beside it.
func FuzzPullSecret(f *testing.F) {
	f.Add(true, []byte(`{"auths":{"https://reg.example/v2/team":{"auth":"bWU6c2VjcmV0"}}}`))
	f.Add(false, []byte(`{"reg.example":{"username":"me","password":"secret"}}`))
	f.Add(true, []byte(`{"auths":{"[a":{"auth":"?"}}}`))
	f.Fuzz(func(t *testing.T, modern bool, raw []byte) {
		key := v1.DockerConfigKey
		if modern {
			key = v1.DockerConfigJsonKey
		}
		patterns, err := images.Patterns(&v1.Secret{Data: map[string][]byte{key: raw}})
		if err != nil {
			if len(raw) > 8 && strings.Contains(err.Error(), string(raw)) {
				t.Errorf("the error tells the content: %v", err)
			}
			return
		}
		for _, p := range patterns {
			if images.MatchesRegistry(p, "host.of.nobody.example/a/b") && !strings.ContainsAny(p, "*?[") && p != "host.of.nobody.example" && p != "host.of.nobody.example/a" && p != "host.of.nobody.example/a/b" {
				t.Errorf("%q matches", p)
			}
		}
	})
}
