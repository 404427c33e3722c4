package incontainer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pki"
)

// natsOwner is how --owner names the server among the services.
const natsOwner = pki.Bus

type natsConfigOptions struct {
	keys, out, data, node, authority, tlsDir, serverDir string
	owners, chown                                       []string
	newKeys, renew                                      bool
}

func natsConfigCommand() *cobra.Command {
	var o natsConfigOptions
	cmd := &cobra.Command{
		Use:   "nats-config",
		Short: "Make the services' keys and certificates, and the part of a nats-server's configuration that says what each may do",
		Long: `Makes what is missing and leaves what is there. Keys that a server's records know and that are gone are not made anew: without the key of the
records nobody reads them, and a service with another key than before may be a stranger.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.OutOrStdout()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.keys, "keys-dir", "/keys", "where the services' secret keys are kept, made where missing")
	f.StringVar(&o.out, "out", "/nats", "where auth.conf, encryption.conf and tls.conf are written for nats-server to include")
	f.StringVar(&o.serverDir, "server-dir", "/etc/podplane/nats", "where nats-server finds the directory --out")
	f.StringVar(&o.data, "data", "/data", "where nats-server keeps its records")
	f.StringVar(&o.node, "node", "", "let services write the records of this node only; empty: of every node")
	f.StringVar(&o.authority, "authority-dir", "/authority", "where certificates are made and the authorities' keys stay")
	f.StringVar(&o.tlsDir, "tls-dir", "", "where services find their certificates; empty: everything talks plainly")
	f.StringSliceVar(&o.owners, "owner", nil, "SERVICE=UID: who may read a service's keys; root if not named; nats: who may read the server's")
	f.StringSliceVar(&o.chown, "chown", nil, "DIRECTORY=UID: give a directory to who uses it")
	f.BoolVar(&o.newKeys, "new-keys", fromEnvironment("PODPLANE_NEW_KEYS"), "make keys of services that were lost anew (environment: PODPLANE_NEW_KEYS)")
	f.BoolVar(&o.renew, "renew", fromEnvironment("PODPLANE_RENEW_CERTS"), "make all certificates anew (environment: PODPLANE_RENEW_CERTS)")
	return cmd
}

// fromEnvironment says whether a variable means yes. What is no boolean means no: the flag says it better.
func fromEnvironment(name string) bool {
	yes, err := strconv.ParseBool(os.Getenv(name))
	return err == nil && yes
}

func (o natsConfigOptions) run(out io.Writer) error {
	owners, err := parseOwners(o.owners)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("make the directory of the server's configuration: %w", err)
	}
	// What can be refused comes before anything is made.
	encryption, err := embedded.EncryptionConfig(o.data, filepath.Join(o.keys, "jetstream.key"))
	if err != nil {
		return err
	}
	if err := embedded.CheckUsers(o.data, o.keys); err != nil && !o.newKeys {
		return err
	}
	users, err := embedded.ServiceUsers(o.keys, o.node)
	if err != nil {
		return err
	}
	if err := embedded.NoteUsers(o.data, o.keys); err != nil {
		return err
	}
	secure, err := o.certificates(out, owners)
	if err != nil {
		return err
	}
	for _, f := range []file{
		{"auth.conf", embedded.AuthorizationConfig(users), 0o644, 0},
		{"encryption.conf", encryption, 0o400, owners[natsOwner]},
		{"tls.conf", secure, 0o644, 0},
	} {
		if err := f.write(o.out); err != nil {
			return err
		}
	}
	return o.giveAway(owners)
}

// giveAway gives every key to the user who needs it.
func (o natsConfigOptions) giveAway(owners map[string]int) error {
	// Its users pass through the directory; the files are theirs alone.
	if err := os.Chmod(o.keys, 0o711); err != nil {
		return fmt.Errorf("open the directory of the keys: %w", err)
	}
	for _, service := range bus.AllServices() {
		if err := os.Chown(embedded.SeedFile(o.keys, service), owners[service], owners[service]); err != nil {
			return fmt.Errorf("give the key of %s away: %w", service, err)
		}
	}
	return each(o.chown, func(dir string, uid int) error { return os.Chown(dir, uid, uid) })
}

// certificates makes certificates and puts those of the services and of the server where they are used, without the authorities' keys. It
// gives the part of the server's configuration that is about them.
func (o natsConfigOptions) certificates(out io.Writer, owners map[string]int) (string, error) {
	if o.tlsDir == "" {
		return "# Plain: PODPLANE_TLS_DIR is empty.\n", nil
	}
	made, err := pki.Ensure(o.authority, pki.Options{Processes: bus.AllServices(), Renew: o.renew})
	if err != nil {
		return "", err
	}
	if len(made) > 0 {
		fmt.Fprintf(out, "made certificates: %s\n", strings.Join(made, " "))
	}
	for _, service := range bus.AllServices() {
		if err := o.publish(o.tlsDir, service, owners[service]); err != nil {
			return "", err
		}
	}
	own := filepath.Join(o.out, "tls")
	if err := o.publish(own, pki.Bus, owners[natsOwner]); err != nil {
		return "", err
	}
	there := filepath.Join(o.serverDir, "tls")
	return fmt.Sprintf("tls {\n  cert_file: %s\n  key_file: %s\n  ca_file: %s\n  verify: true\n  timeout: 5\n}\n",
		strconv.Quote(pki.CertFile(there, pki.Bus)), strconv.Quote(pki.KeyFile(there, pki.Bus)), strconv.Quote(pki.CertFile(there, pki.CA))), nil
}

// publish puts a certificate, its key, and the authority that the other side's is of into a directory.
func (o natsConfigOptions) publish(dir, name string, owner int) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return fmt.Errorf("make a directory of certificates: %w", err)
	}
	// The key comes first: who reads between the two finds a pair that does not fit, and looks again.
	for _, f := range []struct {
		path  string
		mode  fs.FileMode
		owner int
	}{{pki.KeyFile("", name), 0o600, owner}, {pki.CertFile("", name), 0o644, 0}, {pki.CertFile("", pki.CA), 0o644, 0}} {
		content, err := os.ReadFile(filepath.Join(o.authority, f.path))
		if err != nil {
			return fmt.Errorf("certificate of %s: %w", name, err)
		}
		if err := (file{f.path, string(content), f.mode, f.owner}).write(dir); err != nil {
			return err
		}
	}
	return nil
}

// parseOwners reads NAME=UID of services, and of nats.
func parseOwners(pairs []string) (map[string]int, error) {
	owners := map[string]int{natsOwner: 0}
	for _, service := range bus.AllServices() {
		owners[service] = 0
	}
	err := each(pairs, func(name string, uid int) error {
		if _, known := owners[name]; !known {
			return fault.New(fault.Invalid, "it is neither a service nor %s", natsOwner)
		}
		owners[name] = uid
		return nil
	})
	return owners, err
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

// file is one to write.
type file struct {
	name, content string
	mode          fs.FileMode
	owner         int
}

// write replaces the file as a whole, unless it is as it should be.
func (f file) write(dir string) error {
	path := filepath.Join(dir, f.name)
	if present, err := os.ReadFile(path); err == nil && bytes.Equal(present, []byte(f.content)) {
		if err := errors.Join(os.Chmod(path, f.mode), os.Chown(path, f.owner, f.owner)); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		return nil
	}
	temp := path + ".new"
	err := os.Remove(temp)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.WriteFile(temp, []byte(f.content), f.mode)
	}
	if err == nil {
		err = errors.Join(os.Chown(temp, f.owner, f.owner), os.Rename(temp, path))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
