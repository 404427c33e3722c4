package evictd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/internal/events"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/shard"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/evictd/internal/api"
	"github.com/podplane/podplane/services/evictd/internal/feed"
	"github.com/podplane/podplane/services/evictd/internal/images"
	"github.com/podplane/podplane/services/evictd/internal/manager"
	"github.com/podplane/podplane/services/evictd/internal/policy"
	"github.com/podplane/podplane/services/evictd/internal/signals"
	"github.com/podplane/podplane/services/evictd/internal/stats"
)

// Config is evictd's configuration.
type Config struct {
	daemon.Config
	EvictionHard               string        `json:"evictionHard" usage:"hard thresholds, as memory.available<100Mi,nodefs.available<10%; empty for none"`
	EvictionPressureTransition time.Duration `json:"evictionPressureTransitionPeriod" usage:"how long a condition stays after its last crossed threshold"`
	PodLogDir                  string        `json:"podLogDir" usage:"directory of pods' logs"`
	ImageGCHigh                int           `json:"imageGCHighThresholdPercent" usage:"disk usage in percent at which unused images are removed; 100 for never"`
	ImageGCLow                 int           `json:"imageGCLowThresholdPercent" usage:"disk usage in percent down to which unused images are removed"`
	ImageMinAge                time.Duration `json:"imageMinimumGCAge" usage:"how long an unused image stays at least"`
	ImageMaxAge                time.Duration `json:"imageMaximumGCAge" usage:"how long an unused image stays at most, also where there is room; 0 for as long as there is"`
	ImageGCPeriod              time.Duration `json:"imageGCPeriod" usage:"time between looks at images"`
	ProcRoot                   string        `json:"procRoot" usage:"where procfs of the host is"`
	CgroupRoot                 string        `json:"cgroupRoot" usage:"where the cgroup hierarchies of the host are"`
}

// DefaultConfig gives the configuration where nothing is set.
func DefaultConfig() Config {
	return Config{
		Config: daemon.DefaultConfig(), EvictionHard: policy.DefaultHard, EvictionPressureTransition: 5 * time.Minute,
		PodLogDir: "/var/log/pods", ImageGCHigh: 85, ImageGCLow: 80, ImageMinAge: 2 * time.Minute, ImageGCPeriod: 5 * time.Minute,
		ProcRoot: "/proc", CgroupRoot: "/sys/fs/cgroup",
	}
}

// Validate checks the configuration.
func (c *Config) Validate(path *field.Path) field.ErrorList {
	list := c.Config.Validate(path)
	if _, err := policy.ParseThresholds(c.EvictionHard); err != nil {
		list = append(list, field.Invalid(path.Child("evictionHard"), c.EvictionHard, err.Error()))
	}
	if c.EvictionPressureTransition < 0 {
		list = append(list, field.Invalid(path.Child("evictionPressureTransitionPeriod"), c.EvictionPressureTransition.String(), "must not be negative"))
	}
	if c.ImageGCHigh < 0 || c.ImageGCHigh > 100 {
		list = append(list, field.Invalid(path.Child("imageGCHighThresholdPercent"), c.ImageGCHigh, "must be from 0 to 100"))
	}
	if c.ImageGCLow < 0 || c.ImageGCLow > c.ImageGCHigh {
		list = append(list, field.Invalid(path.Child("imageGCLowThresholdPercent"), c.ImageGCLow, "must be from 0 to imageGCHighThresholdPercent"))
	}
	if c.ImageMinAge < 0 {
		list = append(list, field.Invalid(path.Child("imageMinimumGCAge"), c.ImageMinAge.String(), "must not be negative"))
	}
	if c.ImageMaxAge != 0 && c.ImageMaxAge <= c.ImageMinAge {
		list = append(list, field.Invalid(path.Child("imageMaximumGCAge"), c.ImageMaxAge.String(), "must be more than imageMinimumGCAge, or 0"))
	}
	if c.ImageGCPeriod < time.Second {
		list = append(list, field.Invalid(path.Child("imageGCPeriod"), c.ImageGCPeriod.String(), "must be at least 1s"))
	}
	for name, dir := range map[string]string{"podLogDir": c.PodLogDir, "procRoot": c.ProcRoot, "cgroupRoot": c.CgroupRoot} {
		if !filepath.IsAbs(dir) {
			list = append(list, field.Invalid(path.Child(name), dir, "must be an absolute path"))
		}
	}
	return list
}

// Command makes the command that runs evictd.
func Command() *cobra.Command {
	return daemon.Command(daemon.Service[Config]{
		Name: bus.ServiceEvictd, Short: "Watch the node's resources and relieve their pressure", Defaults: DefaultConfig, Run: Run,
	})
}

// Runtime is what evictd needs of a container runtime.
type Runtime interface {
	stats.Source
	images.Runtime
}

// runtimes are two views of one runtime: our pods, and everybody's containers (an image that others use is in use).
type runtimes struct {
	stats.Source
	images.Runtime
}

// Run watches the node until ctx ends.
func Run(ctx context.Context, cfg Config, deps daemon.Deps) error {
	metrics, err := cri.NewMetrics(deps.Registry)
	if err != nil {
		return err
	}
	own, err := cri.Dial(ctx, cfg.CRIEndpoint, cri.Options{Node: deps.Node, Observer: metrics, Log: deps.Log})
	if err != nil {
		return err
	}
	defer func() { _ = own.Close() }()
	all, err := cri.Dial(ctx, cfg.CRIEndpoint, cri.Options{Observer: metrics, Log: deps.Log})
	if err != nil {
		return err
	}
	defer func() { _ = all.Close() }()
	return run(ctx, cfg, deps, runtimes{own, all})
}

// buckets are those that evictd writes.
type buckets struct {
	conditions *bus.Bucket[*podplanev1.ConditionRecord]
	evictions  *bus.Bucket[*podplanev1.EvictionRecord]
}

// open opens the buckets. Those of syncd are waited for elsewhere: without it the node is watched all the same.
func open(ctx context.Context, c *bus.Conn) (b buckets, err error) {
	if b.conditions, err = bus.Open(ctx, c, bus.Conditions); err != nil {
		return b, fmt.Errorf("open the conditions: %w", err)
	}
	if b.evictions, err = bus.Open(ctx, c, bus.Evictions); err != nil {
		return b, fmt.Errorf("open the evictions: %w", err)
	}
	return b, nil
}

func run(ctx context.Context, cfg Config, deps daemon.Deps, runtime Runtime) error {
	thresholds, err := policy.ParseThresholds(cfg.EvictionHard)
	if err != nil {
		return err
	}
	b, err := open(ctx, deps.Bus)
	if err != nil {
		return err
	}
	out, leader, service := newRecords(deps, b), shard.NewLeader(), &whenLeading{}
	keeper := shard.New(shard.Config{
		Bus: deps.Bus, Shards: 1, Worker: leader, Records: []shard.Records{out.conditions, out.orders}, Shown: deps.SetShards, Log: deps.Log,
	})
	podplanev1.RegisterEvictionServiceServer(deps.GRPC, service)
	deps.AddCheck("leases", keeper.Check)
	deps.Go("records", out.Run)
	deps.Go("leases", keeper.Run)
	deps.Serve()
	if leader.Wait(ctx) != nil {
		return nil // a spare until the end
	}
	deps.Go("lead", leader.Hold)
	orders, conditions, err := out.load(ctx)
	if err != nil {
		return err
	}
	sensors := signals.NewReader(signals.Paths{Proc: cfg.ProcRoot, Cgroup: cfg.CgroupRoot, Nodefs: cfg.Root})
	var m *manager.Manager
	table := feed.NewTable(deps.Log, func() { m.PodsChanged() })
	gc := startImages(cfg, deps, runtime, table, sensors)
	m = manager.New(manager.Deps{
		Sensors: sensors, Pods: table, Usage: stats.NewCollector(runtime, cfg.Root, cfg.PodLogDir, statsAge(deps.Registry)),
		Reclaimer: gc, Records: out, Events: deps.Events,
	}, manager.Options{
		Node: deps.Node, Thresholds: thresholds, Transition: cfg.EvictionPressureTransition, Orders: orders, Conditions: conditions,
		Log: deps.Log, Registry: deps.Registry,
	})
	service.leads.Store(api.NewEvictions(deps.Node, m, b.stored(), deps.Log))
	deps.Go("pods", func(ctx context.Context) error { return follow(ctx, deps, table) })
	deps.Go("volumes", func(ctx context.Context) error { return followVolumes(ctx, deps, table) })
	deps.Go("images", gc.Run)
	deps.Go("manager", m.Run)
	deps.Go("pressure", func(ctx context.Context) error { return watchPressure(ctx, deps, sensors, m) })
	<-ctx.Done()
	return nil
}

// follow keeps the table of pods, as soon as syncd has made its buckets.
func follow(ctx context.Context, deps daemon.Deps, table *feed.Table) error {
	pods, err := bus.Open(ctx, deps.Bus, bus.Pods)
	if err != nil {
		return fmt.Errorf("open the pods: %w", err)
	}
	status, err := bus.Open(ctx, deps.Bus, bus.Status)
	if err != nil {
		return fmt.Errorf("open the pods' status: %w", err)
	}
	return table.Run(ctx, deps.Node, pods, status)
}

// followVolumes tells the table which pods' volumes are torn down, as soon as volumed has made its bucket.
func followVolumes(ctx context.Context, deps daemon.Deps, table *feed.Table) error {
	volumes, err := bus.Open(ctx, deps.Bus, bus.Volumes)
	if err != nil {
		return fmt.Errorf("open the volumes: %w", err)
	}
	return table.RunVolumes(ctx, deps.Node, volumes)
}

// watchPressure passes the kernel's reports of memory pressure on. A kernel without them is said once: measuring goes on.
func watchPressure(ctx context.Context, deps daemon.Deps, sensors *signals.Reader, m *manager.Manager) error {
	err := sensors.WatchPressure(ctx, m.MemoryStalls)
	if fault.Is(err, fault.Unimplemented) {
		deps.Log.WarnContext(ctx, "the kernel does not report memory pressure; memory is measured each 10 s, and more often when it gets short", "error", err)
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func startImages(cfg Config, deps daemon.Deps, runtime images.Runtime, table *feed.Table, sensors *signals.Reader) *images.Collector {
	return images.New(runtime, images.Options{
		High: cfg.ImageGCHigh, Low: cfg.ImageGCLow, MinAge: cfg.ImageMinAge, MaxAge: cfg.ImageMaxAge, Period: cfg.ImageGCPeriod,
		Desired: func() (names []string, known bool) {
			for _, p := range table.List() {
				names = append(names, p.Images...)
			}
			return names, table.Synced()
		},
		Usage:        sensors.Imagefs,
		OnFilesystem: sensors.SetImagefs,
		OnFailure: func(reason string, err error) {
			deps.Events.Event(events.Node(deps.Node), corev1.EventTypeWarning, reason, "%v", err)
		},
		Log: deps.Log, Registry: deps.Registry,
	})
}

// statsAge observes how old the statistics are that decisions are based on.
func statsAge(r prometheus.Registerer) func(time.Duration) {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "kubelet_eviction_stats_age_seconds", Help: "Age of a container's statistics when an eviction was considered.",
		Buckets: []float64{.01, .1, .5, 1, 2, 5, 10, 30, 60},
	})
	r.MustRegister(h)
	return func(age time.Duration) { h.Observe(age.Seconds()) }
}

// stored reads what all writers have stored.
func (b buckets) stored() api.Stored {
	return api.Stored{
		Conditions: func(ctx context.Context, node string) ([]*podplanev1.ConditionRecord, error) {
			return listed(ctx, b.conditions, node)
		},
		Orders: func(ctx context.Context, node string) ([]*podplanev1.EvictionRecord, error) {
			return listed(ctx, b.evictions, node)
		},
	}
}

// listed gives the values of a node's records, or of all.
func listed[T proto.Message](ctx context.Context, bucket *bus.Bucket[T], node string) ([]T, error) {
	pattern := bus.AllKeys
	if node != "" {
		pattern = bus.NodePattern(node)
	}
	entries, err := bucket.List(ctx, pattern)
	if err != nil {
		return nil, err
	}
	list := make([]T, 0, len(entries))
	for _, e := range entries {
		list = append(list, e.Value)
	}
	return list, nil
}

// retry repeats f while the bus is away, until ctx ends.
func retry(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil || !fault.KindOf(err).Retryable() {
			return err
		}
		timer := time.NewTimer(time.Second)
		select {
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(ctx.Err(), err)
		case <-timer.C:
		}
	}
}
