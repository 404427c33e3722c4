package images

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
)

// dockerAuth is one entry of a Docker configuration.
type dockerAuth struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
}

// credentials returns what the pod's pull secrets offer for the image, the most specific first.
func (p *Puller) credentials(pod *v1.Pod, container, image string) []*cri.AuthConfig {
	type match struct {
		key  string
		auth *cri.AuthConfig
	}
	var matches []match
	for _, ref := range pod.Spec.ImagePullSecrets {
		secret, ok := p.secrets.Secret(pod.Namespace, ref.Name)
		if !ok {
			p.events.PodEvent(pod, container, v1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
				fmt.Sprintf("Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", ref.Name))
			continue
		}
		for key, entry := range parseSecret(secret) {
			if pattern := normalizeRegistry(key); matchesImage(pattern, image) {
				matches = append(matches, match{pattern, entry.config(key)})
			}
		}
	}
	slices.SortStableFunc(matches, func(a, b match) int {
		if d := len(b.key) - len(a.key); d != 0 {
			return d
		}
		return strings.Compare(a.key, b.key)
	})
	list := make([]*cri.AuthConfig, 0, len(matches))
	for _, m := range matches {
		list = append(list, m.auth)
	}
	return list
}

// parseSecret reads a pull secret of either type; one that can't be read offers nothing.
func parseSecret(s *v1.Secret) map[string]dockerAuth {
	if raw, ok := s.Data[v1.DockerConfigJsonKey]; ok {
		var file struct {
			Auths map[string]dockerAuth `json:"auths"`
		}
		if json.Unmarshal(raw, &file) == nil {
			return file.Auths
		}
	}
	if raw, ok := s.Data[v1.DockerConfigKey]; ok {
		var auths map[string]dockerAuth
		if json.Unmarshal(raw, &auths) == nil {
			return auths
		}
	}
	return nil
}

func (a dockerAuth) config(server string) *cri.AuthConfig {
	c := &cri.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, ServerAddress: server}
	if c.Username == "" && a.Auth != "" {
		if raw, err := base64.StdEncoding.DecodeString(strings.TrimRight(a.Auth, "\x00")); err == nil {
			c.Username, c.Password, _ = strings.Cut(string(raw), ":")
		}
	}
	return c
}

// dockerHub is how Docker's registry is named in image references.
const dockerHub = "docker.io"

// normalizeRegistry brings a key of a Docker configuration into the form of image names: host[:port][/path].
func normalizeRegistry(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	key = strings.TrimSuffix(key, "/")
	host, path, _ := strings.Cut(key, "/")
	if path == "v1" || path == "v2" {
		path = ""
	}
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		host = dockerHub
	}
	if path == "" {
		return host
	}
	return host + "/" + path
}

// matchesImage says whether the image is in the registry, or below the path, that the key names. A leading "*." of the host stands for one label.
func matchesImage(key, image string) bool {
	host, path := splitImage(image)
	keyHost, keyPath, _ := strings.Cut(key, "/")
	if !matchesHost(keyHost, host) {
		return false
	}
	return keyPath == "" || path == keyPath || strings.HasPrefix(path, keyPath+"/")
}

func matchesHost(pattern, host string) bool {
	want, have := strings.Split(pattern, "."), strings.Split(host, ".")
	if len(want) != len(have) {
		return false
	}
	for i := range want {
		if want[i] != "*" && want[i] != have[i] {
			return false
		}
	}
	return true
}

// splitImage splits a reference into registry and repository, without tag and digest.
func splitImage(image string) (host, path string) {
	image, _, _ = strings.Cut(image, "@")
	host, path, ok := strings.Cut(image, "/")
	if !ok || (!strings.ContainsAny(host, ".:") && host != "localhost") {
		host, path = dockerHub, image
		if !strings.Contains(image, "/") {
			path = "library/" + image
		}
	}
	if i := strings.LastIndexByte(path, ':'); i > strings.LastIndexByte(path, '/') {
		path = path[:i]
	}
	return host, path
}
