package incontainer

import (
	"bytes"
	"crypto/tls"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pki"
)

// natsOptions are those of deploy/, in a directory of the test's own.
func natsOptions(t *testing.T) natsConfigOptions {
	dir := t.TempDir()
	o := natsConfigOptions{
		keys: filepath.Join(dir, "keys"), out: filepath.Join(dir, "nats"), data: filepath.Join(dir, "data"), authority: filepath.Join(dir, "authority"),
		serverDir: "/etc/podplane/nats", node: "n1", owners: []string{"gateway=10002", "nats=10001"}, chown: []string{filepath.Join(dir, "data") + "=10001"},
	}
	o.tlsDir = filepath.Join(o.keys, "tls")
	if err := os.Mkdir(o.data, 0o755); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestNATSConfigGivesKeysToTheirOwners(t *testing.T) {
	o := natsOptions(t)
	if err := o.run(io.Discard); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]struct {
		owner uint32
		mode  os.FileMode
	}{
		embedded.SeedFile(o.keys, "gateway"):              {10002, 0o600},
		embedded.SeedFile(o.keys, "syncd"):                {0, 0o600},
		filepath.Join(o.keys, "jetstream.key"):            {0, 0o600},
		filepath.Join(o.out, "encryption.conf"):           {10001, 0o400},
		filepath.Join(o.out, "auth.conf"):                 {0, 0o644},
		filepath.Join(o.out, "tls.conf"):                  {0, 0o644},
		filepath.Join(o.keys, embedded.AdminKey+".nk"):    {0, 0o600},
		pki.KeyFile(o.tlsDir, "gateway"):                  {10002, 0o600},
		pki.KeyFile(o.tlsDir, "syncd"):                    {0, 0o600},
		pki.CertFile(o.tlsDir, "syncd"):                   {0, 0o644},
		pki.CertFile(o.tlsDir, pki.CA):                    {0, 0o644},
		pki.KeyFile(filepath.Join(o.out, "tls"), pki.Bus): {10001, 0o600},
		pki.KeyFile(o.authority, pki.CA):                  {0, 0o600},
		o.data:                                            {10001, 0o755},
		o.keys:                                            {0, 0o711},
		o.tlsDir:                                          {0, 0o711},
		o.authority:                                       {0, 0o700},
	} {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || stat.Uid != want.owner || info.Mode().Perm() != want.mode {
			t.Errorf("%s belongs to %d with mode %v, want %d and %v", file, stat.Uid, info.Mode().Perm(), want.owner, want.mode)
		}
	}
	for _, dir := range []string{o.tlsDir, filepath.Join(o.out, "tls")} {
		for _, name := range []string{pki.CA, pki.ClientCA} {
			if _, err := os.Stat(pki.KeyFile(dir, name)); !os.IsNotExist(err) {
				t.Errorf("the key of the authority %s is in %s: %v", name, dir, err)
			}
		}
	}
	o.owners = []string{"gateway"}
	if err := o.run(io.Discard); err == nil {
		t.Error("an owner without a number is no error")
	}
	o.owners = []string{"stranger=1"}
	if err := o.run(io.Discard); err == nil {
		t.Error("an owner of nothing is no error")
	}
}

// snapshot reads all files below a directory.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"*", "*/*", "*/*/*"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if info, err := os.Stat(f); err == nil && info.Mode().IsRegular() {
				content, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				all[f] = string(content)
			}
		}
	}
	return all
}

func TestNATSConfigLeavesWhatIsThere(t *testing.T) {
	o := natsOptions(t)
	dir := filepath.Dir(o.keys)
	var said bytes.Buffer
	if err := o.run(&said); err != nil || !strings.Contains(said.String(), "syncd") {
		t.Fatalf("%q, %v", said.String(), err)
	}
	before := snapshot(t, dir)
	said.Reset()
	if err := o.run(&said); err != nil || said.Len() > 0 {
		t.Fatalf("%q, %v", said.String(), err)
	}
	after := snapshot(t, dir)
	for f, content := range before {
		if after[f] != content {
			t.Errorf("%s is not what it was", f)
		}
	}
	o.renew = true
	if err := o.run(io.Discard); err != nil {
		t.Fatal(err)
	}
	renewed := snapshot(t, dir)
	for _, f := range []string{pki.CertFile(o.tlsDir, "syncd"), pki.KeyFile(filepath.Join(o.out, "tls"), pki.Bus)} {
		if renewed[f] == before[f] {
			t.Errorf("%s was not renewed", f)
		}
	}
	if _, err := tls.LoadX509KeyPair(pki.CertFile(o.tlsDir, "pleg"), pki.KeyFile(o.tlsDir, "pleg")); err != nil {
		t.Error(err)
	}
	o.tlsDir = ""
	if err := o.run(io.Discard); err != nil {
		t.Fatal(err)
	}
	if conf := snapshot(t, dir)[filepath.Join(o.out, "tls.conf")]; strings.Contains(conf, "tls {") {
		t.Errorf("without TLS the server has %q", conf)
	}
}

func TestNATSConfigRefusesLostKeys(t *testing.T) {
	o := natsOptions(t)
	if err := o.run(io.Discard); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(o.data, "jetstream"), 0o700); err != nil {
		t.Fatal(err)
	}
	seed, atRest := embedded.SeedFile(o.keys, bus.ServiceSyncd), filepath.Join(o.keys, "jetstream.key")
	if err := os.Remove(seed); err != nil {
		t.Fatal(err)
	}
	if err := o.run(io.Discard); !fault.Is(err, fault.FailedPrecondition) {
		t.Errorf("without a service's key: %v", err)
	}
	o.newKeys = true
	if err := o.run(io.Discard); err != nil {
		t.Errorf("a new key is wanted: %v", err)
	}
	o.newKeys = false
	if err := o.run(io.Discard); err != nil {
		t.Errorf("the new key is not known: %v", err)
	}
	if err := os.Remove(atRest); err != nil {
		t.Fatal(err)
	}
	for _, o.newKeys = range []bool{false, true} {
		if err := o.run(io.Discard); !fault.Is(err, fault.FailedPrecondition) {
			t.Errorf("without the key of the records: %v", err)
		}
	}
}
