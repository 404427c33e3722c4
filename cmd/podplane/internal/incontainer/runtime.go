package incontainer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/hostruntime"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/internal/telemetry"
)

const (
	// sweepTimeout bounds the forced end, after the pods' own time.
	sweepTimeout = 20 * time.Second
	// stopsAtOnce bounds the containers that are being stopped at one time.
	stopsAtOnce = 64
)

type runtimeOptions struct {
	programs, root, runDir, cgroup, cidr, logLevel, logFormat, socket string
	plainHTTP                                                         []string
	group                                                             int
	grace                                                             time.Duration
}

func runtimeCommand() *cobra.Command {
	var o runtimeOptions
	cmd := &cobra.Command{
		Use: "runtime", Short: "Run containerd, and end every pod when this is asked to stop", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := telemetry.NewLogger(cmd.ErrOrStderr(), telemetry.Identity{Service: "runtime"}, "info", o.logFormat)
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), log)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.programs, "programs", "/opt/podplane", "directory of the runtime's programs and of the image archives")
	f.StringVar(&o.root, "root", "/var/lib/podplane", "directory for what must survive a restart")
	f.StringVar(&o.runDir, "run-dir", "/run/podplane", "directory for sockets")
	f.StringVar(&o.cgroup, "cgroup-root", "/podplane", "cgroup below which the pods' cgroups are; it is removed at the end")
	f.StringVar(&o.cidr, "pod-cidr", "10.188.0.0/16", "subnet of the pods' addresses")
	f.StringVar(&o.logLevel, "log-level", "warn", "containerd's log level")
	f.StringVar(&o.logFormat, "log-format", telemetry.FormatText, "text or json, of this command's own log")
	f.StringVar(&o.socket, "mounts-socket", "/run/podplane/mounts.sock", "where to give the mount namespace to volumed")
	f.StringSliceVar(&o.plainHTTP, "plain-http", nil, "registries (host:port) to talk to without TLS")
	f.IntVar(&o.group, "socket-group", 0, "group that may use the CRI socket besides root")
	f.DurationVar(&o.grace, "stop-grace", 15*time.Second, "how long pods may take to end when this is asked to stop")
	return cmd
}

func (o runtimeOptions) config() hostruntime.Config {
	c := hostruntime.DefaultConfig(o.programs)
	c.Root, c.State = filepath.Join(o.root, "containerd"), filepath.Join(o.runDir, "containerd")
	c.PodCIDR, c.LogLevel, c.PlainHTTP, c.SocketGroup = o.cidr, o.logLevel, o.plainHTTP, o.group
	return c
}

// run keeps a containerd until ctx ends; then it ends the pods and removes what they had on the host.
func (o runtimeOptions) run(ctx context.Context, log *slog.Logger) error {
	c := o.config()
	// What an earlier container left when it was killed is in the way: its shims are gone.
	if err := hostruntime.Sweep(ctx, c, o.cgroup); err != nil {
		return err
	}
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return o.keep(running, c, log) })
	group.Go(func() error { return giveNamespace(running, o.socket) })
	err := group.Wait()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.grace+sweepTimeout)
	defer cancel()
	began := time.Now()
	if err := stopPods(end, c.Endpoint(), o.grace, log); err != nil {
		log.Warn("pods did not end by themselves", "error", err)
	}
	err = errors.Join(err, hostruntime.Sweep(end, c, o.cgroup))
	log.Info("stopped", "seconds", time.Since(began).Seconds())
	return err
}

// keep starts containerd, and again whenever it ends, until ctx ends. It leaves it running.
func (o runtimeOptions) keep(ctx context.Context, c hostruntime.Config, log *slog.Logger) error {
	for first := true; ctx.Err() == nil; first = false {
		r, err := hostruntime.Start(ctx, c)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("start the runtime: %w", err)
		}
		if first {
			for _, lack := range r.Host().Lacks() {
				log.Warn(lack)
			}
		}
		log.Info("runtime is ready", "endpoint", r.Endpoint())
		err = r.Wait(ctx)
		_ = r.Close() // it lets go of the process, which has ended or is ended below
		if ctx.Err() == nil {
			log.Error("containerd ended; starting it again", "error", err, "log", c.LogTail())
		}
	}
	return nil
}

// stopPods asks all containers to end, for grace.
func stopPods(ctx context.Context, endpoint string, grace time.Duration, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, grace+time.Second)
	defer cancel()
	client, err := cri.Dial(ctx, endpoint, cri.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	state := pod.ContainerRunning
	containers, err := client.ListContainers(ctx, cri.Filter{State: &state})
	if err != nil {
		return err
	}
	log.Info("stopping pods", "containers", len(containers))
	var group errgroup.Group
	group.SetLimit(stopsAtOnce)
	for _, c := range containers {
		group.Go(func() error { return client.StopContainer(ctx, c.ID, grace) })
	}
	return group.Wait()
}
