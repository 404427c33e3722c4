package incontainer

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/fault"
)

type natsConfigOptions struct {
	keys, out, node string
	owners, chown   []string
}

func natsConfigCommand() *cobra.Command {
	var o natsConfigOptions
	cmd := &cobra.Command{
		Use:   "nats-config",
		Short: "Make the services' keys, and the part of a nats-server's configuration that says what each may do",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return o.run() },
	}
	f := cmd.Flags()
	f.StringVar(&o.keys, "keys-dir", "/keys", "where the services' secret keys are kept, made where missing")
	f.StringVar(&o.out, "out", "/nats", "where auth.conf and encryption.conf are written for nats-server to include")
	f.StringVar(&o.node, "node", "", "let services write the records of this node only; empty: of every node")
	f.StringSliceVar(&o.owners, "owner", nil, "SERVICE=UID: who may read a service's key; root if not named; nats: who may read the server's")
	f.StringSliceVar(&o.chown, "chown", nil, "DIRECTORY=UID: give a directory to who uses it")
	return cmd
}

func (o natsConfigOptions) run() error {
	users, err := embedded.ServiceUsers(o.keys, o.node)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("make the directory of the server's configuration: %w", err)
	}
	keyFile := filepath.Join(o.keys, "jetstream.key")
	encryption, err := embedded.EncryptionConfig(keyFile)
	if err != nil {
		return err
	}
	server := filepath.Join(o.out, "encryption.conf")
	for _, file := range []struct {
		path, content string
		mode          os.FileMode
	}{
		{filepath.Join(o.out, "auth.conf"), embedded.AuthorizationConfig(users), 0o644},
		{server, encryption, 0o400},
	} {
		if err := writeFile(file.path, file.content, file.mode); err != nil {
			return err
		}
	}
	// Its users pass through the directory; the files are theirs alone.
	if err := os.Chmod(o.keys, 0o711); err != nil {
		return fmt.Errorf("open the directory of the keys: %w", err)
	}
	if err := each(o.owners, func(service string, uid int) error {
		if service == "nats" {
			return os.Chown(server, uid, uid)
		}
		return os.Chown(embedded.SeedFile(o.keys, service), uid, uid)
	}); err != nil {
		return err
	}
	return each(o.chown, func(dir string, uid int) error { return os.Chown(dir, uid, uid) })
}

// each calls f for every NAME=UID.
func each(pairs []string, f func(name string, uid int) error) error {
	for _, pair := range pairs {
		name, number, ok := strings.Cut(pair, "=")
		uid, err := strconv.Atoi(number)
		if !ok || err != nil || uid < 0 {
			return fault.New(fault.Invalid, "%q: want NAME=UID", pair)
		}
		if err := f(name, uid); err != nil {
			return fmt.Errorf("give %s away: %w", name, err)
		}
	}
	return nil
}

// writeFile replaces a file as a whole.
func writeFile(path, content string, mode os.FileMode) error {
	temp := path + ".new"
	if err := os.Remove(temp); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.WriteFile(temp, []byte(content), mode); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
