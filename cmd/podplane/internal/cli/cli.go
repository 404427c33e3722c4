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
	auth      rest.Options
}

// client makes the client. What a flag says about the token comes before the environment.
func (e *env) client() (*rest.Client, error) {
	o := e.auth
	if token := os.Getenv("PODPLANE_TOKEN"); o.Token == "" && o.TokenFile == os.Getenv("PODPLANE_TOKEN_FILE") && token != "" {
		o.Token, o.TokenFile = token, ""
	}
	if o.Token != "" && o.TokenFile == os.Getenv("PODPLANE_TOKEN_FILE") {
		o.TokenFile = ""
	}
	return rest.New(e.server, o)
}

// Commands returns the user's commands, to be added to the root command.
func Commands() []*cobra.Command {
	e := &env{}
	cmds := []*cobra.Command{
		applyCommand(e), getCommand(e), deleteCommand(e), logsCommand(e),
		waitCommand(e), eventsCommand(e), servicesCommand(e), lifecycleCommand(e), whyCommand(e),
	}
	server := os.Getenv("PODPLANE_SERVER")
	if server == "" {
		server = rest.DefaultServer
	}
	for _, c := range cmds {
		c.Flags().StringVarP(&e.server, "server", "s", server, "gateway's address (environment: PODPLANE_SERVER)")
		f := c.Flags()
		// A token's default is not the flag's: help would show it.
		f.StringVar(&e.auth.Token, "token", "", "bearer token; others on this host see it, a file is better (environment: PODPLANE_TOKEN)")
		f.StringVar(&e.auth.TokenFile, "token-file", os.Getenv("PODPLANE_TOKEN_FILE"), "file with a bearer token (environment: PODPLANE_TOKEN_FILE)")
		f.StringVar(&e.auth.CA, "certificate-authority", os.Getenv("PODPLANE_CERTIFICATE_AUTHORITY"), "file with the CA of gateway's certificate (environment: PODPLANE_CERTIFICATE_AUTHORITY)")
		f.StringVar(&e.auth.ClientCert, "client-certificate", os.Getenv("PODPLANE_CLIENT_CERTIFICATE"), "file with a certificate of yours (environment: PODPLANE_CLIENT_CERTIFICATE)")
		f.StringVar(&e.auth.ClientKey, "client-key", os.Getenv("PODPLANE_CLIENT_KEY"), "file with its key; empty: the certificate's file has it (environment: PODPLANE_CLIENT_KEY)")
		f.StringVarP(&e.namespace, "namespace", "n", "default", "namespace")
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
