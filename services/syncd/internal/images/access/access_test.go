package access_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/services/syncd/internal/images/access"
)

var (
	app    = access.Image{Name: "reg.example/app:1", Repository: "reg.example/app"}
	copied = access.Image{Name: "mirror.example/app:1", Repository: "mirror.example/app"}

	alice = access.Secret{UID: "1", Namespace: "a", Name: "pull", CredentialHash: "alice's"}
	bob   = access.Secret{UID: "2", Namespace: "b", Name: "pull", CredentialHash: "bob's"}
	// shared has alice's credentials in bob's namespace.
	shared = access.Secret{UID: "3", Namespace: "b", Name: "shared", CredentialHash: "alice's"}
	// rotated is alice's Secret with new credentials, again the same Secret made anew.
	rotated  = access.Secret{UID: "1", Namespace: "a", Name: "pull", CredentialHash: "alice's second"}
	impostor = access.Secret{UID: "9", Namespace: "a", Name: "pull", CredentialHash: "guessed"}
)

const ref = "sha256:1"

// present is the image as a pull of app makes it.
var present = &cri.Image{ID: ref, RepoTags: []string{app.Name}}

func open(t *testing.T, dir string, policy access.Policy, allowlist ...string) *access.Guard {
	t.Helper()
	g, err := access.Open(dir, access.Rule{Policy: policy, Allowlist: allowlist})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func pull(t *testing.T, g *access.Guard, image access.Image, with access.Credentials) {
	t.Helper()
	p, err := g.Begin(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Done(ref, with); err != nil {
		t.Fatal(err)
	}
}

func secrets(list ...access.Secret) access.Credentials {
	return access.Credentials{KubernetesSecrets: list}
}

func allowed(t *testing.T, g *access.Guard, image access.Image, offered ...access.Secret) bool {
	t.Helper()
	ok, err := g.Allowed(image, present, offered)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

func TestWhoMayUseAnImage(t *testing.T) {
	anonymous := access.Credentials{NodePodsAccessible: true}
	for name, test := range map[string]struct {
		pulled  []access.Credentials
		image   access.Image
		offered []access.Secret
		want    bool
	}{
		"same secret":                         {[]access.Credentials{secrets(alice)}, app, []access.Secret{alice}, true},
		"no secret":                           {[]access.Credentials{secrets(alice)}, app, nil, false},
		"another secret":                      {[]access.Credentials{secrets(alice)}, app, []access.Secret{bob}, false},
		"one of several":                      {[]access.Credentials{secrets(alice)}, app, []access.Secret{bob, shared}, true},
		"the same credentials":                {[]access.Credentials{secrets(alice)}, app, []access.Secret{shared}, true},
		"the same secret, rotated":            {[]access.Credentials{secrets(alice)}, app, []access.Secret{rotated}, true},
		"another secret of the same name":     {[]access.Credentials{secrets(alice)}, app, []access.Secret{impostor}, false},
		"both pulled":                         {[]access.Credentials{secrets(alice), secrets(bob)}, app, []access.Secret{bob}, true},
		"pulled without credentials":          {[]access.Credentials{anonymous}, app, nil, true},
		"pulled without, then with":           {[]access.Credentials{anonymous, secrets(alice)}, app, nil, true},
		"pulled with, then without":           {[]access.Credentials{secrets(alice), anonymous}, app, nil, true},
		"from another repository":             {[]access.Credentials{secrets(alice)}, copied, []access.Secret{alice}, false},
		"from another repository, nobody has": {[]access.Credentials{anonymous}, copied, nil, false},
		"with nothing":                        {[]access.Credentials{{}}, app, []access.Secret{alice}, false},
		"a hash that is missing matches none": {[]access.Credentials{secrets(access.Secret{UID: "1"})}, app, []access.Secret{{UID: "2"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			g := open(t, dir, access.NeverVerifyPreloadedImages)
			for _, with := range test.pulled {
				pull(t, g, app, with)
			}
			if got := allowed(t, g, test.image, test.offered...); got != test.want {
				t.Errorf("allowed: %v", got)
			}
			if got := allowed(t, open(t, dir, access.AlwaysVerify), test.image, test.offered...); got != test.want {
				t.Errorf("allowed by another process: %v", got)
			}
			if !allowed(t, open(t, dir, access.NeverVerify), test.image) {
				t.Error("not allowed without verification")
			}
		})
	}
}

func TestPolicies(t *testing.T) {
	for name, test := range map[string]struct {
		policy    access.Policy
		list      []string
		preloaded bool
		pulled    bool
	}{
		"never":                 {access.NeverVerify, nil, true, true},
		"never preloaded":       {access.NeverVerifyPreloadedImages, nil, true, false},
		"always":                {access.AlwaysVerify, nil, false, false},
		"listed":                {access.NeverVerifyAllowlistedImages, []string{"reg.example/app"}, true, true},
		"listed below":          {access.NeverVerifyAllowlistedImages, []string{"reg.example/*"}, true, true},
		"not listed":            {access.NeverVerifyAllowlistedImages, []string{"reg.example/application", "reg.example/ap/*", "other/*"}, false, false},
		"nothing is listed":     {access.NeverVerifyAllowlistedImages, nil, false, false},
		"not by a part of name": {access.NeverVerifyAllowlistedImages, []string{"reg.example/app/*"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := open(t, t.TempDir(), test.policy, test.list...)
			if got := allowed(t, g, app); got != test.preloaded {
				t.Errorf("preloaded: allowed %v", got)
			}
			pull(t, g, app, secrets(alice))
			if got := allowed(t, g, app); got != test.pulled {
				t.Errorf("pulled: allowed %v", got)
			}
			if !allowed(t, g, app, alice) {
				t.Error("pulled: not allowed for the one who pulled it")
			}
		})
	}
}

// TestSameContentUnderTwoNames: that one name of an image was pulled does not make the other, preloaded one a pulled one.
func TestSameContentUnderTwoNames(t *testing.T) {
	both := &cri.Image{ID: ref, RepoTags: []string{app.Name, copied.Name}}
	for policy, want := range map[access.Policy]bool{access.NeverVerifyPreloadedImages: true, access.AlwaysVerify: false} {
		g := open(t, t.TempDir(), policy)
		pull(t, g, app, secrets(alice))
		if ok, err := g.Allowed(copied, both, nil); ok != want || err != nil {
			t.Errorf("%s: the preloaded name is allowed: %v, %v", policy, ok, err)
		}
		if ok, err := g.Allowed(app, both, nil); ok || err != nil {
			t.Errorf("%s: the pulled name is allowed: %v, %v", policy, ok, err)
		}
		byID := access.Image{Name: ref, Repository: "docker.io/library/sha256"}
		if ok, err := g.Allowed(byID, both, nil); ok || err != nil {
			t.Errorf("%s: the image is allowed by its ID: %v, %v", policy, ok, err)
		}
		pull(t, g, copied, secrets(bob))
		if ok, err := g.Allowed(copied, both, nil); ok || err != nil {
			t.Errorf("%s: the other name is allowed once it was pulled: %v, %v", policy, ok, err)
		}
	}
}

func TestRulesThatCannotBe(t *testing.T) {
	for _, rule := range []access.Rule{
		{Policy: "Sometimes"},
		{Policy: access.NeverVerify, Allowlist: []string{"a/b"}},
		{Policy: access.NeverVerifyAllowlistedImages, Allowlist: []string{"a/b:1"}},
		{Policy: access.NeverVerifyAllowlistedImages, Allowlist: []string{"a/b@sha256:00"}},
		{Policy: access.NeverVerifyAllowlistedImages, Allowlist: []string{"*/b"}},
		{Policy: access.NeverVerifyAllowlistedImages, Allowlist: []string{" a/b"}},
		{Policy: access.NeverVerifyAllowlistedImages, Allowlist: []string{"/*"}},
	} {
		if err := rule.Validate(); err == nil {
			t.Errorf("%+v is taken", rule)
		}
	}
}

// TestKnownInFuture: credentials that were seen to be the same are remembered with their Secret.
func TestKnownInFuture(t *testing.T) {
	g := open(t, t.TempDir(), access.AlwaysVerify)
	pull(t, g, app, secrets(alice))
	if !allowed(t, g, app, shared) {
		t.Fatal("the same credentials are not allowed")
	}
	later := shared
	later.CredentialHash = "rotated since"
	if !allowed(t, g, app, later) {
		t.Error("the Secret with the same credentials was not remembered")
	}
	if again := (access.Secret{UID: "5", CredentialHash: "rotated since"}); !allowed(t, g, app, again) {
		t.Error("its new credentials were not remembered")
	}
	if allowed(t, g, app, bob) {
		t.Error("everybody is allowed")
	}
}

// TestCutShort: a process is killed while it pulls; its image is no preloaded one.
func TestCutShort(t *testing.T) {
	dir := t.TempDir()
	g := open(t, dir, access.NeverVerifyPreloadedImages)
	p, err := g.Begin(app)
	if err != nil {
		t.Fatal(err)
	}
	if allowed(t, g, app) {
		t.Error("allowed while it is being pulled")
	}
	other := open(t, dir, access.NeverVerifyPreloadedImages)
	if allowed(t, other, app) {
		t.Error("allowed by another process while it is being pulled")
	}
	runtime := images{{ID: ref, RepoTags: []string{app.Name}}}
	if err := other.Tidy(t.Context(), runtime); err != nil {
		t.Fatal(err)
	}
	if n := files(t, dir, "pulling"); n != 1 {
		t.Errorf("%d notes are left while the pull goes on", n)
	}
	p.Abandon()
	next := open(t, dir, access.NeverVerifyPreloadedImages)
	if allowed(t, next, app, alice) {
		t.Error("allowed before what was left was dealt with")
	}
	if err := next.Tidy(t.Context(), runtime); err != nil {
		t.Fatal(err)
	}
	if n, r := files(t, dir, "pulling"), files(t, dir, "pulled"); n != 0 || r != 1 {
		t.Errorf("%d notes and %d records are left, want a record", n, r)
	}
	if allowed(t, next, app, alice) {
		t.Error("allowed though nobody knows how it was pulled")
	}
	pull(t, next, app, secrets(alice))
	if !allowed(t, next, app, alice) || allowed(t, next, app, bob) {
		t.Error("not what the next pull showed")
	}
}

// TestFailedPullsLeaveNothing: a preloaded image stays one.
func TestFailedPullsLeaveNothing(t *testing.T) {
	dir := t.TempDir()
	g := open(t, dir, access.NeverVerifyPreloadedImages)
	first, err := g.Begin(app)
	if err != nil {
		t.Fatal(err)
	}
	second, err := g.Begin(app)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Failed(); err != nil {
		t.Fatal(err)
	}
	if allowed(t, g, app) {
		t.Error("allowed while the second pull goes on")
	}
	if err := second.Failed(); err != nil {
		t.Fatal(err)
	}
	if n := files(t, dir, "pulling"); n != 0 || !allowed(t, g, app) {
		t.Errorf("%d notes are left, or the preloaded image is not allowed any more", n)
	}
}

// TestDamage: a record that can't be read allows nothing, until the image is pulled again.
func TestDamage(t *testing.T) {
	for _, content := range []string{"", "{", `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v9"}`, `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","imageRef":"another"}`} {
		dir := t.TempDir()
		g := open(t, dir, access.NeverVerifyPreloadedImages)
		pull(t, g, app, access.Credentials{NodePodsAccessible: true})
		entries, err := os.ReadDir(filepath.Join(dir, "pulled"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "pulled", entries[0].Name()), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if ok, err := g.Allowed(app, present, []access.Secret{alice}); ok || err == nil {
			t.Errorf("%q: allowed %v, error %v", content, ok, err)
		}
		pull(t, g, app, secrets(alice))
		if !allowed(t, g, app, alice) || allowed(t, g, app) {
			t.Errorf("%q: not what the next pull showed", content)
		}
	}
}

// TestKubeletsRecords reads what a kubelet wrote.
func TestKubeletsRecords(t *testing.T) {
	dir := t.TempDir()
	g := open(t, dir, access.AlwaysVerify)
	pull(t, g, app, secrets(bob))
	entries, err := os.ReadDir(filepath.Join(dir, "pulled"))
	if err != nil {
		t.Fatal(err)
	}
	const written = `{"apiVersion":"kubelet.config.k8s.io/v1alpha1","kind":"ImagePulledRecord","lastUpdatedTime":"2026-01-02T03:04:05Z","imageRef":"sha256:1",
		"credentialMapping":{"reg.example/app":{"kubernetesSecrets":[{"uid":"1","namespace":"a","name":"pull","credentialHash":"alice's"}],
		"kubernetesServiceAccounts":[{"uid":"7","namespace":"a","name":"default"}]}}}`
	if err := os.WriteFile(filepath.Join(dir, "pulled", entries[0].Name()), []byte(written), 0o600); err != nil {
		t.Fatal(err)
	}
	if !allowed(t, g, app, alice) || allowed(t, g, app, bob) {
		t.Error("not what the record says")
	}
	pull(t, g, app, secrets(bob))
	raw, err := os.ReadFile(filepath.Join(dir, "pulled", entries[0].Name()))
	if err != nil || !strings.Contains(string(raw), `"name":"default"`) {
		t.Errorf("the service account got lost: %s %v", raw, err)
	}
}

func TestTidyRemovesRecordsOfImagesThatAreGone(t *testing.T) {
	dir := t.TempDir()
	g := open(t, dir, access.AlwaysVerify)
	pull(t, g, app, secrets(alice))
	if err := g.Tidy(t.Context(), images{{ID: ref}}); err != nil || files(t, dir, "pulled") != 1 {
		t.Errorf("the record of an image that is there went: %v", err)
	}
	g.SetNow(func() time.Time { return time.Now().Add(-time.Hour) })
	if err := g.Tidy(t.Context(), images{}); err != nil || files(t, dir, "pulled") != 1 {
		t.Errorf("a record that was written after the list went: %v", err)
	}
	g.SetNow(func() time.Time { return time.Now().Add(time.Hour) })
	if err := g.Tidy(t.Context(), images{{ID: "sha256:2"}}); err != nil || files(t, dir, "pulled") != 0 {
		t.Errorf("the record stays: %v", err)
	}
}

// TestBounds: a record remembers a hundred Secrets, the newest.
func TestBounds(t *testing.T) {
	g := open(t, t.TempDir(), access.AlwaysVerify)
	name := func(i int) access.Secret {
		return access.Secret{UID: string(rune('A' + i)), CredentialHash: strings.Repeat("x", i+1)}
	}
	for i := range 101 {
		pull(t, g, app, secrets(name(i)))
	}
	if allowed(t, g, app, name(0)) || !allowed(t, g, app, name(1)) || !allowed(t, g, app, name(100)) {
		t.Error("not the newest hundred are remembered")
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"ImagePulledRecord","imageRef":"x","credentialMapping":{"r":{"nodePodsAccessible":true}}}`))
	f.Add([]byte(`{"kind":"ImagePulledRecord","credentialMapping":{"r":null}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := access.DecodeRecord(raw)
		if err == nil && c.NodePodsAccessible && !strings.Contains(strings.ToLower(string(raw)), "nodepodsaccessible") && !strings.Contains(string(raw), `\u`) {
			t.Errorf("access for all from %q", raw)
		}
	})
}

type images []cri.Image

func (i images) ListImages(context.Context) ([]cri.Image, error) { return i, nil }

func files(t *testing.T, dir, sub string) int {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, sub))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v: %v", e.Name(), info.Mode(), err)
		}
	}
	return len(entries)
}
