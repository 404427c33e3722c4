// Package natsd is `podplane nats`: the bus of a host that has none.
//
// It runs nats-server with JetStream in a process of its own, so that the
// services outlive it and it outlives them. Its records are on disk before
// they are acknowledged.
package natsd

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/fault"
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
	key, tls, name            string
	logLevel, logFormat       string
	clusterListen, cluster    string
	routes, nodes             []string
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
	f.StringVar(&o.listen, "listen", "127.0.0.1:4222", "host:port to listen on; one that other hosts reach needs --tls-dir and --keys-dir")
	f.StringVar(&o.store, "store-dir", "/var/lib/podplane/nats", "where the streams are kept")
	f.StringVar(&o.keys, "keys-dir", "", "where the services' keys are kept, made where missing; empty: no authentication")
	f.StringVar(&o.key, "encryption-key", "", "file with the key by which the streams are encrypted, made where missing; empty: beside --store-dir, with .key; none: not encrypted")
	f.StringVar(&o.tls, "tls-dir", "", "directory of certificates (podplane certs): talk TLS, and with Podplane's processes only")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", telemetry.FormatText, "text or json")
	f.StringVar(&o.node, "node", "", "let services write the records of this node only; empty: of every node")
	f.StringSliceVar(&o.nodes, "nodes", nil, "the nodes that share this bus, each with keys of its own in a directory of its name below --keys-dir (podplane nats keys)")
	f.StringVar(&o.name, "name", "", "this server's name in its cluster, unique and always the same; default: podplane- and the host's name")
	f.StringVar(&o.clusterListen, "cluster-listen", "", "host:port on which the other servers of a cluster connect; one that other hosts reach needs --tls-dir; empty: this server is alone")
	f.StringVar(&o.cluster, "cluster-name", "podplane", "the cluster's name, the same on all its servers")
	f.StringSliceVar(&o.routes, "routes", nil, "host:port of the other servers' --cluster-listen")
	cmd.MarkFlagsMutuallyExclusive("node", "nodes")
	cmd.AddCommand(keysCommand())
	return cmd
}

// keysCommand is `podplane nats keys`.
func keysCommand() *cobra.Command {
	var dir string
	var nodes []string
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Make the keys by which the services of several nodes use one bus, where they are missing",
		Long: "Make the keys by which the services of several nodes use one bus, where they are missing.\n\n" +
			"Each node's are in a directory of its name, for its --nats-keys-dir; the servers need all of them, for their --keys-dir.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := embedded.NodeUsers(dir, nodes)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "keys-dir", "", "where the keys are kept")
	cmd.Flags().StringSliceVar(&nodes, "nodes", nil, "the nodes' names")
	for _, f := range []string{"keys-dir", "nodes"} {
		_ = cmd.MarkFlagRequired(f) // it is there
	}
	return cmd
}

// clusterOptions are those of a server that is not alone.
func (o options) clusterOptions(process *pki.Process) (*embedded.Cluster, error) {
	if o.clusterListen == "" {
		if len(o.routes) > 0 {
			return nil, fault.New(fault.Invalid, "--routes needs --cluster-listen: the other servers have to find this one too")
		}
		return nil, nil
	}
	host, port, err := hostPort("--cluster-listen", o.clusterListen)
	if err != nil {
		return nil, err
	}
	c := &embedded.Cluster{Name: o.cluster, Host: host, Port: port, Routes: o.routes}
	if process != nil {
		c.TLS = process.Among(pki.Bus)
	}
	return c, nil
}

func hostPort(flag, address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err == nil {
		port, err = strconv.Atoi(text)
	}
	if err != nil {
		return "", 0, fmt.Errorf("%s %q: want host:port: %w", flag, address, err)
	}
	return host, port, nil
}

// serverName is the name in the cluster.
func (o options) serverName() (string, error) {
	if o.name != "" || o.clusterListen == "" {
		return cmp.Or(o.name, "podplane-"+o.node), nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find the host's name (name the server with --name): %w", err)
	}
	return "podplane-" + strings.ToLower(host), nil
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
	host, port, err := hostPort("--listen", o.listen)
	if err != nil {
		return err
	}
	debug.SetGCPercent(gcPercent)
	name, err := o.serverName()
	if err != nil {
		return err
	}
	opts := embedded.Options{StoreDir: filepath.Clean(o.store), Host: host, Port: port, KeyFile: o.keyFile(), Name: name, Logger: log}
	var process *pki.Process
	if o.tls != "" {
		if process, err = pki.Load(o.tls, pki.Bus, func(err error) { log.Error("changed certificates can't be used", "error", err) }); err != nil {
			return err
		}
		opts.TLS = process.Server()
	}
	if opts.Cluster, err = o.clusterOptions(process); err != nil {
		return err
	}
	if opts.Users, err = o.users(); err != nil {
		return fmt.Errorf("read the services' keys: %w", err)
	}
	s, err := embedded.Start(ctx, opts)
	if err != nil {
		return err
	}
	log.Info("bus is ready", "url", s.ClientURL(), "store", opts.StoreDir, "cluster", s.ClusterAddress())
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
		users, err := o.users()
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

func (o options) users() ([]embedded.User, error) {
	switch {
	case len(o.nodes) > 0 && o.keys == "":
		return nil, fault.New(fault.Invalid, "--nodes needs --keys-dir")
	case len(o.nodes) > 0:
		return embedded.NodeUsers(o.keys, o.nodes)
	case o.keys != "":
		return embedded.ServiceUsers(o.keys, o.node)
	}
	return nil, nil
}
