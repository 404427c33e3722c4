// Package cli is Podplane's command line for users: it applies, shows, follows
// and deletes what the REST API serves.
//
// Each command is a function from flags to calls of internal/rest; none keeps
// state. Output that scripts read goes to standard output, everything else to
// standard error.
package cli

import (
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/cmd/podplane/internal/rest"
)

// env is what every command shares.
type env struct {
	server    string
	namespace string
}

func (e *env) client() (*rest.Client, error) { return rest.New(e.server) }

// Commands returns the user's commands, to be added to the root command.
func Commands() []*cobra.Command {
	e := &env{}
	cmds := []*cobra.Command{
		applyCommand(e), getCommand(e), deleteCommand(e), logsCommand(e),
		waitCommand(e), eventsCommand(e), servicesCommand(e), lifecycleCommand(e),
	}
	server := os.Getenv("PODPLANE_SERVER")
	if server == "" {
		server = rest.DefaultServer
	}
	for _, c := range cmds {
		c.Flags().StringVarP(&e.server, "server", "s", server, "gateway's address (environment: PODPLANE_SERVER)")
		c.Flags().StringVarP(&e.namespace, "namespace", "n", "default", "namespace")
		c.SilenceUsage = true
	}
	return cmds
}

// copyOut copies a stream to out and treats the user's Ctrl-C as the normal
// end of following.
func copyOut(cmd *cobra.Command, out io.Writer, body io.ReadCloser) error {
	defer func() { _ = body.Close() }()
	if _, err := io.Copy(out, body); err != nil && cmd.Context().Err() == nil {
		return err
	}
	return nil
}

// endOfStream is what the end of a stream means to the command: nothing, when
// the server or the user ended it.
func endOfStream(cmd *cobra.Command, err error) error {
	if errors.Is(err, io.EOF) || cmd.Context().Err() != nil {
		return nil
	}
	return err
}
