package access_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/tokens"
	"github.com/podplane/podplane/services/gateway/internal/access"
)

const everybody = `
bindings:
- {role: view, users: [viewer], namespaces: [team]}
- {role: view, users: [observer], namespaces: ["*"]}
- {role: edit, users: [editor], namespaces: [team]}
- {role: exec, users: [runner], namespaces: [team]}
- {role: admin, users: [owner], namespaces: [team]}
- {role: admin, groups: [ops], namespaces: ["*"]}
`

var (
	methods     = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
	namespaced  = []string{"pods", "pods/log", "pods/status", "pods/resize", "pods/ephemeralcontainers", "configmaps", "secrets", "events", "lifecycle", "why", "probes", "volumes", "evictions", "pods/exec", "pods/attach", "pods/portforward"}
	clusterOnly = []string{"nodes", "services", "conditions", "evictions/rank"}
)

// allowed is the whole of what is allowed, written down once more in other words than the code's: user -> resource -> verbs.
func allowed(user, resource string) []string {
	read := []string{"get", "list", "watch"}
	everything := methods
	switch user {
	case "viewer", "observer":
		if !slices.Contains([]string{"secrets", "pods/exec", "pods/attach", "pods/portforward"}, resource) {
			return read
		}
	case "editor":
		switch resource {
		case "pods", "pods/resize", "pods/ephemeralcontainers", "configmaps", "secrets":
			return everything
		case "pods/exec", "pods/attach", "pods/portforward":
			return nil
		}
		return read
	case "runner":
		switch resource {
		case "pods":
			return []string{"get"}
		case "pods/exec", "pods/attach", "pods/portforward":
			return []string{"get", "create"}
		}
	case "owner", "operator":
		return everything
	}
	return nil
}

func TestEveryRoleOnEveryVerb(t *testing.T) {
	b, err := access.ParseBindings([]byte(everybody))
	if err != nil {
		t.Fatal(err)
	}
	wide := map[string]bool{"observer": true, "operator": true}
	n := 0
	for _, user := range []string{"viewer", "observer", "editor", "runner", "owner", "operator", "nobody"} {
		id := access.Identity{User: user, Groups: []string{access.Authenticated}}
		if user == "operator" {
			id.Groups = append(id.Groups, "ops")
		}
		for _, namespace := range []string{"team", "other", ""} {
			for _, resource := range append(slices.Clone(namespaced), clusterOnly...) {
				if slices.Contains(clusterOnly, resource) && namespace != "" {
					continue
				}
				for _, verb := range methods {
					a := access.Attributes{Verb: verb, Namespace: namespace}
					a.Resource, a.Subresource, _ = strings.Cut(resource, "/")
					want := (namespace == "team" || wide[user]) && slices.Contains(allowed(user, resource), verb)
					if got := b.Allow(id, a); got != want {
						t.Errorf("%s %s %s in %q: %v, want %v", user, verb, resource, namespace, got, want)
					}
					n++
				}
			}
		}
		for path, want := range map[string]bool{"/metrics": wide[user], "/readyz": wide[user], "/debug/pprof": user == "operator"} {
			if got := b.Allow(id, access.ForPath(http.MethodGet, path)); got != want {
				t.Errorf("%s %s: %v", user, path, got)
			}
		}
	}
	if n < 1000 {
		t.Errorf("only %d cases", n)
	}
}

func TestBindingsThatAreRefused(t *testing.T) {
	for _, text := range []string{
		"bindings: [{role: root, users: [a], namespaces: [b]}]", "bindings: [{role: view, namespaces: [b]}]", "bindings: [{role: view, users: [a]}]",
		"bindings: [{role: view, users: [a], namespaces: []}]", "bindings: [{role: view, users: [a], namespaces: ['']}]", "bindings: [{role: view, users: [''], namespaces: [b]}]",
		"bindings: [{role: view, user: a, namespaces: [b]}]", "bindings: [{role: view, users: ['*'], namespaces: [b]}]", "binding: []", "[]",
		"bindings: [{role: view, users: [a], namespaces: ['*', b]}]", "bindings: [{role: view, users: [a], users: [b], namespaces: [c]}]", "bindings: [{users: [a], namespaces: [b]}]",
	} {
		if _, err := access.ParseBindings([]byte(text)); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestRoutesBecomeAttributes(t *testing.T) {
	for _, c := range []struct {
		p    access.Params
		want string
	}{
		{access.Params{Method: "GET", Pattern: "/api/v1/pods"}, "list .pods  "},
		{access.Params{Method: "GET", Pattern: "/api/v1/pods", Filter: []string{"x"}}, "list .pods  "},
		{access.Params{Method: "GET", Pattern: "/api/v1/namespaces/{namespace}/pods", Namespace: "n", Watch: true}, "watch .pods n "},
		{access.Params{Method: "POST", Pattern: "/api/v1/namespaces/{namespace}/pods", Namespace: "n"}, "create .pods n "},
		{access.Params{Method: "PUT", Pattern: "/api/v1/namespaces/{namespace}/secrets/{name}", Namespace: "n", Name: "s"}, "update .secrets n s"},
		{access.Params{Method: "PATCH", Pattern: "/api/v1/namespaces/{namespace}/pods/{name}", Namespace: "n", Name: "s"}, "patch .pods n s"},
		{access.Params{Method: "DELETE", Pattern: "/api/v1/namespaces/{namespace}/pods/{name}", Namespace: "n", Name: "s"}, "delete .pods n s"},
		{access.Params{Method: "DELETE", Pattern: "/api/v1/namespaces/{namespace}/pods", Namespace: "n"}, "deletecollection .pods n "},
		{access.Params{Method: "GET", Pattern: "/api/v1/namespaces/{namespace}/pods/{name}/log", Namespace: "n", Name: "p"}, "get .pods/log n p"},
		{access.Params{Method: "POST", Pattern: "/api/v1/namespaces/{namespace}/pods/{name}/exec", Namespace: "n", Name: "p"}, "create .pods/exec n p"},
		{access.Params{Method: "GET", Pattern: "/api/v1/nodes/{name}", Name: "a"}, "get .nodes  a"},
		{access.Params{Method: "GET", Pattern: "/podplane/v1/lifecycle", Filter: []string{"n"}, Watch: true}, "watch podplane.io.lifecycle n "},
		{access.Params{Method: "GET", Pattern: "/podplane/v1/lifecycle", Filter: []string{"n", "m"}}, "list podplane.io.lifecycle  "},
		{access.Params{Method: "GET", Pattern: "/podplane/v1/evictions/rank", Filter: []string{"n"}}, "list podplane.io.evictions/rank  "},
		{access.Params{Method: "GET", Pattern: "/podplane/v1/services", Filter: []string{"n"}}, "list podplane.io.services  "},
	} {
		a := access.ForRoute(c.p)
		if got := fmt.Sprintf("%s %s.%s %s %s", a.Verb, a.Group, a.Qualified(), a.Namespace, a.Name); got != c.want {
			t.Errorf("%+v is %q, want %q", c.p, got, c.want)
		}
	}
}

func TestRefusalsReadLikeKubernetes(t *testing.T) {
	a, err := access.Open(access.Files{Bindings: write(t, "b.yaml", everybody)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	id := access.Identity{User: "viewer"}
	for _, c := range []struct {
		a    access.Attributes
		want string
	}{
		{access.Attributes{Verb: "create", Resource: "pods", Namespace: "team"}, `pods is forbidden: user "viewer" cannot create resource "pods" in API group "" in the namespace "team"`},
		{access.Attributes{Verb: "get", Resource: "pods", Subresource: "exec", Namespace: "team", Name: "p"}, `pods "p" is forbidden: user "viewer" cannot get resource "pods/exec" in API group "" in the namespace "team"`},
		{access.Attributes{Verb: "list", Group: access.Group, Resource: "services"}, `services.podplane.io is forbidden: user "viewer" cannot list resource "services" in API group "podplane.io" at the cluster scope`},
		{access.ForPath("GET", "/metrics"), `forbidden: user "viewer" cannot get path "/metrics"`},
	} {
		if err := a.Authorize(id, c.a); !fault.Is(err, fault.PermissionDenied) || err.Error() != c.want {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
	if err := a.Authorize(id, access.ForPath("GET", "/version")); err != nil {
		t.Error(err)
	}
}

func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func request(header ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/api/v1/pods", nil)
	for _, h := range header {
		r.Header.Add("Authorization", h)
	}
	return r
}

func TestTokens(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	secret, entry, err := tokens.Create(file, "alice", []string{"dev"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	local := tokens.Local()
	a, err := access.Open(access.Files{Tokens: file, LocalToken: write(t, "local", local+"\n"), Bindings: write(t, "b.yaml", "bindings: []")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []string{"Bearer " + secret, "bearer " + secret, "BEARER  " + secret} {
		if id, err := a.Authenticate(request(h)); err != nil || id.User != "alice" || !slices.Equal(id.Groups, []string{"dev", access.Authenticated}) || id.Via != "token:"+entry.ID {
			t.Errorf("%q: %+v %v", h, id, err)
		}
	}
	id, err := a.Authenticate(request("Bearer " + local))
	if err != nil || id.User != access.LocalUser || a.Authorize(id, access.Attributes{Verb: "delete", Resource: "pods"}) != nil {
		t.Errorf("%+v %v", id, err)
	}
	if err := a.Authorize(access.Identity{User: access.LocalUser, Via: "token:x"}, access.Attributes{Verb: "get", Resource: "pods"}); err == nil {
		t.Error("a token of that name may do everything")
	}
	for _, r := range []*http.Request{
		request(), request(""), request("Bearer"), request("Bearer "), request("Basic " + secret), request(secret), request("Bearer " + secret + "x"),
		request("Bearer "+secret, "Bearer "+secret), request("Bearer " + secret + ", Bearer " + secret),
	} {
		if id, err := a.Authenticate(r); !fault.Is(err, fault.Unauthenticated) || id.User != "" || strings.Contains(err.Error(), secret) {
			t.Errorf("%v: %+v %v", r.Header, id, err)
		}
	}
	if err := tokens.Revoke(file, entry.ID); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Second)
	for {
		if _, err := a.Authenticate(request("Bearer " + secret)); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a revoked token is good for a second")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func (a *authority) issue(t testing.TB, template *x509.Certificate) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, template.NotBefore = big.NewInt(7), time.Now().Add(-time.Hour)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	parent, signer := template, key
	if a != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key}
}

func newCA(t testing.TB) *authority {
	return (*authority)(nil).issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
}

func TestCertificates(t *testing.T) {
	ca, other := newCA(t), newCA(t)
	bundle := write(t, "ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})))
	a, err := access.Open(access.Files{ClientCA: bundle, Bindings: write(t, "b.yaml", everybody)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	name := pkix.Name{CommonName: "alice", Organization: []string{"ops"}}
	good := ca.issue(t, &x509.Certificate{Subject: name, ExtKeyUsage: client})
	show := func(c *authority, header ...string) (access.Identity, error) {
		r := request(header...)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.cert}}
		return a.Authenticate(r)
	}
	id, err := show(good)
	if err != nil || id.User != "alice" || !slices.Equal(id.Groups, []string{"ops", access.Authenticated}) || id.Via != "certificate:7" {
		t.Errorf("%+v %v", id, err)
	}
	for what, c := range map[string]*authority{
		"another CA's": other.issue(t, &x509.Certificate{Subject: name, ExtKeyUsage: client}),
		"a server's":   ca.issue(t, &x509.Certificate{Subject: name, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}),
		"expired":      ca.issue(t, &x509.Certificate{Subject: name, ExtKeyUsage: client, NotAfter: time.Now().Add(-time.Minute)}),
		"self-signed":  (*authority)(nil).issue(t, &x509.Certificate{Subject: name, ExtKeyUsage: client}),
		"of nobody":    ca.issue(t, &x509.Certificate{ExtKeyUsage: client}),
		"of podplane":  ca.issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: access.LocalUser}, ExtKeyUsage: client}),
		"in a system group": ca.issue(t, &x509.Certificate{
			Subject: pkix.Name{CommonName: "a", Organization: []string{"system:masters"}}, ExtKeyUsage: client,
		}),
	} {
		if id, err := show(c); !fault.Is(err, fault.Unauthenticated) || id.User != "" {
			t.Errorf("%s: %+v %v", what, id, err)
		}
	}
	if id, err := show(good, "Bearer x"); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("a wrong token beside a certificate: %+v %v", id, err)
	}
	if err := os.WriteFile(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.cert.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Second)
	for {
		if _, err := show(good); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a CA that was taken out is good for a second")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestFilesThatAreRefused(t *testing.T) {
	for what, f := range map[string]access.Files{
		"tokens": {Tokens: write(t, "t", "x: 1")}, "missing": {Tokens: filepath.Join(t.TempDir(), "no")}, "ca": {ClientCA: write(t, "ca", "nothing")},
		"key as ca": {ClientCA: write(t, "ca", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")}, "bindings": {Bindings: write(t, "b", "x: 1")}, "local": {LocalToken: write(t, "l", "short")},
	} {
		if _, err := access.Open(f, nil); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// FuzzBindings looks for a file that panics, or gives somebody who is not in it anything.
func FuzzBindings(f *testing.F) {
	f.Add(everybody)
	f.Add("bindings:\n- role: admin\n  groups: [system:authenticated]\n  namespaces: ['*']\n")
	f.Fuzz(func(t *testing.T, text string) {
		b, err := access.ParseBindings([]byte(text))
		if err != nil {
			return
		}
		id := access.Identity{User: "nobody-of-that-name", Groups: []string{"no-group-of-that-name"}}
		if strings.Contains(text, "of-that-name") {
			return
		}
		if b.Allow(id, access.Attributes{Verb: "get", Resource: "pods", Namespace: "default"}) {
			t.Errorf("%q lets in whom it does not name", text)
		}
	})
}
