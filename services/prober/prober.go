// Package prober is the service that probes the containers of pods: HTTP, TCP, gRPC and commands, for startup, liveness
// and readiness. It alone writes the bucket "probes"; it reads "pods" and "status", and runs commands over CRI. What
// follows from a verdict is syncd's to decide.
//
// It may be killed at any moment: its next process takes the verdicts over from its records, so that nothing flips. While
// the bus is away it goes on with what it knows.
package prober

import (
	"context"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/shard"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/prober/internal/api"
	"github.com/podplane/podplane/services/prober/internal/feed"
	"github.com/podplane/podplane/services/prober/internal/manager"
	"github.com/podplane/podplane/services/prober/internal/priority"
	"github.com/podplane/podplane/services/prober/internal/probe"
)

// Config is prober's configuration.
type Config struct {
	daemon.Config
	Nice int `json:"nice" usage:"niceness of the process: below 0 it goes before what loads the processors, so that probes are made in time"`
}

// DefaultConfig gives the defaults.
func DefaultConfig() Config { return Config{Config: daemon.DefaultConfig(), Nice: -10} }

// Validate checks the configuration.
func (c *Config) Validate(path *field.Path) field.ErrorList {
	list := c.Config.Validate(path)
	if c.Nice < -20 || c.Nice > 19 {
		list = append(list, field.Invalid(path.Child("nice"), c.Nice, "must be between -20 and 19"))
	}
	return list
}

// Service describes prober to those who run services.
func Service() daemon.Service[Config] {
	return daemon.Service[Config]{
		Name:     bus.ServiceProber,
		Short:    "Probe the containers of pods",
		Defaults: DefaultConfig,
		Run:      Run,
	}
}

// Command is the command that runs prober.
func Command() *cobra.Command { return daemon.Command(Service()) }

// Run probes until ctx ends.
func Run(ctx context.Context, cfg Config, deps daemon.Deps) error {
	if err := priority.Set(cfg.Nice); err != nil {
		deps.Log.Info("probes may be late while the processors are busy", "error", err)
	}
	observer, err := cri.NewMetrics(deps.Registry)
	if err != nil {
		return err
	}
	runtime, err := cri.Dial(ctx, cfg.CRIEndpoint, cri.Options{Node: deps.Node, Observer: observer}) // its calls are not logged: probes are many, and have no trace
	if err != nil {
		return err
	}
	defer runtime.Close()
	return run(ctx, runtime, deps)
}

// run is Run with a runtime.
func run(ctx context.Context, runtime cri.Execer, deps daemon.Deps) error {
	probes, err := bus.Open(ctx, deps.Bus, bus.Probes)
	if err != nil {
		return err
	}
	metrics := manager.NewMetrics()
	deps.Registry.MustRegister(metrics)
	writer := bus.NewWriter(probes, bus.WriterOptions[*podplanev1.ProbeRecord]{Fences: bus.NewFences(probes, feed.ShardOf)})
	worker := &feed.Shards{Node: deps.Node, Bucket: probes, Writer: writer}
	keeper := shard.New(shard.Config{
		Bus: deps.Bus, Worker: worker, Records: []shard.Records{writer}, Shown: deps.SetShards, Log: deps.Log,
	})
	m := manager.New(manager.Config{
		Node: deps.Node, Prober: probe.New(runtime), Writer: writer, Events: deps.Events, Log: deps.Log, Metrics: metrics,
		ShardOf: shard.Of, Holds: keeper.Holds,
	})
	worker.Manager = m
	deps.Go("records", writer.Run)
	deps.Go("probes", m.Run)
	podplanev1.RegisterProbeServiceServer(deps.GRPC, api.New(feed.Verdicts{Shards: worker, Holds: keeper.Holds}))
	deps.AddCheck("leases", keeper.Check)
	deps.AddCheck("probes", func(context.Context) error {
		if !m.IsSynced() {
			return fault.New(fault.Unavailable, "pods have not been read yet")
		}
		return nil
	})
	deps.Serve()
	pods, err := bus.Open(ctx, deps.Bus, bus.Pods)
	if err != nil {
		return err
	}
	status, err := bus.Open(ctx, deps.Bus, bus.Status)
	if err != nil {
		return err
	}
	here := bus.NodePattern(deps.Node)
	worker.Pods, worker.Status = bus.NewWatched(pods, here), bus.NewWatched(status, here)
	deps.Go("pods", func(ctx context.Context) error { return feed.Pods(ctx, worker.Pods, m, deps.Log) })
	deps.Go("status", func(ctx context.Context) error { return feed.Status(ctx, worker.Status, m, deps.Log) })
	deps.Go("leases", keeper.Run)
	<-ctx.Done()
	return nil
}
