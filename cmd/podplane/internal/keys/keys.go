// Package keys is `podplane keys`: new keys for what is encrypted, or authenticated, by keys that Podplane has made itself.
package keys

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/cmd/podplane/internal/backup"
	"github.com/podplane/podplane/cmd/podplane/internal/up"
	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/fault"
)

// Commands are `podplane keys` with its subcommands.
func Commands() []*cobra.Command {
	cmd := &cobra.Command{Use: "keys", Short: "Make new keys: of the services for the bus, of the records on disk"}
	cmd.AddCommand(rotateCommand(), recordsCommand())
	return []*cobra.Command{cmd}
}

func rotateCommand() *cobra.Command {
	cfg := up.Default()
	cmd := &cobra.Command{
		Use: "rotate", Short: "Make the keys anew by which the services use the bus, while everything runs", Args: cobra.NoArgs, SilenceUsage: true,
		Long: `Makes new keys (nkeys) for every service, has the bus take them and end the connections of the former, and waits until every service is
back with its new key. No pod and no container notices.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return rotate(cmd.Context(), cfg, cmd.OutOrStdout()) },
	}
	up.HostFlags(cmd, &cfg)
	return cmd
}

func recordsCommand() *cobra.Command {
	cfg := up.Default()
	cmd := &cobra.Command{
		Use: "rotate-records", Short: "Encrypt the records on disk with a new key; Podplane must not be up, pods may run", Args: cobra.NoArgs, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			former, err := backup.RotateKey(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "the records are encrypted with a new key, in %s: keep a copy of it elsewhere\n", cfg.BusKey())
			if former != "" {
				fmt.Fprintf(out, "the former is in %s: backups of before need it; remove it with the last of them\n", former)
			}
			return nil
		},
	}
	up.HostFlags(cmd, &cfg)
	return cmd
}

// rotateTimeout bounds the wait for the services.
const rotateTimeout = 30 * time.Second

func rotate(ctx context.Context, cfg up.Config, out io.Writer) error {
	if cfg.NATSURL != "" {
		return fault.New(fault.Invalid, "the bus at %s is not podplane up's own: its keys are made where its users are", cfg.NATSURL)
	}
	running, info, err := up.Running(cfg.RunDir)
	if err != nil {
		return err
	}
	if running && info.NATSURL == "" {
		return fault.New(fault.Unavailable, "podplane is being started or stopped: try again")
	}
	if !running {
		return rotateAtRest(cfg, out)
	}
	ctx, cancel := context.WithTimeout(ctx, rotateTimeout)
	defer cancel()
	admin := embedded.SeedFile(cfg.KeysDir(), embedded.AdminKey)
	before, err := registered(ctx, cfg, info.NATSURL, admin)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := embedded.RotateSeeds(cfg.KeysDir()); err != nil {
		return err
	}
	if err := tellBus(cfg.RunDir); err != nil {
		return err
	}
	if err := waitBack(ctx, cfg, info.NATSURL, admin, before); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "made new keys; %d services use them since %s\n", len(before), time.Since(began).Round(10*time.Millisecond))
	return err
}

// rotateAtRest is for when nothing runs, and nothing may be started meanwhile.
func rotateAtRest(cfg up.Config, out io.Writer) error {
	release, err := up.Exclusive(cfg.RunDir)
	if err != nil {
		return err
	}
	defer release()
	if err := embedded.RotateSeeds(cfg.KeysDir()); err != nil {
		return err
	}
	fmt.Fprintln(out, "made new keys; the next podplane up uses them")
	return nil
}

// tellBus has the bus read the keys again.
func tellBus(runDir string) error {
	data, err := os.ReadFile(filepath.Join(runDir, "nats.pid"))
	if err != nil {
		return fmt.Errorf("find the process of the bus: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return fmt.Errorf("find the process of the bus: %w", err)
	}
	if err := syscall.Kill(pid, syscall.SIGHUP); err != nil && !errors.Is(err, syscall.ESRCH) { // one that is being started again reads them then
		return fmt.Errorf("tell the bus (process %d): %w", pid, err)
	}
	return nil
}

// registered lists the replicas that are there.
func registered(ctx context.Context, cfg up.Config, url, seed string) ([]string, error) {
	var list []string
	err := backup.Connected(ctx, cfg, url, seed, func(ctx context.Context, c *bus.Conn) (err error) {
		list, err = c.Running(ctx)
		return err
	})
	return list, err
}

// waitBack waits until every replica has renewed its registration with its new key.
func waitBack(ctx context.Context, cfg up.Config, url, seed string, names []string) error {
	return backup.Connected(ctx, cfg, url, seed, func(ctx context.Context, c *bus.Conn) error {
		since := time.Now() // the new administrator's key is taken, so the former ones are not any more
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			missing, err := notBack(ctx, c, names, since)
			if err == nil && len(missing) == 0 {
				return nil
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fault.New(fault.Unavailable, "the new keys are made, and these did not come back with them: %s (%v)", strings.Join(missing, ", "), err)
			}
		}
	})
}

func notBack(ctx context.Context, c *bus.Conn, names []string, since time.Time) ([]string, error) {
	list, err := bus.Look(c, bus.Services).List(ctx, ">")
	if err != nil {
		return names, err
	}
	back := map[string]bool{}
	for _, e := range list {
		r := e.Value
		back[r.GetService()+"/"+r.GetInstance()+"@"+r.GetNode()] = r.GetLastSeen().AsTime().After(since)
	}
	var missing []string
	for _, n := range names {
		if !back[n] {
			missing = append(missing, n)
		}
	}
	return missing, nil
}
