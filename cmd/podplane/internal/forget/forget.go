// Package forget is `podplane forget`: it removes what a node that is gone for good has left on the bus.
package forget

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/cmd/podplane/internal/backup"
	"github.com/podplane/podplane/cmd/podplane/internal/up"
	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
)

// Command is `podplane forget`.
func Command() *cobra.Command {
	host := up.Default()
	var seed string
	cmd := &cobra.Command{
		Use:   "forget NODE",
		Short: "Delete the records of a node that is gone for good, and of its pods",
		Long: `Deletes from a bus that several nodes share what a node has left that will not come back, so that it is no longer listed and its pods'
names are free. It is refused while a service of the node is registered.`,
		Args: cobra.ExactArgs(1), SilenceUsage: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if host.NATSURL == "" {
				return fault.New(fault.Invalid, "--nats-url: name the bus that the nodes share")
			}
			return backup.Connected(cmd.Context(), host, host.NATSURL, seed, func(ctx context.Context, c *bus.Conn) error {
				n, err := bus.Forget(ctx, c, args[0])
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "forgot node %s and its %d pods\n", args[0], n)
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&host.NATSURL, "nats-url", os.Getenv("NATS_URL"), "the bus (environment: NATS_URL)")
	f.StringVar(&seed, "nats-nkey-seed", "", "file with the administrator's key")
	f.StringVar(&host.TLSDir, "tls-dir", host.TLSDir, "as for podplane up (environment: PODPLANE_TLS_DIR)")
	return cmd
}
