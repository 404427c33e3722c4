package rest_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podplane/podplane/cmd/podplane/internal/rest"
	"github.com/podplane/podplane/internal/pki"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSecretsAreShownToWhomTheyAreMeantFor(t *testing.T) {
	token := write(t, "token", "  ppt_a_b\n")
	for _, c := range []struct {
		server string
		o      rest.Options
		wrong  string
	}{
		{"http://127.0.0.1:1", rest.Options{}, ""},
		{"http://127.0.0.1:1", rest.Options{Token: "x"}, ""},
		{"http://[::1]:1", rest.Options{TokenFile: token}, ""},
		{"http://localhost:1", rest.Options{Token: "x"}, ""},
		{"https://node.example", rest.Options{TokenFile: token}, ""},
		{"http://node.example", rest.Options{}, ""},
		{"http://node.example", rest.Options{TokenFile: token}, "over https"},
		{"http://127.0.0.1.example:1", rest.Options{Token: "x"}, "over https"},
		{"http://127.0.0.1:1", rest.Options{ClientCert: "c"}, "over https"},
		{"https://node.example", rest.Options{Token: "x", TokenFile: token}, "one of them"},
		{"https://node.example", rest.Options{Token: "a b"}, "blanks"},
		{"https://node.example", rest.Options{TokenFile: "/nowhere"}, "nowhere"},
		{"https://node.example", rest.Options{TokenFile: write(t, "empty", "\n")}, "empty"},
		{"https://node.example", rest.Options{CA: token}, "no certificate"},
		{"https://node.example", rest.Options{CA: "/nowhere"}, "nowhere"},
		{"https://node.example", rest.Options{ClientCert: token}, "client certificate"},
		{"https://node.example", rest.Options{ClientKey: token}, "no client certificate"},
	} {
		_, err := rest.New(c.server, c.o)
		if (err == nil) != (c.wrong == "") || err != nil && (!strings.Contains(err.Error(), c.wrong) || strings.Contains(err.Error(), "ppt_")) {
			t.Errorf("%s %+v: %v, want %q", c.server, c.o, err, c.wrong)
		}
	}
}

// TestConnections shows a token and a certificate to a server, whose own is checked by its CA or by itself.
func TestConnections(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	for _, d := range []string{dir, other} {
		if _, err := pki.Ensure(d, pki.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := pki.NewClient(dir, "alice", nil, time.Hour); err != nil {
		t.Fatal(err)
	}
	var seen *http.Request
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r }))
	srv.TLS = serverTLS(t, dir)
	srv.StartTLS()
	defer srv.Close()
	call := func(o rest.Options) error {
		c, err := rest.New(srv.URL, o)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Do(t.Context(), rest.Request{Method: http.MethodGet, Path: "/version"})
		return err
	}
	ca, https := pki.CertFile(dir, pki.CA), pki.CertFile(dir, pki.HTTPS)
	if err := call(rest.Options{CA: ca, Token: "x", ClientCert: pki.CertFile(dir, "alice"), ClientKey: pki.KeyFile(dir, "alice")}); err != nil {
		t.Fatal(err)
	}
	if seen.Header.Get("Authorization") != "Bearer x" || len(seen.TLS.PeerCertificates) != 1 || seen.TLS.PeerCertificates[0].Subject.CommonName != "alice" {
		t.Errorf("%v %v", seen.Header, seen.TLS.PeerCertificates)
	}
	if err := call(rest.Options{Pinned: https}); err != nil {
		t.Errorf("pinned: %v", err)
	}
	for what, o := range map[string]rest.Options{
		"the host's authorities": {}, "another CA": {CA: pki.CertFile(other, pki.CA)}, "another certificate": {Pinned: pki.CertFile(other, pki.HTTPS)},
		"its CA as its certificate": {Pinned: ca},
	} {
		seen = nil
		if err := call(o); err == nil || seen != nil {
			t.Errorf("%s: connected (%v)", what, err)
		}
	}
}
