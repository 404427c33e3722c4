package incontainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func sandboxCommand() *cobra.Command {
	return &cobra.Command{
		Use: "sandbox", Short: "Hold the namespaces that containers of Podplane share, and collect orphans", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return hold(cmd.Context()) },
	}
}

// hold waits until ctx ends. As the first process of its namespace it is the parent of processes whose own has ended.
func hold(ctx context.Context) error {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	for {
		if err := reap(); err != nil {
			return err
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return nil
		}
	}
}

// reap collects all children that have ended.
func reap() error {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD), err == nil && pid == 0:
			return nil
		case err != nil:
			return fmt.Errorf("collect orphans: %w", err)
		}
	}
}
