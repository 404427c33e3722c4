package credentials_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podplane/podplane/cmd/podplane/internal/credentials"
	"github.com/podplane/podplane/internal/tokens"
)

// podplane runs one of the commands and gives its standard output.
func podplane(t *testing.T, args ...string) (string, error) {
	t.Helper()
	for _, c := range credentials.Commands() {
		if c.Name() != args[0] {
			continue
		}
		var out bytes.Buffer
		c.SetArgs(args[1:])
		c.SetOut(&out)
		c.SetErr(&bytes.Buffer{})
		err := c.ExecuteContext(t.Context())
		return out.String(), err
	}
	t.Fatalf("no command %q", args[0])
	return "", nil
}

func must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := podplane(t, args...)
	if err != nil {
		t.Fatalf("podplane %s: %v", strings.Join(args, " "), err)
	}
	return out
}

func TestTokensFromTheCommandLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	secret := strings.TrimSpace(must(t, "token", "create", "alice", "--group", "dev,ops", "--group", "more", "--ttl", "1h", "--file", file))
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	set, err := tokens.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	entry, err := set.Lookup(secret, time.Now())
	if err != nil || entry.User != "alice" || strings.Join(entry.Groups, " ") != "dev ops more" || entry.Expires.IsZero() {
		t.Errorf("%+v %v", entry, err)
	}
	if out := must(t, "token", "list", "--file", file); !strings.Contains(out, entry.ID) || strings.Contains(out, secret) {
		t.Errorf("list: %s", out)
	}
	must(t, "token", "revoke", entry.ID, "--file", file)
	if out := must(t, "token", "list", "--file", file); strings.Contains(out, entry.ID) {
		t.Errorf("list after revoke: %s", out)
	}
	for _, args := range [][]string{
		{"token", "revoke", entry.ID, "--file", file},
		{"token", "create", "system:x", "--file", file},
		{"token", "create", "--file", file},
		{"certs", "client", "system:x", "--dir", t.TempDir()},
		{"certs", "client", "alice", "--dir", t.TempDir()},
	} {
		if out, err := podplane(t, args...); err == nil {
			t.Errorf("%v: %s", args, out)
		}
	}
}

func TestCertificatesFromTheCommandLine(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	out := must(t, "certs", "--dir", dir, "--host", "node.example", "--owner", "gateway=10002", "--owner", "nats=10001")
	for _, name := range []string{"ca", "client-ca", "https", "nats", "syncd", "pleg", "prober", "volumed", "evictd", "gateway"} {
		if !strings.Contains(out, "made "+filepath.Join(dir, name+".crt")) {
			t.Errorf("%s was not made: %s", name, out)
		}
	}
	for name, uid := range map[string]uint32{"gateway": 10002, "nats": 10001, "syncd": 0, "ca": 0} {
		info, err := os.Stat(filepath.Join(dir, name+".key"))
		if err != nil || info.Mode().Perm() != 0o600 || info.Sys().(*syscall.Stat_t).Uid != uid {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("%v %v", info, err)
	}
	if out := must(t, "certs", "--dir", dir); !strings.Contains(out, "are good") {
		t.Errorf("a second time: %s", out)
	}
	must(t, "certs", "client", "alice", "--group", "ops", "--dir", dir)
	for _, owner := range []string{"ca=1", "client-ca=1", "gateway", "gateway=x", "gateway=-1", "../x=1", "nobody=1"} {
		if out, err := podplane(t, "certs", "--dir", dir, "--owner", owner); err == nil {
			t.Errorf("--owner %s: %s", owner, out)
		}
	}
}
