// Command podplane is all of Podplane in one file: every service as a
// subcommand, the bus, and the command line for users.
package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/cmd/podplane/internal/backup"
	"github.com/podplane/podplane/cmd/podplane/internal/cli"
	"github.com/podplane/podplane/cmd/podplane/internal/credentials"
	"github.com/podplane/podplane/cmd/podplane/internal/doctor"
	"github.com/podplane/podplane/cmd/podplane/internal/forget"
	"github.com/podplane/podplane/cmd/podplane/internal/incontainer"
	"github.com/podplane/podplane/cmd/podplane/internal/keys"
	"github.com/podplane/podplane/cmd/podplane/internal/natsd"
	"github.com/podplane/podplane/cmd/podplane/internal/up"
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/services/evictd"
	"github.com/podplane/podplane/services/gateway"
	"github.com/podplane/podplane/services/pleg"
	"github.com/podplane/podplane/services/prober"
	"github.com/podplane/podplane/services/syncd"
	"github.com/podplane/podplane/services/volumed"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	os.Exit(daemon.Execute(ctx, root()))
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "podplane",
		Short: "The Kubernetes node agent, taken apart into small services on one bus",
		Long: `Podplane runs Kubernetes Pods on a Linux host against a real container runtime,
without any control plane. "podplane up" starts it; "podplane apply -f pod.yaml" runs a pod.`,
		Version: daemon.Version, SilenceUsage: true, SilenceErrors: true,
	}
	cmd.SetVersionTemplate("podplane {{.Version}}\n")
	cmd.AddGroup(
		&cobra.Group{ID: "host", Title: "This host:"},
		&cobra.Group{ID: "use", Title: "Pods:"},
		&cobra.Group{ID: "container", Title: "In the containers of deploy/:"},
		&cobra.Group{ID: "service", Title: "Services, as `podplane up` starts them:"},
	)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			cmd.AddCommand(c)
		}
	}
	add("host", slices.Concat(up.Commands(), doctor.Commands(), backup.Commands(), keys.Commands(), credentials.Commands())...)
	add("host", forget.Command())
	add("use", cli.Commands()...)
	add("service", natsd.Command(), syncd.Command(), pleg.Command(), prober.Command(), volumed.Command(), evictd.Command(), gateway.Command())
	add("container", incontainer.Commands()...)
	return cmd
}
