package up

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/internal/hostruntime"
)

// What other commands of this host have to know of a Podplane that is up, or is not.

// NoKey as the encryption key says that the records are in the clear.
const NoKey = "none"

// KeysDir holds the services' keys for our own bus.
func (c Config) KeysDir() string { return keysDir(c) }

// BusDir holds the records of our own bus.
func (c Config) BusDir() string { return filepath.Join(c.Root, "nats") }

// BusKey is the file with the key of the records of our own bus; empty: they are in the clear.
func (c Config) BusKey() string {
	switch c.EncryptionKey {
	case NoKey:
		return ""
	case "":
		// Beside the records, so that one backup of the directory has both.
		return c.BusDir() + ".key"
	}
	return c.EncryptionKey
}

// Running says whether a Podplane of this run directory is up, and what it says of itself: nothing until everything was ready.
func Running(runDir string) (up bool, i Info, err error) {
	if up, err = held(runDir); err != nil || !up {
		return up, i, err
	}
	data, err := os.ReadFile(filepath.Join(runDir, infoName))
	if errors.Is(err, os.ErrNotExist) {
		return true, i, nil
	}
	if err != nil {
		return true, i, fmt.Errorf("read what podplane up says of itself: %w", err)
	}
	if err := json.Unmarshal(data, &i); err != nil {
		return true, i, fmt.Errorf("decode %s: %w", filepath.Join(runDir, infoName), err)
	}
	return true, i, nil
}

// Exclusive keeps Podplane of this run directory from being started until release; it is an error when it is up.
func Exclusive(runDir string) (release func(), err error) {
	if err := os.MkdirAll(runDir, 0o750); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	l, err := acquire(runDir)
	if err != nil {
		return nil, err
	}
	return l.release, nil
}

// OwnRuntime is the configuration of the runtime that podplane up runs when none is named.
func (c Config) OwnRuntime() (hostruntime.Config, error) {
	self, err := os.Executable()
	if err != nil {
		return hostruntime.Config{}, fmt.Errorf("find own binary: %w", err)
	}
	local, err := localDir(self)
	if err != nil {
		return hostruntime.Config{}, err
	}
	cfg := hostruntime.DefaultConfig(local)
	cfg.Root, cfg.State = filepath.Join(c.Root, "containerd"), filepath.Join(c.RunDir, "containerd")
	return cfg, nil
}

// HostFlags are the flags by which every command of the host finds what podplane up has there.
func HostFlags(cmd *cobra.Command, cfg *Config) { hostFlags(cmd, cfg) }

// ListenFlags are those of the addresses on which podplane up listens.
func ListenFlags(cmd *cobra.Command, cfg *Config) {
	f := cmd.Flags()
	f.StringVar(&cfg.Listen, "listen", cfg.Listen, "as for podplane up")
	f.StringVar(&cfg.NATSListen, "nats-listen", cfg.NATSListen, "as for podplane up")
}
