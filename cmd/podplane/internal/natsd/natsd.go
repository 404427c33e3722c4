// Package natsd is `podplane nats`: the bus of a host that has none.
//
// It runs nats-server with JetStream in a process of its own, so that the
// services outlive it and it outlives them. Its records are on disk before
// they are acknowledged.
package natsd

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/pki"
	"github.com/podplane/podplane/internal/telemetry"
)

// stopTimeout bounds the orderly stop.
const stopTimeout = 5 * time.Second

// gcPercent trades some CPU time for memory: the server's heap is small and
// lives long.
const gcPercent = 50

type options struct {
	listen, store, keys, node string
	key, tls                  string
	logLevel, logFormat       string
}

// Command is `podplane nats`.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "nats",
		Short: "Run the bus: nats-server with JetStream on disk",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			log, err := telemetry.NewLogger(cmd.ErrOrStderr(), telemetry.Identity{Service: "nats"}, o.logLevel, o.logFormat)
			if err != nil {
				return err
			}
			return run(ctx, o, log)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", "127.0.0.1:4222", "loopback host:port to listen on")
	f.StringVar(&o.store, "store-dir", "/var/lib/podplane/nats", "where the streams are kept")
	f.StringVar(&o.keys, "keys-dir", "", "where the services' keys are kept, made where missing; empty: no authentication")
	f.StringVar(&o.key, "encryption-key", "", "file with the key by which the streams are encrypted, made where missing; empty: beside --store-dir, with .key; none: not encrypted")
	f.StringVar(&o.tls, "tls-dir", "", "directory of certificates (podplane certs): talk TLS, and with Podplane's processes only")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", telemetry.FormatText, "text or json")
	f.StringVar(&o.node, "node", "", "let services write the records of this node only; empty: of every node")
	return cmd
}

// keyFile is the file with the key of the streams; empty: they are in the clear.
func (o options) keyFile() string {
	switch o.key {
	case "none":
		return ""
	case "":
		return filepath.Clean(o.store) + ".key"
	}
	return o.key
}

func run(ctx context.Context, o options, log *slog.Logger) error {
	host, portText, err := net.SplitHostPort(o.listen)
	if err != nil {
		return fmt.Errorf("--listen %q: want host:port: %w", o.listen, err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return fmt.Errorf("--listen %q: port: %w", o.listen, err)
	}
	debug.SetGCPercent(gcPercent)
	opts := embedded.Options{StoreDir: filepath.Clean(o.store), Host: host, Port: port, KeyFile: o.keyFile(), Name: "podplane-" + o.node, Logger: log}
	if o.tls != "" {
		process, err := pki.Load(o.tls, pki.Bus, func(err error) { log.Error("changed certificates can't be used", "error", err) })
		if err != nil {
			return err
		}
		opts.TLS = process.Server()
	}
	if o.keys != "" {
		if opts.Users, err = embedded.ServiceUsers(o.keys, o.node); err != nil {
			return fmt.Errorf("read the services' keys: %w", err)
		}
	}
	s, err := embedded.Start(ctx, opts)
	if err != nil {
		return err
	}
	log.Info("bus is ready", "url", s.ClientURL(), "store", opts.StoreDir)
	o.serve(ctx, s, log)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	return s.Shutdown(ctx)
}

// serve waits for the end, and takes new keys of the services at each SIGHUP (podplane keys rotate).
func (o options) serve(ctx context.Context, s *embedded.Server, log *slog.Logger) {
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	defer signal.Stop(again)
	for {
		select {
		case <-ctx.Done():
			return
		case <-again:
		}
		if o.keys == "" {
			continue
		}
		users, err := embedded.ServiceUsers(o.keys, o.node)
		if err == nil {
			err = s.SetUsers(users)
		}
		if err != nil {
			log.Error("the services' keys were not taken; those before stay", "error", err)
			continue
		}
		log.Info("the services' keys were read again")
	}
}
