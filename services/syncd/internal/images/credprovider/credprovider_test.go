package credprovider_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/podplane/podplane/services/syncd/internal/images"
	"github.com/podplane/podplane/services/syncd/internal/images/credprovider"
)

// plugin notes what it was asked, and answers with what its arguments say.
const plugin = `#!/bin/sh
request=$(cat)
echo "$request env=$GREETING secret=\"$PODPLANE_SECRET\"" >> "$1"
printf password=hidden >&2
case "$2" in
fail) exit 3 ;;
hang) exec sleep 3600 ;;
flood) head -c 2097152 /dev/zero ;;
*) printf %s "$2" ;;
esac
`

// setup is a node with one plugin.
type setup struct {
	dir, asked string
	now        time.Time
	set        *credprovider.Set
	log        strings.Builder
}

func configure(t *testing.T, answer, match, cacheFor string) *setup {
	t.Helper()
	s := &setup{dir: t.TempDir(), now: time.Now()}
	s.asked = filepath.Join(s.dir, "asked")
	if err := os.WriteFile(filepath.Join(s.dir, "plugin"), []byte(plugin), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PODPLANE_SECRET", "seed")
	config := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: plugin
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: [%s]
  defaultCacheDuration: %s
  args: [%q, %q]
  env: [{name: GREETING, value: hello}]
`, match, cacheFor, s.asked, answer)
	file := filepath.Join(s.dir, "config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	s.set, err = credprovider.Load(credprovider.Options{
		Config: file, BinDir: s.dir, Match: images.MatchesRegistry, Log: slog.New(slog.NewTextHandler(&s.log, nil)), Now: func() time.Time { return s.now },
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *setup) requests(t *testing.T) []string {
	t.Helper()
	raw, err := os.ReadFile(s.asked)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(raw)), "\n")
}

func answer(keyType, rest string) string {
	return `{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"` + keyType + `",` + rest +
		`"auth":{"reg.example":{"username":"me","password":"hidden"}}}`
}

func TestProtocol(t *testing.T) {
	s := configure(t, answer("Image", ""), "reg.example", "1m")
	auths, err := s.set.Get(t.Context(), "reg.example/app")
	if err != nil || len(auths) != 1 || auths[0] != (credprovider.Auth{Pattern: "reg.example", Username: "me", Password: "hidden"}) {
		t.Errorf("got %+v, %v", auths, err)
	}
	want := `{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"reg.example/app"} env=hello secret=""`
	if got := s.requests(t); len(got) != 1 || got[0] != want {
		t.Errorf("asked %q, want %q", got, want)
	}
}

func TestOnlyMatchingImages(t *testing.T) {
	s := configure(t, answer("Image", ""), `"*.reg.example", "reg*.example/team", "reg.example:5000"`, "1m")
	for image, want := range map[string]bool{
		"a.reg.example/app":         true,
		"reg.example/app":           false,
		"a.b.reg.example/app":       false,
		"reg1.example/team/app":     true,
		"reg1.example/teams/app":    false,
		"reg.example:5000/app":      true,
		"reg.example:5001/app":      false,
		"evil.com/a.reg.example":    false,
		"reg.example.evil.com/team": false,
	} {
		before := len(s.requests(t))
		if _, err := s.set.Get(t.Context(), image); err != nil {
			t.Errorf("%s: %v", image, err)
		}
		if got := len(s.requests(t)) > before; got != want {
			t.Errorf("%s: asked is %v", image, got)
		}
	}
}

func TestCache(t *testing.T) {
	const a, b, other = "reg.example/a", "reg.example/b", "two.reg.example/a"
	for name, test := range map[string]struct {
		answer string
		asked  []bool // for a, a, b, other, and a after 10 minutes
	}{
		"by image":     {answer("Image", ""), []bool{true, false, true, true, true}},
		"by registry":  {answer("Registry", ""), []bool{true, false, false, true, true}},
		"for all":      {answer("Global", ""), []bool{true, false, false, false, true}},
		"for long":     {answer("Image", `"cacheDuration":"1h",`), []bool{true, false, true, true, false}},
		"not at all":   {answer("Image", `"cacheDuration":"0s",`), []bool{true, true, true, true, true}},
		"not an error": {"fail", []bool{true, true, true, true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			s := configure(t, test.answer, `"reg.example", "*.reg.example"`, "5m")
			for i, image := range []string{a, a, b, other, a} {
				if i == 4 {
					s.now = s.now.Add(10 * time.Minute)
				}
				before := len(s.requests(t))
				if _, err := s.set.Get(t.Context(), image); (err != nil) != (test.answer == "fail") {
					t.Fatal(err)
				}
				if got := len(s.requests(t)) > before; got != test.asked[i] {
					t.Errorf("request %d (%s): asked is %v", i, image, got)
				}
			}
		})
	}
}

func TestAskedOnceAtATime(t *testing.T) {
	s := configure(t, answer("Image", ""), "reg.example", "1m")
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if auths, err := s.set.Get(t.Context(), "reg.example/app"); err != nil || len(auths) != 1 {
				t.Errorf("got %+v, %v", auths, err)
			}
		})
	}
	wg.Wait()
	if n := len(s.requests(t)); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

func TestFailures(t *testing.T) {
	for name, test := range map[string]struct{ answer, want string }{
		"exit code":       {"fail", "exit status 3"},
		"no JSON":         {"hidden", "did not answer"},
		"another kind":    {`{"kind":"Pod","apiVersion":"v1","auth":{"x":{"password":"hidden"}}}`, "did not answer"},
		"another version": {strings.Replace(answer("Image", ""), "k8s.io/v1", "k8s.io/v1beta1", 1), "did not answer"},
		"key type":        {answer("Everything", ""), "cacheKeyType"},
		"flood":           {"flood", "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			s := configure(t, test.answer, "reg.example", "1m")
			auths, err := s.set.Get(t.Context(), "reg.example/app")
			if len(auths) != 0 || err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "credential provider plugin") {
				t.Errorf("got %+v, %v", auths, err)
			}
			if err != nil && strings.Contains(err.Error(), "hidden") {
				t.Errorf("the error tells a secret: %v", err)
			}
			if test.answer == "fail" && !strings.Contains(s.log.String(), "password=hidden") {
				t.Errorf("what the plugin said is not in the log: %s", s.log.String())
			}
		})
	}
}

func TestHangingPluginIsKilled(t *testing.T) {
	s := configure(t, "hang", "reg.example", "1m")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.set.Get(ctx, "reg.example/app")
		done <- err
	}()
	for len(s.requests(t)) == 0 {
		select {
		case err := <-done:
			t.Fatal(err)
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

func TestConfigurations(t *testing.T) {
	const head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"
	good := func(change ...string) string {
		return head + "- " + strings.NewReplacer(change...).Replace("{name: plugin, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [reg.example], defaultCacheDuration: 1m}") + "\n"
	}
	for name, test := range map[string]struct{ config, want string }{
		"good":             {good(), ""},
		"older protocol":   {good("credentialprovider.kubelet.k8s.io/v1", "credentialprovider.kubelet.k8s.io/v1beta1"), ""},
		"nothing":          {head, "names no provider"},
		"another kind":     {"apiVersion: v1\nkind: Pod\n", "not a CredentialProviderConfig"},
		"unknown field":    {good("matchImages", "matchimage"), "matchimage"},
		"no cache":         {good(", defaultCacheDuration: 1m", ""), "defaultCacheDuration"},
		"negative cache":   {good("1m", "-1m"), "defaultCacheDuration"},
		"no images":        {good("[reg.example]", "[]"), "matchImages"},
		"scheme":           {good("[reg.example]", `["https://reg.example"]`), "scheme"},
		"wildcard in path": {good("[reg.example]", `["reg.example/*"]`), "only the host"},
		"wildcard in port": {good("[reg.example]", `["reg.example:*"]`), "only the host"},
		"bad pattern":      {good("[reg.example]", `["[a"]`), "syntax error"},
		"path in the name": {good("name: plugin", "name: ../plugin"), "name"},
		"not there":        {good("name: plugin", "name: other"), "there is no"},
		"no program":       {good("name: plugin", "name: text"), "can't be executed"},
		"twice":            {good() + strings.TrimPrefix(good(), head), "is taken"},
		"protocol":         {good("credentialprovider.kubelet.k8s.io/v1", "v7"), "unsupported"},
		"tokens":           {good("defaultCacheDuration", "tokenAttributes: {serviceAccountTokenAudience: a}, defaultCacheDuration"), "tokenAttributes"},
		"variable":         {good("defaultCacheDuration", "env: [{name: 'A=B', value: x}], defaultCacheDuration"), "env"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write := func(name, content string, mode os.FileMode) string {
				path := filepath.Join(dir, name)
				if err := os.WriteFile(path, []byte(content), mode); err != nil {
					t.Fatal(err)
				}
				return path
			}
			write("plugin", "#!/bin/sh\n", 0o700)
			write("text", "", 0o600)
			_, err := credprovider.Load(credprovider.Options{Config: write("config.yaml", test.config, 0o600), BinDir: dir, Match: images.MatchesRegistry})
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

func TestDirectoryOfConfigurations(t *testing.T) {
	dir, bin := t.TempDir(), t.TempDir()
	var paths []string
	for _, name := range []string{"one", "two"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name+".yaml")
		config := "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- {name: " + name +
			", apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [reg.example], defaultCacheDuration: 1m}\n"
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	load := func() error {
		_, err := credprovider.Load(credprovider.Options{Config: dir, BinDir: bin, Match: images.MatchesRegistry})
		return err
	}
	if err := load(); err != nil {
		t.Error(err)
	}
	raw, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(paths[1], raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := load(); err == nil || !slices.ContainsFunc(paths, func(p string) bool { return strings.Contains(err.Error(), p) }) {
		t.Errorf("one name in two files: %v", err)
	}
}
