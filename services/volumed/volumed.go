// Package volumed is the service that sets the volumes of pods up before their containers run, keeps their content up
// to date while they do, and takes them down after. It alone writes the bucket "volumes"; it reads "pods", "status"
// and "objects".
//
// It may be killed at any moment: what it has set up stays, and its next process finds it in the mount table, on disk
// and in its own records.
package volumed

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/shard"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/volumed/internal/api"
	"github.com/podplane/podplane/services/volumed/internal/controller"
	"github.com/podplane/podplane/services/volumed/internal/feed"
	"github.com/podplane/podplane/services/volumed/internal/plugin"
)

// Config is volumed's configuration.
type Config struct {
	daemon.Config
}

// DefaultConfig gives the defaults.
func DefaultConfig() Config { return Config{Config: daemon.DefaultConfig()} }

// Service describes volumed to those who run services.
func Service() daemon.Service[Config] {
	return daemon.Service[Config]{
		Name:     bus.ServiceVolumed,
		Short:    "Set up the volumes of pods",
		Defaults: DefaultConfig,
		Run:      Run,
	}
}

// Command is the command that runs volumed.
func Command() *cobra.Command { return daemon.Command(Service()) }

// Run sets volumes up until ctx ends.
func Run(ctx context.Context, cfg Config, deps daemon.Deps) error {
	bootID, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return fmt.Errorf("read the boot's id: %w", err)
	}
	volumes, err := bus.Open(ctx, deps.Bus, bus.Volumes)
	if err != nil {
		return err
	}
	// What is reached through the reader is opened below, before anything is read.
	objects := &feed.ObjectReader{}
	disk, err := plugin.New(cfg.Root, objects)
	if err != nil {
		return err
	}
	metrics := controller.NewMetrics()
	deps.Registry.MustRegister(metrics)
	writer := bus.NewWriter(volumes, bus.WriterOptions[*podplanev1.VolumesRecord]{Fences: bus.NewFences(volumes, feed.ShardOf)})
	worker := &feed.Shards{Node: deps.Node, Bucket: volumes, Writer: writer}
	keeper := shard.New(shard.Config{
		Bus: deps.Bus, Worker: worker, Records: []shard.Records{writer}, Shown: deps.SetShards, Log: deps.Log,
	})
	c := controller.New(controller.Config{
		Node: deps.Node, BootID: strings.TrimSpace(string(bootID)), Disk: disk, Writer: writer, Events: deps.Events, Log: deps.Log, Metrics: metrics,
		ShardOf: shard.Of, Holds: keeper.Holds,
	})
	worker.Controller = c
	deps.Go("records", writer.Run)
	deps.Go("controller", c.Run)
	podplanev1.RegisterVolumeServiceServer(deps.GRPC, api.New(feed.Volumes{Shards: worker, Holds: keeper.Holds}))
	deps.AddCheck("leases", keeper.Check)
	deps.AddCheck("volumes", func(context.Context) error {
		if !c.IsSynced() {
			return fault.New(fault.Unavailable, "pods and their statuses have not been read yet")
		}
		return nil
	})
	deps.Serve()
	return watch(ctx, deps, worker, func(b *bus.Bucket[*podplanev1.ObjectRecord]) { objects.Bucket = b }, keeper)
}

// watch opens what others own, as soon as it exists, and follows it until ctx ends.
func watch(ctx context.Context, deps daemon.Deps, worker *feed.Shards, use func(*bus.Bucket[*podplanev1.ObjectRecord]), keeper *shard.Keeper) error {
	pods, err := bus.Open(ctx, deps.Bus, bus.Pods)
	if err != nil {
		return err
	}
	status, err := bus.Open(ctx, deps.Bus, bus.Status)
	if err != nil {
		return err
	}
	objects, err := bus.Open(ctx, deps.Bus, bus.Objects)
	if err != nil {
		return err
	}
	use(objects)
	c, here := worker.Controller, bus.NodePattern(deps.Node)
	worker.Pods, worker.Status = bus.NewWatched(pods, here), bus.NewWatched(status, here)
	deps.Go("objects", func(ctx context.Context) error { return feed.Objects(ctx, objects, c) })
	deps.Go("status", func(ctx context.Context) error { return feed.Status(ctx, worker.Status, c) })
	deps.Go("pods", func(ctx context.Context) error { return feed.Pods(ctx, worker.Pods, c, deps.Log) })
	deps.Go("leases", keeper.Run)
	<-ctx.Done()
	return nil
}
