package backup

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/internal/bus"
)

// Commands are `podplane backup` and `podplane restore`.
func Commands() []*cobra.Command {
	return []*cobra.Command{backupCommand(), restoreCommand()}
}

func backupCommand() *cobra.Command {
	var a Access
	cmd := &cobra.Command{
		Use: "backup FILE", Short: "Save the records of the bus in a file, while everything runs", Args: cobra.ExactArgs(1),
		Long: `Writes all records of the bus (pods, ConfigMaps, Secrets, status, journal, Events) into a new file of mode 0600, encrypted with the key
of the records unless --key says otherwise. Pods may run, and Podplane may be up or not. Images, containers and volumes are not in it.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := Save(cmd.Context(), a, args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "saved in %s:\n", args[0])
			return describe(cmd.OutOrStdout(), m)
		},
	}
	a.flags(cmd)
	return cmd
}

func restoreCommand() *cobra.Command {
	var a Access
	var replace bool
	cmd := &cobra.Command{
		Use: "restore FILE", Short: "Bring the records of a backup back; Podplane must not be up", Args: cobra.ExactArgs(1),
		Long: `Brings the records of a backup back into the bus, all or none of them. The next "podplane up" adopts the containers of the pods that are in
it, starts those that do not run, and ends containers of pods that are not in it. A bus that holds pods, objects or a journal is left alone without
--replace; the host's own former records are kept beside the new ones.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := Restore(cmd.Context(), a, args[0], replace)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "restored, as of %s:\n", r.Manifest.Ended.Format(time.RFC3339))
			if err := describe(out, r.Manifest); err != nil {
				return err
			}
			if r.Former != "" {
				fmt.Fprintf(out, "the former records are in %s; remove them when all is well\n", r.Former)
			}
			return nil
		},
	}
	a.flags(cmd)
	cmd.Flags().BoolVar(&replace, "replace", false, "replace what the bus holds")
	cmd.Flags().IntVar(&a.Replicas, "replicas", 1, "how many copies of each stream a bus that is named keeps")
	return cmd
}

// describe lists what a backup holds.
func describe(w io.Writer, m Manifest) error {
	for _, k := range bus.KeptStores() {
		for _, p := range m.Streams {
			if p.Stream == k.Stream {
				if _, err := fmt.Fprintf(w, "  %-12s %d messages\n", k.Name, p.Messages); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
