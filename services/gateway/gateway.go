// Package gateway is Podplane's front door: Kubernetes' REST paths and Podplane's own, served from the other services' gRPC.
//
// It owns nothing and keeps nothing: any number of replicas may run, and each may be killed at any time. A service that is down makes its
// own paths answer 503 with its name; the others go on.
package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/daemon"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/gateway/internal/front"
	"github.com/podplane/podplane/services/gateway/internal/registry"
)

const (
	headerTimeout  = 10 * time.Second
	idleTimeout    = 90 * time.Second
	maxHeaderBytes = 64 << 10
)

// Service describes the gateway to the daemon shell.
func Service() daemon.Service[Config] {
	return daemon.Service[Config]{
		Name: bus.ServiceGateway, Short: "Serve the REST API from the other services' gRPC", Defaults: DefaultConfig, Run: Run,
	}
}

// Command makes the command that runs the gateway.
func Command() *cobra.Command { return daemon.Command(Service()) }

// Run serves until ctx ends.
func Run(ctx context.Context, cfg Config, deps daemon.Deps) error {
	lis, secure, err := listen(&cfg, deps.Log)
	if err != nil {
		return err
	}
	defer func() { _ = lis.Close() }() // the server has closed it, if it got that far
	bucket, err := bus.Open(ctx, deps.Bus, bus.Services)
	if err != nil {
		return fmt.Errorf("open the registrations: %w", err)
	}
	services := registry.New(bucket)
	podplanev1.RegisterServiceServiceServer(deps.GRPC, services)
	deps.HandleOps("GET /scrape-targets", services.Targets())
	conns, err := dial(ctx, deps, services)
	defer conns.close()
	if err != nil {
		return err
	}
	guard, err := guard(&cfg, deps)
	if err != nil {
		return err
	}
	if guard.Audit != nil {
		defer func() { _ = guard.Audit.Close() }() // every line is written already
	}
	handler, err := front.New(ctx, front.Options{
		Conn: conns.get, Services: services, Ops: deps.Ops, Log: deps.Log, Registry: deps.Registry, Version: deps.Version, LocalOnly: !cfg.authenticates(),
		Guard: guard,
	})
	if err != nil {
		return err
	}
	srv := &http.Server{
		Handler: handler, TLSConfig: secure, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(deps.Log.Handler(), slog.LevelDebug),
	}
	deps.Go("registry", func(ctx context.Context) error { return services.Run(ctx, deps.Bus) })
	deps.Go("front door", func(ctx context.Context) error { return daemon.ServeHTTP(ctx, srv, lis, cfg.ShutdownTimeout/2) })
	deps.Log.Info("front door open", "address", lis.Addr().String(), "tls", secure != nil, "authentication", guard.Access != nil, "audit.log", cfg.auditFile())
	deps.Serve()
	<-ctx.Done()
	return nil
}
