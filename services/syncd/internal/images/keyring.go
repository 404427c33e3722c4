package images

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/services/syncd/internal/images/access"
)

// dockerAuth is one entry of a Docker configuration.
type dockerAuth struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// credential is what a pull may be tried with.
type credential struct {
	pattern string
	auth    *cri.AuthConfig
	// secret is where it is from; nil for what every pod of the node may use.
	secret *access.Secret
}

// keyring is a set of credentials.
type keyring []credential

// add takes the entries of a Docker configuration.
func (k *keyring) add(auths map[string]dockerAuth, secret *access.Secret) {
	for key, entry := range auths {
		c := credential{pattern: normalizeRegistry(key), auth: entry.config()}
		if secret != nil {
			own := *secret
			own.CredentialHash = hashOf(c.auth)
			c.secret = &own
		}
		*k = append(*k, c)
	}
}

// match returns the credentials for the image, the most specific first.
func (k keyring) match(image reference) []credential {
	var found []credential
	for _, c := range k {
		if matchesImage(c.pattern, image) {
			found = append(found, c)
		}
	}
	slices.SortStableFunc(found, func(a, b credential) int {
		if d := len(b.pattern) - len(a.pattern); d != 0 {
			return d
		}
		return strings.Compare(a.pattern, b.pattern)
	})
	return found
}

// secretsOf returns what the pod's pull secrets offer for the image. Those that are not there are named in missing.
func (p *Puller) secretsOf(pod *v1.Pod, image reference) (found []credential, missing []string) {
	var ring keyring
	for _, ref := range pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		secret, ok := p.secrets.Secret(pod.Namespace, ref.Name)
		if !ok {
			missing = append(missing, ref.Name)
			continue
		}
		auths, err := parseSecret(secret)
		if err != nil {
			missing = append(missing, fmt.Sprintf("%s: %v", ref.Name, err))
			continue
		}
		ring.add(auths, &access.Secret{UID: string(secret.UID), Namespace: pod.Namespace, Name: ref.Name})
	}
	return ring.match(image), missing
}

// parseSecret reads a pull secret of either type. Its content is in no error.
func parseSecret(s *v1.Secret) (map[string]dockerAuth, error) {
	if raw, ok := s.Data[v1.DockerConfigJsonKey]; ok {
		return parseConfig(raw, v1.DockerConfigJsonKey)
	}
	if raw, ok := s.Data[v1.DockerConfigKey]; ok {
		return parseLegacy(raw, v1.DockerConfigKey)
	}
	return nil, fmt.Errorf("has neither %s nor %s", v1.DockerConfigJsonKey, v1.DockerConfigKey)
}

func parseConfig(raw []byte, name string) (map[string]dockerAuth, error) {
	var file struct {
		Auths map[string]dockerAuth `json:"auths"`
	}
	if json.Unmarshal(raw, &file) != nil {
		return nil, fmt.Errorf("%s is not a Docker configuration", name)
	}
	return file.Auths, nil
}

func parseLegacy(raw []byte, name string) (map[string]dockerAuth, error) {
	var auths map[string]dockerAuth
	if json.Unmarshal(raw, &auths) != nil {
		return nil, fmt.Errorf("%s is not a Docker configuration of the old form", name)
	}
	return auths, nil
}

// config names no server: containerd would compare it with the host that it asks, which is another one for Docker Hub and for mirrors.
func (a dockerAuth) config() *cri.AuthConfig {
	c := &cri.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken}
	if c.Username == "" && a.Auth != "" {
		if user, password, ok := decodeAuth(a.Auth); ok {
			c.Username, c.Password = user, password
		}
	}
	return c
}

// decodeAuth reads base64 of user:password, with or without padding.
func decodeAuth(auth string) (user, password string, ok bool) {
	raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(auth), "="))
	if err != nil {
		return "", "", false
	}
	return strings.Cut(strings.TrimRight(string(raw), "\x00"), ":")
}

// hashOf tells credentials apart without keeping them.
func hashOf(a *cri.AuthConfig) string {
	h := sha256.New()
	for _, s := range []string{a.Username, a.Password, a.IdentityToken, a.RegistryToken} {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// normalizeRegistry brings a key of a Docker configuration into the form of image names: host[:port][/path].
func normalizeRegistry(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	key = strings.TrimSuffix(key, "/")
	host, path, _ := strings.Cut(key, "/")
	if path == "v1" || path == "v2" {
		path = ""
	}
	path = strings.TrimPrefix(strings.TrimPrefix(path, "v1/"), "v2/")
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		host = dockerHub
	}
	if path == "" {
		return host
	}
	return host + "/" + path
}

// matchesImage says whether the image is in the registry, or below the path, that the pattern names. Labels of the host may have wildcards, which
// stand for no dot; the port has to be the same.
func matchesImage(pattern string, image reference) bool {
	host, below, _ := strings.Cut(pattern, "/")
	if !matchesHost(host, image.host) {
		return false
	}
	return below == "" || image.path == below || strings.HasPrefix(image.path, below+"/")
}

func matchesHost(pattern, host string) bool {
	pattern, wantPort, _ := strings.Cut(pattern, ":")
	host, havePort, _ := strings.Cut(host, ":")
	if wantPort != havePort {
		return false
	}
	want, have := strings.Split(pattern, "."), strings.Split(host, ".")
	if len(want) != len(have) {
		return false
	}
	for i := range want {
		if ok, err := path.Match(want[i], have[i]); err != nil || !ok {
			return false
		}
	}
	return true
}
