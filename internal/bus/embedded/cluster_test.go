package embedded_test

import (
	"path/filepath"
	"testing"

	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/fault"
)

func TestAnOpenClusterIsRefused(t *testing.T) {
	for name, c := range map[string]embedded.Cluster{
		"an address that others reach, without TLS": {Name: "c", Host: "0.0.0.0"},
		"no address":         {Name: "c"},
		"no name":            {Host: "127.0.0.1"},
		"a name in two":      {Name: "c d", Host: "127.0.0.1"},
		"no port of another": {Name: "c", Host: "127.0.0.1", Routes: []string{"10.0.0.2"}},
	} {
		s, err := embedded.Start(t.Context(), embedded.Options{StoreDir: filepath.Join(t.TempDir(), "nats"), Name: "a", Cluster: &c})
		if !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			_ = s.Shutdown(t.Context())
		}
	}
}

func TestEachNodeHasItsOwnKeys(t *testing.T) {
	dir := t.TempDir()
	users, err := embedded.NodeUsers(dir, []string{"a.example", "b"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := embedded.NodeUsers(dir, []string{"a.example", "b"})
	if err != nil {
		t.Fatal(err)
	}
	seen, full := map[string]bool{}, 0
	for i, u := range users {
		if seen[u.PublicKey] {
			t.Errorf("key %s is there twice", u.PublicKey)
		}
		seen[u.PublicKey] = true
		if u.Full {
			full++
		}
		if again[i].PublicKey != u.PublicKey {
			t.Errorf("key %d is another one the second time", i)
		}
	}
	if full != 1 {
		t.Errorf("%d users may do everything, want one", full)
	}
	for _, bad := range []string{"", "..", "a/b", ".hidden"} {
		if _, err := embedded.NodeUsers(dir, []string{bad}); !fault.Is(err, fault.Invalid) {
			t.Errorf("node %q: %v", bad, err)
		}
	}
}
