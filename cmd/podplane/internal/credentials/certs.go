package credentials

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pki"
	"github.com/podplane/podplane/internal/tokens"
)

// DefaultCerts is where certificates are kept unless --dir says otherwise.
const DefaultCerts = "/etc/podplane/tls"

func certsCommand() *cobra.Command {
	dir := os.Getenv("PODPLANE_TLS_DIR")
	if dir == "" {
		dir = DefaultCerts
	}
	var o pki.Options
	var owners []string
	cmd := &cobra.Command{
		Use: "certs", Short: "Make and renew certificates: of the services, the bus, the front door", Args: cobra.NoArgs, SilenceUsage: true,
		Long: `Makes in a directory (mode 0700, keys 0600) an authority and the certificates of every service, of the bus and of the front door
(https.crt), and a second authority for users' certificates (podplane certs client). What is there and good for long stays; what is in the last
third of its time is renewed: run it each month. Running services read new files at once.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Processes = bus.AllServices()
			made, err := pki.Ensure(dir, o)
			for _, name := range made {
				fmt.Fprintf(cmd.OutOrStdout(), "made %s\n", pki.CertFile(dir, name))
			}
			if err != nil {
				return err
			}
			if len(made) == 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "all certificates in %s are good\n", dir)
			}
			return giveAway(dir, owners)
		},
	}
	cmd.PersistentFlags().StringVar(&dir, "dir", dir, "directory of certificates (environment: PODPLANE_TLS_DIR)")
	f := cmd.Flags()
	f.StringSliceVar(&o.Hosts, "host", nil, "a name or address by which the front door is reached, besides localhost; may be given several times")
	f.BoolVar(&o.Renew, "renew", false, "make all certificates anew")
	f.BoolVar(&o.RotateCA, "rotate-ca", false, "make new authorities before the present ones, which stay good, and all certificates anew")
	f.StringSliceVar(&owners, "owner", nil, "NAME=UID: who may read the key of a service, of nats or of https where that is not root, as in containers; may be given several times")
	cmd.AddCommand(clientCommand(&dir))
	return cmd
}

// giveAway lets other users than root read their own keys, and pass through the directory.
func giveAway(dir string, owners []string) error {
	if len(owners) == 0 {
		return nil
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return fmt.Errorf("open the directory of certificates: %w", err)
	}
	for _, pair := range owners {
		name, number, ok := strings.Cut(pair, "=")
		uid, err := strconv.Atoi(number)
		if !ok || err != nil || uid < 0 || name == pki.CA || name == pki.ClientCA || name != filepath.Base(name) {
			return fault.New(fault.Invalid, "--owner %q: want NAME=UID, of a service, nats or https", pair)
		}
		if err := os.Chown(pki.KeyFile(dir, name), uid, uid); err != nil {
			return fmt.Errorf("give a key away: %w", err)
		}
	}
	return nil
}

func clientCommand(dir *string) *cobra.Command {
	var groups []string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use: "client USER", Short: "Make a user's certificate for the front door", Args: cobra.ExactArgs(1), SilenceUsage: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range append([]string{args[0]}, groups...) {
				if err := tokens.CheckName(name); err != nil {
					return err
				}
			}
			if err := pki.NewClient(*dir, args[0], groups, ttl); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "made %s and %s\n", pki.CertFile(*dir, args[0]), pki.KeyFile(*dir, args[0]))
			return err
		},
	}
	cmd.Flags().StringSliceVar(&groups, "group", nil, "a group of the user's; may be given several times")
	cmd.Flags().DurationVar(&ttl, "ttl", pki.LeafLifetime, "how long it is good")
	return cmd
}
