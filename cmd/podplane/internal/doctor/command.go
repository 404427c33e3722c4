package doctor

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/cmd/podplane/internal/up"
	"github.com/podplane/podplane/internal/fault"
)

// Commands are `podplane doctor`.
func Commands() []*cobra.Command {
	w := Where{Host: up.Default()}
	var output string
	cmd := &cobra.Command{
		Use: "doctor", Short: "Look for what is wrong with this host, the runtime, the bus and the services, and say how to mend it", Args: cobra.NoArgs,
		Long: `Looks at what Podplane needs of this host (cgroups, capabilities, mounts, kernel, clock, disks, ports, runtime, network) and, when Podplane is
up, at the bus, the services and what earlier pods left. It changes nothing. Give it the flags that podplane up has. The exit code is 1 when it
finds a problem; warnings are none.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return fault.New(fault.Invalid, "--output %q: want json, or nothing for text", output)
			}
			facts := Gather(cmd.Context(), w)
			findings := Judge(facts)
			print := Print
			if output == "json" {
				print = PrintJSON
			}
			if err := print(cmd.OutOrStdout(), findings); err != nil {
				return err
			}
			problems := 0
			for _, f := range findings {
				if f.Level == Problem {
					problems++
				}
			}
			if problems > 0 {
				return fault.New(fault.FailedPrecondition, "%s", count(problems))
			}
			return nil
		},
	}
	up.HostFlags(cmd, &w.Host)
	up.ListenFlags(cmd, &w.Host)
	cmd.Flags().StringVar(&w.Seed, "nats-nkey-seed", "", "file with the administrator's key for --nats-url")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json, or nothing for text")
	return []*cobra.Command{cmd}
}

func count(problems int) string {
	if problems == 1 {
		return "there is a problem"
	}
	return fmt.Sprintf("there are %d problems", problems)
}
