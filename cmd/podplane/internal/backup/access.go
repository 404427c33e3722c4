package backup

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/cmd/podplane/internal/records"
	"github.com/podplane/podplane/cmd/podplane/internal/up"
	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pki"
)

const (
	connectTimeout = 10 * time.Second
	minKey         = 32
	othersRead     = 0o077
)

// Access says where the bus is and by which keys.
type Access struct {
	// Host says where this host's Podplane is; with a NATSURL the bus is that one, and otherwise the host's own, running or not.
	Host up.Config
	// Seed is the administrator's key for a bus that is named.
	Seed string
	// Key is the file with the key of backup files; empty: that of the records; up.NoKey: they are in the clear.
	Key string
	// Replicas is how many copies of each stream a bus that is named keeps.
	Replicas int
}

func (a *Access) flags(cmd *cobra.Command) {
	cmd.SilenceUsage = true
	a.Host = up.Default()
	f := cmd.Flags()
	f.StringVar(&a.Host.Root, "root", a.Host.Root, "as for podplane up")
	f.StringVar(&a.Host.RunDir, "run-dir", a.Host.RunDir, "as for podplane up")
	f.StringVar(&a.Host.TLSDir, "tls-dir", a.Host.TLSDir, "as for podplane up (environment: PODPLANE_TLS_DIR)")
	f.StringVar(&a.Host.EncryptionKey, "encryption-key", a.Host.EncryptionKey, "file with the key of the records, as for podplane up (environment: PODPLANE_ENCRYPTION_KEY)")
	f.StringVar(&a.Host.NATSURL, "nats-url", a.Host.NATSURL, "the bus, where it is not podplane up's own (environment: NATS_URL)")
	f.StringVar(&a.Seed, "nats-nkey-seed", "", "file with the administrator's key for --nats-url")
	f.StringVar(&a.Key, "key", "", "file with the key of the backup; empty: the same as of the records; none: it is not encrypted")
}

// fileKey gives the key of backup files; empty: they are in the clear.
func (a *Access) fileKey() (string, error) {
	file := a.Key
	switch file {
	case up.NoKey:
		return "", nil
	case "":
		if file = a.Host.BusKey(); file == "" {
			return "", nil
		}
	}
	info, err := os.Stat(file)
	if err != nil {
		return "", fault.New(fault.Invalid, "the key of the backup: %w; --key names another file, --key none does without", err)
	}
	if info.Mode().Perm()&othersRead != 0 {
		return "", fault.New(fault.Invalid, "%s: others may read or write it (mode %04o, want 0600)", file, info.Mode().Perm())
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the key of the backup: %w", err)
	}
	key := strings.TrimSpace(string(data))
	if len(key) < minKey {
		return "", fault.New(fault.Invalid, "%s holds %d characters, want at least %d", file, len(key), minKey)
	}
	return key, nil
}

// read calls f with a connection to the bus: that which is named, the host's own which is up, or the host's own records, for which a server
// is started as long as f runs.
func (a *Access) read(ctx context.Context, f func(context.Context, *bus.Conn) error) error {
	if a.Host.NATSURL != "" {
		return a.connected(ctx, a.Host.NATSURL, a.Seed, f)
	}
	running, info, err := up.Running(a.Host.RunDir)
	if err != nil {
		return err
	}
	if running {
		if info.NATSURL == "" {
			return fault.New(fault.Unavailable, "podplane is being started or stopped: try again")
		}
		return a.connected(ctx, info.NATSURL, embedded.SeedFile(a.Host.KeysDir(), embedded.AdminKey), f)
	}
	release, err := up.Exclusive(a.Host.RunDir)
	if err != nil {
		return err
	}
	defer release()
	return records.Serve(ctx, a.Host.BusDir(), a.Host.BusKey(), f)
}

// Connected calls f with an administrator's connection to a server that runs.
func Connected(ctx context.Context, host up.Config, url, seed string, f func(context.Context, *bus.Conn) error) error {
	a := Access{Host: host}
	return a.connected(ctx, url, seed, f)
}

// connected calls f with a connection to a server that runs.
func (a *Access) connected(ctx context.Context, url, seed string, f func(context.Context, *bus.Conn) error) error {
	cfg := bus.Config{URL: url, NKeySeedFile: seed, Instance: "operator", Replicas: a.Replicas, RequestTimeout: records.RequestTimeout}
	if a.Host.TLSDir != "" {
		process, err := pki.Load(a.Host.TLSDir, pki.Bus, nil)
		if err != nil {
			return err
		}
		cfg.TLS = process.Client(pki.Bus)
	}
	connecting, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	c, err := bus.Connect(connecting, cfg)
	if err != nil {
		return err
	}
	return records.Closing(ctx, c.Close, f(ctx, c))
}
