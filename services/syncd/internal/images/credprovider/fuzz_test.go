package credprovider_test

import (
	"strings"
	"testing"

	"github.com/podplane/podplane/services/syncd/internal/images/credprovider"
)

// FuzzConfig: what is taken names programs in the directory of plugins, each once.
func FuzzConfig(f *testing.F) {
	const head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"
	f.Add([]byte(head + "- {name: a, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [x], defaultCacheDuration: 1m}"))
	f.Add([]byte(head + "- {name: ../a, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: ['*.x:1/y'], defaultCacheDuration: 0s}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		names, err := credprovider.Names(raw)
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, n := range names {
			if n == "" || n == "." || n == ".." || strings.Contains(n, "/") || seen[n] {
				t.Errorf("the name %q is taken", n)
			}
			seen[n] = true
		}
	})
}

// FuzzAnswer: an error does not tell what the plugin answered.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(answer("Image", `"cacheDuration":"1h",`)))
	f.Add([]byte(`{"auth":{"x":{"password":"very secret"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if err := credprovider.DecodeAnswer(raw); err != nil && len(raw) > 8 && strings.Contains(err.Error(), string(raw)) {
			t.Errorf("the error tells the answer: %v", err)
		}
	})
}
