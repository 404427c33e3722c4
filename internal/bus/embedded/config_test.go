package embedded_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
)

// The server reads the file as the users that the embedded server would have.
func TestServerReadsTheWrittenConfiguration(t *testing.T) {
	dir := t.TempDir()
	users, err := embedded.ServiceUsers(filepath.Join(dir, "keys"), "n1")
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(dir, "jetstream.key")
	encryption, err := embedded.EncryptionConfig(key)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := embedded.EncryptionConfig(key); err != nil || again != encryption {
		t.Errorf("another key the second time: %q, %q, %v", encryption, again, err)
	}
	for name, content := range map[string]string{
		"auth.conf": embedded.AuthorizationConfig(users), "encryption.conf": encryption,
		"nats.conf": "include auth.conf\njetstream {\n store_dir: /nowhere\n include encryption.conf\n}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o, err := server.ProcessConfigFile(filepath.Join(dir, "nats.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if o.JetStreamKey == "" || o.JetStreamCipher != server.ChaCha {
		t.Errorf("no encryption at rest: cipher %v", o.JetStreamCipher)
	}
	if len(o.Nkeys) != len(users) || len(users) != len(bus.AllServices())+2 {
		t.Fatalf("got %d users, want %d: the services, the command line and the administrator", len(o.Nkeys), len(users))
	}
	for i, u := range users {
		got := o.Nkeys[i]
		if got.Nkey != u.PublicKey {
			t.Errorf("user %d has the key %s, want %s", i, got.Nkey, u.PublicKey)
		}
		if u.Full {
			if got.Permissions != nil {
				t.Errorf("the administrator has limits: %v", got.Permissions)
			}
			continue
		}
		equal(t, got.Permissions.Publish.Allow, u.Publish)
		equal(t, got.Permissions.Subscribe.Allow, u.Subscribe)
	}
}

func equal(t *testing.T, got, want []string) {
	t.Helper()
	if len(got) != len(want) || len(want) == 0 {
		t.Fatalf("got %d subjects, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got subject %q, want %q", got[i], want[i])
		}
	}
}
