package credprovider

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Versions and kinds of the files and messages.
const (
	configKind     = "CredentialProviderConfig"
	configV1       = "kubelet.config.k8s.io/v1"
	requestKind    = "CredentialProviderRequest"
	responseKind   = "CredentialProviderResponse"
	protocolV1     = "credentialprovider.kubelet.k8s.io/v1"
	protocolV1beta = "credentialprovider.kubelet.k8s.io/v1beta1"
	protocolV1alfa = "credentialprovider.kubelet.k8s.io/v1alpha1"
)

var (
	configVersions   = []string{configV1, "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"}
	protocolVersions = []string{protocolV1, protocolV1beta, protocolV1alfa}
)

// config is the kubelet's file of the same kind.
type config struct {
	metav1.TypeMeta `json:",inline"`
	Providers       []provider `json:"providers"`
}

// provider is one plugin.
type provider struct {
	Name                 string           `json:"name"`
	MatchImages          []string         `json:"matchImages"`
	DefaultCacheDuration *metav1.Duration `json:"defaultCacheDuration"`
	APIVersion           string           `json:"apiVersion"`
	Args                 []string         `json:"args,omitempty"`
	Env                  []envVar         `json:"env,omitempty"`
	TokenAttributes      json.RawMessage  `json:"tokenAttributes,omitempty"`
}

type envVar struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// readConfig reads a file, or all files of a directory that are called *.json, *.yaml or *.yml, in the order of their names.
func readConfig(file string) ([]provider, error) {
	files := []string{file}
	if info, err := os.Stat(file); err != nil {
		return nil, err
	} else if info.IsDir() {
		if files, err = filesOf(file); err != nil {
			return nil, err
		}
	}
	var all []provider
	names := make(map[string]string)
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		providers, err := decodeConfig(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		for i := range providers {
			name := providers[i].Name
			if other, twice := names[name]; twice {
				return nil, fmt.Errorf("%s: provider %q is also in %s", f, name, other)
			}
			names[name] = f
		}
		all = append(all, providers...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: names no provider", file)
	}
	return all, nil
}

func filesOf(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if !e.IsDir() && slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(e.Name())) {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, nil
}

// decodeConfig reads one file. Unknown fields are errors.
func decodeConfig(raw []byte) ([]provider, error) {
	asJSON, err := yaml.YAMLToJSONStrict(raw)
	if err != nil {
		return nil, err
	}
	var c config
	d := json.NewDecoder(bytes.NewReader(asJSON))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return nil, err
	}
	if c.Kind != configKind || !slices.Contains(configVersions, c.APIVersion) {
		return nil, fmt.Errorf("is a %q of %q, not a %s of %s", c.Kind, c.APIVersion, configKind, configV1)
	}
	var errs []error
	seen := make(map[string]bool)
	for i := range c.Providers {
		p := &c.Providers[i]
		if err := p.validate(); err != nil {
			errs = append(errs, fmt.Errorf("providers[%d] %q: %w", i, p.Name, err))
		}
		if seen[p.Name] {
			errs = append(errs, fmt.Errorf("providers[%d]: the name %q is taken", i, p.Name))
		}
		seen[p.Name] = true
	}
	return c.Providers, errors.Join(errs...)
}

func (p *provider) validate() error {
	var errs []error
	if p.Name == "" || p.Name == "." || p.Name == ".." || strings.ContainsAny(p.Name, "/ ") {
		errs = append(errs, errors.New("name: must be the name of a file in the directory of plugins"))
	}
	if !slices.Contains(protocolVersions, p.APIVersion) {
		errs = append(errs, fmt.Errorf("apiVersion: unsupported %q, supported: %s", p.APIVersion, strings.Join(protocolVersions, ", ")))
	}
	switch {
	case p.DefaultCacheDuration == nil:
		errs = append(errs, errors.New("defaultCacheDuration: is required"))
	case p.DefaultCacheDuration.Duration < 0:
		errs = append(errs, errors.New("defaultCacheDuration: must not be negative"))
	}
	if len(p.MatchImages) == 0 {
		errs = append(errs, errors.New("matchImages: at least one is required"))
	}
	for _, m := range p.MatchImages {
		if err := validPattern(m); err != nil {
			errs = append(errs, fmt.Errorf("matchImages: %q: %w", m, err))
		}
	}
	for _, e := range p.Env {
		if e.Name == "" || strings.ContainsAny(e.Name, "=\x00") {
			errs = append(errs, fmt.Errorf("env: %q is not the name of a variable", e.Name))
		}
	}
	if t := strings.TrimSpace(string(p.TokenAttributes)); t != "" && t != "null" {
		errs = append(errs, errors.New("tokenAttributes: not supported by this node: it has no service account tokens"))
	}
	return errors.Join(errs...)
}

// validPattern checks host[:port][/path], where only labels of the host may have wildcards.
func validPattern(pattern string) error {
	host, below, _ := strings.Cut(pattern, "/")
	name, port, _ := strings.Cut(host, ":")
	switch {
	case strings.Contains(pattern, "://"):
		return errors.New("must have no scheme")
	case name == "":
		return errors.New("has no host")
	case strings.ContainsAny(port+below, "*?["):
		return errors.New("only the host may have wildcards")
	}
	for _, label := range strings.Split(name, ".") {
		if _, err := path.Match(label, ""); err != nil {
			return err
		}
	}
	return nil
}

// executable finds the plugin's program.
func (p *provider) executable(dir string) (string, error) {
	file := filepath.Join(dir, p.Name)
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("credential provider %s: there is no %s", p.Name, file)
	case err != nil:
		return "", fmt.Errorf("credential provider %s: %w", p.Name, err)
	case info.IsDir() || info.Mode()&0o111 == 0:
		return "", fmt.Errorf("credential provider %s: %s can't be executed", p.Name, file)
	}
	return file, nil
}

func (p *provider) cacheFor() time.Duration { return p.DefaultCacheDuration.Duration }
