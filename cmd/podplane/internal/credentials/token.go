// Package credentials is `podplane token` and `podplane certs`: they make what users and services show to be known.
//
// Both change files of this host and talk to nobody; the gateway and the services read the files again when they change.
package credentials

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/internal/tokens"
)

// DefaultTokens is where tokens are kept unless --file says otherwise.
const DefaultTokens = "/etc/podplane/tokens.yaml"

// Commands are `podplane token` and `podplane certs`.
func Commands() []*cobra.Command { return []*cobra.Command{tokenCommand(), certsCommand()} }

func tokenCommand() *cobra.Command {
	file := os.Getenv("PODPLANE_TOKENS")
	if file == "" {
		file = DefaultTokens
	}
	cmd := &cobra.Command{
		Use: "token", Short: "Create, list and revoke bearer tokens of the REST API", SilenceUsage: true,
		Long: `Tokens let people and programs use the REST API. The file holds their hashes only: a token is shown once, when it is created.
The gateway (--tokens FILE) reads changes at once; --bindings says what users and groups may do.`,
	}
	cmd.PersistentFlags().StringVar(&file, "file", file, "file of tokens (environment: PODPLANE_TOKENS)")
	cmd.AddCommand(createCommand(&file), listCommand(&file), revokeCommand(&file))
	return cmd
}

func createCommand(file *string) *cobra.Command {
	var groups []string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use: "create USER", Short: "Create a token for a user and print it", Args: cobra.ExactArgs(1), SilenceUsage: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			secret, t, err := tokens.Create(*file, args[0], groups, ttl)
			if err != nil {
				return err
			}
			until := "for ever"
			if !t.Expires.IsZero() {
				until = "until " + t.Expires.Format(time.RFC3339)
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "token %s of user %s, good %s; it is shown this once:\n", t.ID, t.User, until)
			_, err = fmt.Fprintln(cmd.OutOrStdout(), secret)
			return err
		},
	}
	cmd.Flags().StringSliceVar(&groups, "group", nil, "a group of the user's; may be given several times")
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "how long it is good, such as 720h; 0: for ever")
	return cmd
}

func listCommand(file *string) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List tokens by their ids", Args: cobra.NoArgs, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := tokens.List(*file)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 3, ' ', 0)
			fmt.Fprintln(w, "ID\tUSER\tGROUPS\tCREATED\tEXPIRES")
			for _, t := range list {
				groups, expires := strings.Join(t.Groups, ","), "never"
				if groups == "" {
					groups = "-"
				}
				if !t.Expires.IsZero() {
					expires = t.Expires.UTC().Format(time.RFC3339)
				}
				if t.Expired(time.Now()) {
					expires += " (expired)"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", t.ID, t.User, groups, t.Created.UTC().Format(time.RFC3339), expires)
			}
			return w.Flush()
		},
	}
}

func revokeCommand(file *string) *cobra.Command {
	return &cobra.Command{
		Use: "revoke ID...", Short: "Revoke tokens by their ids", Args: cobra.MinimumNArgs(1), SilenceUsage: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := tokens.Revoke(*file, args...); err != nil {
				return err
			}
			for _, id := range args {
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "token %s revoked\n", id); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
