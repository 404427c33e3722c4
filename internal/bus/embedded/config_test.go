package embedded_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/fault"
)

// The server reads the file as the users that the embedded server would have.
func TestServerReadsTheWrittenConfiguration(t *testing.T) {
	dir := t.TempDir()
	users, err := embedded.ServiceUsers(filepath.Join(dir, "keys"), "n1")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(dir, "jetstream.key")
	encryption, err := embedded.EncryptionConfig(filepath.Join(dir, "data"), key)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := embedded.EncryptionConfig(filepath.Join(dir, "data"), key); err != nil || again != encryption {
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

// TestLostKeysAreNotMadeAnew takes keys away from a server that has records.
func TestLostKeysAreNotMadeAnew(t *testing.T) {
	dir := t.TempDir()
	data, keys, key := filepath.Join(dir, "data"), filepath.Join(dir, "keys"), filepath.Join(dir, "jetstream.key")
	if err := os.MkdirAll(filepath.Join(data, "jetstream"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := embedded.EncryptionConfig(data, key); !fault.Is(err, fault.FailedPrecondition) {
		t.Errorf("records of which nothing is known, and no key: %v", err)
	}
	if err := os.Remove(filepath.Join(data, "jetstream")); err != nil {
		t.Fatal(err)
	}
	config, err := embedded.EncryptionConfig(data, key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := embedded.ServiceUsers(keys, "n1"); err != nil {
		t.Fatal(err)
	}
	if err := embedded.CheckUsers(data, keys); err != nil {
		t.Errorf("nothing is noted yet: %v", err)
	}
	if err := embedded.NoteUsers(data, keys); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(data, "jetstream"), 0o700); err != nil {
		t.Fatal(err)
	}
	if again, err := embedded.EncryptionConfig(data, key); err != nil || again != config {
		t.Errorf("the same key: %q, %v", again, err)
	}
	if err := embedded.CheckUsers(data, keys); err != nil {
		t.Errorf("the same users: %v", err)
	}
	loseAndBringBack(t, key, func() error { _, err := embedded.EncryptionConfig(data, key); return err })
	loseAndBringBack(t, embedded.SeedFile(keys, bus.ServiceSyncd), func() error { return embedded.CheckUsers(data, keys) })
}

func loseAndBringBack(t *testing.T, file string, check func() error) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := check(); !fault.Is(err, fault.FailedPrecondition) || !strings.Contains(err.Error(), file) {
		t.Errorf("without %s: %v", file, err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("%s was made anew: %v", file, err)
	}
	// Another one, which is as good in itself.
	other := filepath.Join(t.TempDir(), "other")
	if _, err := embedded.EncryptionConfig(t.TempDir(), filepath.Join(other, "jetstream.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := embedded.ServiceUsers(other, "n1"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(other, filepath.Base(file)), file); err != nil {
		t.Fatal(err)
	}
	if err := check(); !fault.Is(err, fault.FailedPrecondition) {
		t.Errorf("with another %s: %v", file, err)
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := check(); err != nil {
		t.Errorf("with the old %s: %v", file, err)
	}
}
