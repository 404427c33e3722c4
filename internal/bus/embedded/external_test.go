package embedded_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pki"
)

// TestServerOfItsOwnTalksTLS reads the block that docs/security.md gives for a nats-server that is not this process.
func TestServerOfItsOwnTalksTLS(t *testing.T) {
	dir := t.TempDir()
	if _, err := pki.Ensure(dir, pki.Options{Processes: []string{bus.ServiceSyncd}}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "nats.conf")
	text := fmt.Sprintf("host: 127.0.0.1\nport: -1\njetstream {store_dir: %q}\ntls {cert_file: %q, key_file: %q, ca_file: %q, verify: true}\n",
		t.TempDir(), pki.CertFile(dir, pki.Bus), pki.KeyFile(dir, pki.Bus), pki.CertFile(dir, pki.CA))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	o.NoSigs, o.NoLog = true, true
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	defer func() { s.Shutdown(); s.WaitForShutdown() }()
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not start")
	}
	p, err := pki.Load(dir, bus.ServiceSyncd, nil)
	if err != nil {
		t.Fatal(err)
	}
	url := "nats://" + s.Addr().String()
	c, err := bus.Connect(within(t), bus.Config{URL: url, Service: bus.ServiceSyncd, TLS: p.Client(pki.Bus)})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(within(t)); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if c, err := bus.Connect(ctx, bus.Config{URL: url, Service: bus.ServiceSyncd}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("plain: %v", err)
		if err == nil {
			_ = c.Close(within(t))
		}
	}
}
