package pleg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/shard"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/pleg/internal/api"
	"github.com/podplane/podplane/services/pleg/internal/health"
	"github.com/podplane/podplane/services/pleg/internal/journal"
	"github.com/podplane/podplane/services/pleg/internal/relist"
)

// Config is pleg's configuration.
type Config struct {
	daemon.Config
	RelistPeriod         time.Duration `json:"relistPeriod" usage:"time between relists beside a working event stream"`
	RelistFallbackPeriod time.Duration `json:"relistFallbackPeriod" usage:"time between relists without an event stream"`
	RuntimeHealthTimeout time.Duration `json:"runtimeHealthTimeout" usage:"how long the runtime may leave everything unanswered before it is not ready"`
	JournalMaxAge        time.Duration `json:"journalMaxAge" usage:"how long lifecycle events are kept"`
	JournalMaxBytes      int64         `json:"journalMaxBytes" usage:"how many bytes of lifecycle events are kept"`
}

// DefaultConfig gives the configuration where nothing is set.
func DefaultConfig() Config {
	return Config{
		Config: daemon.DefaultConfig(), RelistPeriod: time.Minute, RelistFallbackPeriod: time.Second,
		RuntimeHealthTimeout: 3 * time.Minute, JournalMaxAge: 24 * time.Hour, JournalMaxBytes: 64 << 20,
	}
}

// Validate checks the configuration.
func (c *Config) Validate(path *field.Path) field.ErrorList {
	list := c.Config.Validate(path)
	for _, d := range []struct {
		name  string
		value time.Duration
		least time.Duration
	}{
		{"relistPeriod", c.RelistPeriod, time.Second},
		{"relistFallbackPeriod", c.RelistFallbackPeriod, 100 * time.Millisecond},
		{"runtimeHealthTimeout", c.RuntimeHealthTimeout, time.Second},
		{"journalMaxAge", c.JournalMaxAge, time.Hour},
	} {
		if d.value < d.least {
			list = append(list, field.Invalid(path.Child(d.name), d.value.String(), "must be at least "+d.least.String()))
		}
	}
	if c.JournalMaxBytes < 1<<20 {
		list = append(list, field.Invalid(path.Child("journalMaxBytes"), c.JournalMaxBytes, "must be at least 1048576"))
	}
	return list
}

// ConfigureBus bounds the journal as configured.
func (c *Config) ConfigureBus(b *bus.Config) {
	b.StreamLimits = map[string]bus.StreamLimits{bus.StreamLifecycle: {MaxAge: c.JournalMaxAge, MaxBytes: c.JournalMaxBytes}}
}

// Command makes the command that runs pleg.
func Command() *cobra.Command {
	return daemon.Command(daemon.Service[Config]{
		Name: bus.ServicePleg, Short: "Publish what happens to containers, and the runtime's health", Defaults: DefaultConfig, Run: Run,
	})
}

// Run watches the runtime until ctx ends.
func Run(ctx context.Context, cfg Config, deps daemon.Deps) error {
	metrics, err := cri.NewMetrics(deps.Registry)
	if err != nil {
		return err
	}
	runtime, err := cri.Dial(ctx, cfg.CRIEndpoint, cri.Options{Node: deps.Node, Observer: metrics, Log: deps.Log})
	if err != nil {
		return err
	}
	defer func() { _ = runtime.Close() }()
	return run(ctx, cfg, deps, runtime)
}

// Runtime is what pleg needs of a container runtime.
type Runtime interface {
	relist.Runtime
	health.Runtime
}

func run(ctx context.Context, cfg Config, deps daemon.Deps, runtime Runtime) error {
	var open atomic.Pointer[bus.Stream]
	podplanev1.RegisterLifecycleServiceServer(deps.GRPC, api.NewLifecycle(func() api.Reader {
		if s := open.Load(); s != nil {
			return s
		}
		return nil
	}, deps.Log))
	conditions, err := openConditions(ctx, deps)
	if err != nil {
		return err
	}
	leader := shard.NewLeader()
	keeper := shard.New(shard.Config{
		Bus: deps.Bus, Shards: 1, Worker: leader, Records: []shard.Records{conditions.writer}, Shown: deps.SetShards, Log: deps.Log,
	})
	deps.AddCheck("leases", keeper.Check)
	deps.Go("conditions", conditions.writer.Run)
	deps.Go("leases", keeper.Run)
	stream, err := bus.OpenStream(ctx, deps.Bus, bus.Lifecycle)
	if err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	open.Store(stream)
	deps.Serve()
	if leader.Wait(ctx) != nil {
		return nil // a spare until the end
	}
	deps.Go("lead", leader.Hold)
	checker := startHealth(ctx, cfg, deps, runtime, conditions)
	published, err := load(ctx, cfg, deps, stream)
	if err != nil {
		return err
	}
	publisher := journal.NewPublisher(stream, journal.Options{Node: deps.Node, Log: deps.Log, Registry: deps.Registry})
	deps.Go("publisher", publisher.Run)
	loop := relist.New(runtime, publisher, published.Pods, published.Horizon, relist.Options{
		Period: cfg.RelistPeriod, FallbackPeriod: cfg.RelistFallbackPeriod, Log: deps.Log, Registry: deps.Registry,
		OnStream: checker.StreamChanged, OnAnswer: checker.Answered, OnStuck: func(stuck []relist.Stuck) { checker.SetNote(note(stuck)) },
	})
	deps.Go("relist", loop.Run)
	<-ctx.Done()
	return nil
}

// load reads the journal, over interruptions of the bus.
func load(ctx context.Context, cfg Config, deps daemon.Deps, stream *bus.Stream) (journal.Record, error) {
	for {
		r, err := journal.Load(ctx, stream, deps.Node, cfg.JournalMaxAge, time.Now(), deps.Log)
		if err == nil || !fault.KindOf(err).Retryable() {
			return r, err
		}
		deps.Log.WarnContext(ctx, "the journal can't be read yet", "error", err)
		timer := time.NewTimer(time.Second)
		select {
		case <-ctx.Done():
			timer.Stop()
			return r, errors.Join(ctx.Err(), err)
		case <-timer.C:
		}
	}
}

// conditions are the bucket of the node's conditions, and who writes it.
type conditions struct {
	bucket *bus.Bucket[*podplanev1.ConditionRecord]
	writer *bus.Writer[*podplanev1.ConditionRecord]
}

func openConditions(ctx context.Context, deps daemon.Deps) (conditions, error) {
	bucket, err := bus.Open(ctx, deps.Bus, bus.Conditions)
	if err != nil {
		return conditions{}, fmt.Errorf("open the conditions: %w", err)
	}
	return conditions{bucket, bus.NewWriter(bucket, bus.WriterOptions[*podplanev1.ConditionRecord]{
		Fences: bus.NewFences(bucket, func(string) int { return 0 }),
		OnError: func(key string, err error, retry bool) {
			deps.Log.Warn("can't store a condition", "key", key, "retry", retry, "error", err)
		},
	})}, nil
}

// startHealth starts the checker of the runtime, which goes on from the conditions that are stored.
func startHealth(ctx context.Context, cfg Config, deps daemon.Deps, runtime health.Runtime, c conditions) *health.Checker {
	previous := make(map[string]*podplanev1.ConditionRecord)
	for _, t := range []string{bus.ConditionRuntimeReady, bus.ConditionNetworkReady} {
		// Without the old record the condition's transition counts from now on: no reason to wait.
		if e, err := c.bucket.Get(ctx, bus.ConditionKey(deps.Node, t)); err == nil {
			previous[t] = e.Value
		}
	}
	checker := health.New(runtime, c.writer, health.Options{Node: deps.Node, Timeout: cfg.RuntimeHealthTimeout, Previous: previous, Log: deps.Log})
	deps.Go("health", checker.Run)
	return checker
}

// note names the pods for which the runtime does not answer, the oldest first.
func note(stuck []relist.Stuck) string {
	if len(stuck) == 0 {
		return ""
	}
	const most = 5
	names := make([]string, 0, most+1)
	for i, s := range stuck {
		if i == most {
			names = append(names, fmt.Sprintf("and %d more", len(stuck)-most))
			break
		}
		names = append(names, fmt.Sprintf("%s/%s (%s) since %s", s.Pod.Namespace, s.Pod.Name, s.Pod.UID, s.Since.UTC().Format(time.RFC3339)))
	}
	return "the runtime does not answer for " + strings.Join(names, ", ")
}
