package pki_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pki"
)

func ensure(t *testing.T, dir string, o pki.Options) []string {
	t.Helper()
	o.Processes = []string{"syncd", "gateway"}
	made, err := pki.Ensure(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func load(t *testing.T, dir, name string) *pki.Process {
	t.Helper()
	p, err := pki.Load(dir, name, func(err error) { t.Log(err) })
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// shake makes a connection and says how each side saw it end.
func shake(t *testing.T, server, client *tls.Config) (serverErr, clientErr error) {
	t.Helper()
	a, b := net.Pipe()
	defer func() { _, _ = a.Close(), b.Close() }()
	deadline := time.Now().Add(5 * time.Second)
	_, _ = a.SetDeadline(deadline), b.SetDeadline(deadline)
	s, c := tls.Server(a, server), tls.Client(b, client)
	ended := make(chan error, 1)
	go func() {
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte("x"))
		}
		ended <- err
	}()
	clientErr = c.Handshake()
	if clientErr == nil {
		_, clientErr = c.Read(make([]byte, 1))
	}
	return <-ended, clientErr
}

func TestFilesAndModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	want := []string{"ca", "client-ca", "gateway", "https", "nats", "syncd"}
	if made := ensure(t, dir, pki.Options{Hosts: []string{"node.example", "192.0.2.7"}}); !slices.Equal(made, want) {
		t.Errorf("made %v", made)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", info, err)
	}
	for _, name := range want {
		for path, mode := range map[string]os.FileMode{pki.CertFile(dir, name): 0o644, pki.KeyFile(dir, name): 0o600} {
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
				t.Errorf("%s: %v %v", path, info, err)
			}
		}
	}
	https, err := tls.LoadX509KeyPair(pki.CertFile(dir, "https"), pki.KeyFile(dir, "https"))
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"localhost", "127.0.0.1", "::1", "node.example", "192.0.2.7"} {
		if err := https.Leaf.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	if made := ensure(t, dir, pki.Options{}); len(made) != 0 {
		t.Errorf("a second time made %v", made)
	}
	if made := ensure(t, dir, pki.Options{Hosts: []string{"other.example"}}); !slices.Equal(made, []string{"https"}) {
		t.Errorf("another host made %v", made)
	}
	if made := ensure(t, dir, pki.Options{Now: time.Now().Add(pki.LeafLifetime * 2 / 3)}); !slices.Equal(made, []string{"gateway", "https", "nats", "syncd"}) {
		t.Errorf("late in the year made %v", made)
	}
	if made := ensure(t, dir, pki.Options{Renew: true}); len(made) != 4 {
		t.Errorf("renewing made %v", made)
	}
	if err := os.Remove(pki.KeyFile(dir, "ca")); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.Ensure(dir, pki.Options{}); !fault.Is(err, fault.FailedPrecondition) {
		t.Errorf("without the CA's key: %v", err)
	}
}

func TestBothSidesAreShown(t *testing.T) {
	dir, other := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	ensure(t, dir, pki.Options{})
	ensure(t, other, pki.Options{})
	if err := pki.NewClient(dir, "alice", []string{"ops"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	syncd, gateway, stranger := load(t, dir, "syncd"), load(t, dir, "gateway"), load(t, other, "gateway")
	if s, c := shake(t, syncd.Server(), gateway.Client("syncd")); s != nil || c != nil {
		t.Errorf("%v %v", s, c)
	}
	alice, err := tls.LoadX509KeyPair(pki.CertFile(dir, "alice"), pki.KeyFile(dir, "alice"))
	if err != nil {
		t.Fatal(err)
	}
	https, err := tls.LoadX509KeyPair(pki.CertFile(dir, "https"), pki.KeyFile(dir, "https"))
	if err != nil {
		t.Fatal(err)
	}
	with := func(c tls.Certificate) *tls.Config {
		conf := gateway.Client("syncd")
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c, nil }
		return conf
	}
	for what, client := range map[string]*tls.Config{
		"another Podplane": stranger.Client("syncd"), "a wrong name": gateway.Client("nats"), "a user": with(alice), "the front door's": with(https),
		"no certificate": with(tls.Certificate{}),
	} {
		if s, c := shake(t, syncd.Server(), client); s == nil || c == nil {
			t.Errorf("%s: connected: %v %v", what, s, c)
		}
	}
	if s, c := shake(t, stranger.Server(), gateway.Client("gateway")); s == nil || c == nil {
		t.Errorf("another's server: connected: %v %v", s, c)
	}
}

func TestRenewalWithoutRestart(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir, pki.Options{})
	syncd, gateway := load(t, dir, "syncd"), load(t, dir, "gateway")
	old, err := tls.LoadX509KeyPair(pki.CertFile(dir, "gateway"), pki.KeyFile(dir, "gateway"))
	if err != nil {
		t.Fatal(err)
	}
	if made := ensure(t, dir, pki.Options{RotateCA: true}); len(made) != 6 {
		t.Errorf("made %v", made)
	}
	// Both see the new files, whenever each does; and what the former authority signed is still good.
	deadline := time.Now().Add(time.Second)
	for {
		s, c := shake(t, syncd.Server(), gateway.Client("syncd"))
		if s != nil || c != nil {
			t.Fatalf("while the authority changes: %v %v", s, c)
		}
		pair, err := gateway.Client("syncd").GetClientCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(pair.Certificate[0], old.Certificate[0]) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the old certificate is in use after a second")
		}
		time.Sleep(5 * time.Millisecond)
	}
	client := gateway.Client("syncd")
	client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &old, nil }
	if s, c := shake(t, syncd.Server(), client); s != nil || c != nil {
		t.Errorf("the former authority's: %v %v", s, c)
	}
}

func TestClients(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir, pki.Options{})
	for _, user := range []string{"", ".", "..", "a/b", "../a", ".x", "ca", "client-ca", "https", "nats", "syncd"} {
		if err := pki.NewClient(dir, user, nil, time.Hour); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", user, err)
		}
	}
	for _, d := range []time.Duration{0, -1, pki.CALifetime + 1} {
		if err := pki.NewClient(dir, "a", nil, d); !fault.Is(err, fault.Invalid) {
			t.Errorf("%v: %v", d, err)
		}
	}
	if err := pki.NewClient(t.TempDir(), "a", nil, time.Hour); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without an authority: %v", err)
	}
	if err := os.Chmod(pki.KeyFile(dir, "syncd"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.Load(dir, "syncd", nil); !fault.Is(err, fault.Invalid) {
		t.Errorf("a key that others read: %v", err)
	}
	if err := pki.NewClient(dir, "alice", []string{"ops"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(pki.CertFile(dir, "alice"), pki.KeyFile(dir, "alice"))
	if err != nil || pair.Leaf.Subject.CommonName != "alice" || !slices.Equal(pair.Leaf.Subject.Organization, []string{"ops"}) || !slices.Equal(pair.Leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) {
		t.Errorf("%+v %v", pair.Leaf, err)
	}
}
