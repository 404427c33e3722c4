package images_test

import (
	"strings"
	"testing"

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
