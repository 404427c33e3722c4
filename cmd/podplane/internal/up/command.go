package up

import (
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Commands are `podplane up` and `podplane down`.
func Commands() []*cobra.Command {
	return []*cobra.Command{upCommand(), downCommand()}
}

func upCommand() *cobra.Command {
	cfg := Default()
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run Podplane on this host: runtime, bus and the six services",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			if err := cfg.recall(cmd.Flags().Changed); err != nil {
				return err
			}
			return Run(ctx, cfg, cmd.OutOrStdout())
		},
	}
	hostFlags(cmd, &cfg)
	f := cmd.Flags()
	f.StringVar(&cfg.Listen, "listen", cfg.Listen, "host:port of the REST API, port 0: a free one; addresses that other hosts reach need TLS and authentication")
	f.StringVar(&cfg.Door.TLSCert, "tls-cert", cfg.Door.TLSCert, "certificate of the REST API; empty: plain HTTP")
	f.StringVar(&cfg.Door.TLSKey, "tls-key", cfg.Door.TLSKey, "its key")
	f.StringVar(&cfg.Door.Tokens, "tokens", cfg.Door.Tokens, "file of bearer tokens (podplane token): users have to be known")
	f.StringVar(&cfg.Door.ClientCA, "client-ca", cfg.Door.ClientCA, "CA of users' certificates (podplane certs client): users have to be known")
	f.StringVar(&cfg.Door.Bindings, "bindings", cfg.Door.Bindings, "file that says which user has which role where")
	f.StringVar(&cfg.NATSListen, "nats-listen", cfg.NATSListen, "loopback host:port of our own bus; port 0: a free one")
	f.StringToIntVar(&cfg.Replicas, "replicas", cfg.Replicas, "run more than one process of a service, which divide its pods among them, as in syncd=2,prober=3")
	f.StringVar(&cfg.ManifestDir, "manifest-dir", cfg.ManifestDir, "run the pods of this directory's manifests; empty: none")
	f.StringVar(&cfg.ManifestURL, "manifest-url", cfg.ManifestURL, "run the pods that this URL (http or https) answers with, a Pod or a PodList; empty: none")
	f.StringArrayVar(&cfg.ManifestURLHeader, "manifest-url-header", cfg.ManifestURLHeader, "header of the requests to --manifest-url, as in 'Name: value' (secrets: environment PODPLANE_SYNCD_MANIFEST_URL_HEADER)")
	return cmd
}

func downCommand() *cobra.Command {
	cfg := Default()
	var pods bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop Podplane; pods go on running unless --pods is given",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			if err := cfg.recall(cmd.Flags().Changed); err != nil {
				return err
			}
			return Down(ctx, cfg, pods, cmd.OutOrStdout())
		},
	}
	hostFlags(cmd, &cfg)
	cmd.Flags().BoolVar(&pods, "pods", false, "remove every pod, and the runtime if it is our own")
	return cmd
}

// hostFlags are what up and down have to agree on.
func hostFlags(cmd *cobra.Command, cfg *Config) {
	cmd.SilenceUsage = true
	f := cmd.Flags()
	f.StringVar(&cfg.Node, "node", cfg.Node, "this node's name")
	f.StringVar(&cfg.Root, "root", cfg.Root, "directory of what outlives a restart")
	f.StringVar(&cfg.RunDir, "run-dir", cfg.RunDir, "directory of sockets, keys and process ids")
	f.StringVar(&cfg.NATSURL, "nats-url", cfg.NATSURL, "use this bus (environment: NATS_URL); empty: one of our own")
	f.StringVar(&cfg.NATSKeysDir, "nats-keys-dir", cfg.NATSKeysDir, "the services' keys for the bus of --nats-url (podplane nats keys); empty: it asks for none")
	f.IntVar(&cfg.BusReplicas, "bus-replicas", cfg.BusReplicas, "copies that the servers of --nats-url keep of what is stored: 3 for a cluster of three")
	f.StringVar(&cfg.Address, "address", cfg.Address, "this host's IP address, by which other nodes on the same bus reach the services; needs --tls-dir; empty: they don't")
	f.StringVar(&cfg.TLSDir, "tls-dir", cfg.TLSDir, "certificates (podplane certs) by which the services and the bus talk TLS (environment: PODPLANE_TLS_DIR); empty: plain, on loopback")
	f.StringVar(&cfg.EncryptionKey, "encryption-key", cfg.EncryptionKey, "file with the key of the records on our own bus, made where missing (environment: PODPLANE_ENCRYPTION_KEY); empty: nats.key below --root; none: not encrypted")
	f.StringVar(&cfg.CRIEndpoint, "cri-endpoint", cfg.CRIEndpoint, "use this runtime, unix:///path (environment: CRI_ENDPOINT); empty: one of our own")
	f.StringVar(&cfg.PodLogDir, "pod-log-dir", cfg.PodLogDir, "directory of the containers' logs")
	f.StringVar(&cfg.CgroupRoot, "cgroup-root", cfg.CgroupRoot, "cgroup below which pods run")
	f.StringVar(&cfg.LogLevel, "log-level", cfg.LogLevel, "debug, info, warn or error")
	f.StringVar(&cfg.LogFormat, "log-format", cfg.LogFormat, "text or json")
}
