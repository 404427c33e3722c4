package syncd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/internal/events"
	"github.com/podplane/podplane/internal/shard"
	"github.com/podplane/podplane/internal/telemetry"
	"github.com/podplane/podplane/services/syncd/internal/admission"
	"github.com/podplane/podplane/services/syncd/internal/decisions"
	"github.com/podplane/podplane/services/syncd/internal/feed"
	"github.com/podplane/podplane/services/syncd/internal/front"
	"github.com/podplane/podplane/services/syncd/internal/gc"
	"github.com/podplane/podplane/services/syncd/internal/hosts"
	"github.com/podplane/podplane/services/syncd/internal/images"
	"github.com/podplane/podplane/services/syncd/internal/manifest"
	"github.com/podplane/podplane/services/syncd/internal/plan"
	"github.com/podplane/podplane/services/syncd/internal/runtime"
	"github.com/podplane/podplane/services/syncd/internal/runtimeclass"
	"github.com/podplane/podplane/services/syncd/internal/store"
	"github.com/podplane/podplane/services/syncd/internal/worker"
)

// Config is syncd's configuration.
type Config struct {
	daemon.Config
	PodLogDir     string   `json:"podLogDir" usage:"directory of the containers' logs"`
	LogLinkDir    string   `json:"containerLogLinkDir" usage:"directory of links to the containers' logs, as log shippers look for them in /var/log/containers; empty: none"`
	ManifestDir   string   `json:"manifestDir" usage:"directory of pod manifests to run, or one file; empty: none"`
	MaxPods       int      `json:"maxPods" usage:"pods that the node takes"`
	CgroupRoot    string   `json:"cgroupRoot" usage:"cgroup below which the pods' cgroups are; empty: the top"`
	ClusterDomain string   `json:"clusterDomain" usage:"DNS domain of the cluster; empty: none"`
	ClusterDNS    []string `json:"clusterDNS" usage:"addresses of the cluster's DNS server; empty: pods get the node's"`
	ResolvConf    string   `json:"resolvConf" usage:"the node's resolver configuration; empty: none"`
	StartSlots    int      `json:"startSlots" usage:"sandboxes and containers that are started at one time; 0: by the number of CPUs"`
	PullSlots     int      `json:"pullSlots" usage:"images that are pulled at one time; 0: 6, 1: one after the other"`
	Images        Images   `json:"images"`

	ManifestRescan    time.Duration `json:"manifestRescan" usage:"how often the manifest directory is read without a reason"`
	ManifestURL       string        `json:"manifestURL" usage:"URL, http or https, that answers with a Pod to run or a PodList of them; empty: none" secret:"true"`
	ManifestURLHeader []string      `json:"manifestURLHeader" usage:"headers of the requests to the URL, as in 'Authorization: Bearer x'" secret:"true"`
	ManifestURLCA     string        `json:"manifestURLCa" usage:"file of certificates to trust when the URL is asked; empty: the system's"`
	ManifestURLRescan time.Duration `json:"manifestURLRescan" usage:"how often the URL is asked"`

	Resources Resources `json:"resources"`

	Resync              time.Duration `json:"resync" usage:"how often all pods are compared with the runtime"`
	MaxRestartDelay     time.Duration `json:"maxRestartDelay" usage:"the longest crash-loop back-off"`
	ContainerLogMaxSize int64         `json:"containerLogMaxSize" usage:"bytes at which a container's log is rotated"`
	ContainerLogFiles   int           `json:"containerLogFiles" usage:"files that are kept of a container's log"`

	MaxDeadContainers    int      `json:"maxDeadContainers" usage:"dead containers that all pods together keep, the oldest go first; -1: any number"`
	AdmitByRequests      bool     `json:"admitByRequests" usage:"refuse pods whose requests do not fit beside those of the others"`
	PodPidsLimit         int64    `json:"podPidsLimit" usage:"processes that each pod may have; -1: no limit"`
	SeccompDefault       bool     `json:"seccompDefault" usage:"containers that do not name a seccomp profile get the runtime's default instead of none"`
	AllowedUnsafeSysctls []string `json:"allowedUnsafeSysctls" usage:"kernel parameters that pods may set beside the safe ones; an asterisk at the end stands for anything"`
	RuntimeClassDir      string   `json:"runtimeClassDir" usage:"directory of RuntimeClass manifests; empty: none"`

	DecisionsMaxAge   time.Duration `json:"decisionsMaxAge" usage:"how long it is kept what was decided for pods and why"`
	DecisionsMaxBytes int64         `json:"decisionsMaxBytes" usage:"how many bytes of decisions are kept"`
}

// DefaultConfig gives the configuration where nothing is set.
func DefaultConfig() Config {
	return Config{
		Config: daemon.DefaultConfig(), PodLogDir: "/var/log/pods", MaxPods: 110, AdmitByRequests: true, PodPidsLimit: -1, MaxDeadContainers: -1, ResolvConf: "/etc/resolv.conf",
		Images: DefaultImages(), Resources: DefaultResources(), Resync: time.Minute, MaxRestartDelay: 5 * time.Minute, ContainerLogMaxSize: 10 << 20, ContainerLogFiles: 5,
		ManifestRescan: 20 * time.Second, ManifestURLRescan: 20 * time.Second,
		DecisionsMaxAge: 24 * time.Hour, DecisionsMaxBytes: 64 << 20,
	}
}

// Validate checks the configuration.
func (c *Config) Validate(path *field.Path) field.ErrorList {
	list := c.Config.Validate(path)
	for _, n := range []struct {
		name         string
		value, least int64
	}{
		{"maxPods", int64(c.MaxPods), 1},
		{"podPidsLimit", c.PodPidsLimit, -1},
		{"maxDeadContainers", int64(c.MaxDeadContainers), -1},
		{"startSlots", int64(c.StartSlots), 0},
		{"pullSlots", int64(c.PullSlots), 0},
		{"containerLogMaxSize", c.ContainerLogMaxSize, 4096},
		{"containerLogFiles", int64(c.ContainerLogFiles), 2},
		{"decisionsMaxBytes", c.DecisionsMaxBytes, 1 << 20},
	} {
		if n.value < n.least {
			list = append(list, field.Invalid(path.Child(n.name), n.value, fmt.Sprintf("must be at least %d", n.least)))
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"resync", c.Resync}, {"manifestRescan", c.ManifestRescan}, {"manifestURLRescan", c.ManifestURLRescan}} {
		if d.value < time.Second {
			list = append(list, field.Invalid(path.Child(d.name), d.value.String(), "must be at least 1s"))
		}
	}
	if err := c.manifestURL().Check(); err != nil {
		list = append(list, field.Invalid(path.Child("manifestURL"), "", err.Error()))
	}
	if c.DecisionsMaxAge < time.Hour {
		list = append(list, field.Invalid(path.Child("decisionsMaxAge"), c.DecisionsMaxAge.String(), "must be at least 1h"))
	}
	if c.MaxRestartDelay < time.Second || c.MaxRestartDelay > 5*time.Minute {
		list = append(list, field.Invalid(path.Child("maxRestartDelay"), c.MaxRestartDelay.String(), "must be from 1s to 5m"))
	}
	if len(c.ClusterDNS) > 0 && c.ClusterDomain == "" {
		list = append(list, field.Required(path.Child("clusterDomain"), "a cluster DNS server needs a domain"))
	}
	return list
}

func (c *Config) manifestURL() manifest.Remote {
	return manifest.Remote{URL: c.ManifestURL, Header: c.ManifestURLHeader, CA: c.ManifestURLCA, Rescan: c.ManifestURLRescan}
}

// ConfigureBus bounds the journal of decisions as configured.
func (c *Config) ConfigureBus(b *bus.Config) {
	b.StreamLimits = map[string]bus.StreamLimits{bus.StreamDecisions: {MaxAge: c.DecisionsMaxAge, MaxBytes: c.DecisionsMaxBytes}}
}

// Command makes the command that runs syncd.
func Command() *cobra.Command {
	return daemon.Command(daemon.Service[Config]{
		Name: bus.ServiceSyncd, Short: "Run the pods that are wished for", Defaults: DefaultConfig, Run: Run,
	})
}

// Run drives the node's pods until ctx ends.
func Run(ctx context.Context, cfg Config, deps daemon.Deps) error {
	metrics, err := cri.NewMetrics(deps.Registry)
	if err != nil {
		return err
	}
	client, err := cri.Dial(ctx, cfg.CRIEndpoint, cri.Options{Node: deps.Node, Observer: metrics, Log: deps.Log})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // nothing is lost with it
	return run(ctx, cfg, deps, client)
}

// Runtime is what syncd needs of a container runtime.
type Runtime interface {
	runtime.CRI
	worker.Observer
	gc.Runtime
	images.Runtime
	cri.Health
}

func run(ctx context.Context, cfg Config, deps daemon.Deps, client Runtime) error {
	if err := cfg.Resources.prepare(deps.Log); err != nil {
		return err
	}
	face := front.Config{
		Node: deps.Node, Root: cfg.Root, PodLogDir: cfg.PodLogDir, ManifestDir: cfg.ManifestDir, ManifestRescan: cfg.ManifestRescan, ManifestURL: cfg.manifestURL(),
		MaxPods: cfg.MaxPods, Addresses: hosts.NodeAddresses(),
		Reserved: cfg.Resources.reserved(), UnsafeSysctls: cfg.AllowedUnsafeSysctls, RuntimeClasses: runtimeclass.Dir(cfg.RuntimeClassDir), StrictGroups: strictGroups(client),
	}
	if cfg.AdmitByRequests {
		face.Allocatable = allocatable(cfg)
	}
	var err error
	if face.Rejected, err = countRejections(deps.Registry); err != nil {
		return err
	}
	feeds, err := store.Open(ctx, deps.Bus, store.Options{Node: deps.Node, Admit: face.Admit, Log: deps.Log})
	if err != nil {
		return err
	}
	statuses, err := bus.Open(ctx, deps.Bus, bus.Status)
	if err != nil {
		return fmt.Errorf("open the bucket of statuses: %w", err)
	}
	n := &node{cfg: cfg, deps: deps, client: client, store: feeds.Store, addresses: face.Addresses}
	if n.decisions, err = startWhy(ctx, deps, feeds.Store); err != nil {
		return err
	}
	n.shards = &shards{node: n}
	n.sink = feed.NewStatus(statuses, deps.Node, feeds.Store, deps.Log)
	n.keeper = shard.New(shard.Config{
		Bus: deps.Bus, Worker: n.shards, Records: []shard.Records{n.sink}, Shown: deps.SetShards, Log: deps.Log,
	})
	face.StaticPods = func() bool { return n.keeper.Holds(0) }
	deps.AddCheck("leases", n.keeper.Check)
	deps.Go("status", n.sink.Run)
	deps.Go("store", ignoreCanceled(feeds.Run))
	deps.Go("workers", n.work)
	if err := front.Start(ctx, face, deps, feeds.Store, client); err != nil {
		return err
	}
	deps.Serve()
	<-ctx.Done()
	return nil
}

func ignoreCanceled(run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := run(ctx); !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}
}

// node is the running half of syncd: the workers and what feeds them.
type node struct {
	cfg       Config
	deps      daemon.Deps
	client    Runtime
	store     *store.Store
	sink      *feed.Status
	shards    *shards
	keeper    *shard.Keeper
	workers   *worker.Manager
	decisions *decisions.Journal
	addresses []string
}

// work runs the workers, once the desired pods are known.
func (n *node) work(ctx context.Context) error {
	select {
	case <-n.store.Synced():
	case <-ctx.Done():
		return nil
	}
	manager, executor, puller, err := n.manager()
	if err != nil {
		return err
	}
	cancel := n.store.Subscribe(func(c store.PodChange) { manager.PodChanged(n.podChange(c)) })
	defer cancel()
	n.workers = manager
	cancelObjects := n.store.SubscribeObjects(func(c store.ObjectChange) { manager.ObjectsChanged(c.Namespace) })
	defer cancelObjects()
	collector := gc.New(gc.Config{
		PodLogDir: n.cfg.PodLogDir, LogLinkDir: n.cfg.LogLinkDir, Root: n.cfg.Root, MaxSize: n.cfg.ContainerLogMaxSize, Files: n.cfg.ContainerLogFiles,
	}, n.client, leftovers{manager, executor}, n.deps.Log)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return feed.Run(ctx, n.deps.Bus, n.deps.Node, manager, n.deps.Log) })
	g.Go(func() error { return collector.Run(ctx) })
	g.Go(func() error { return puller.Run(ctx) })
	g.Go(func() error { return n.cfg.Resources.enforce(ctx, executor.LimitAll, n.deps.Node, n.deps.Events) })
	// The workers go on until the shards are given up.
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g.Go(func() error { return manager.Run(working) })
	g.Go(func() error {
		defer stop()
		return n.keeper.Run(ctx)
	})
	return g.Wait()
}

// leftovers tells the collector which pods there are, and removes what others left.
type leftovers struct {
	*worker.Manager
	executor *runtime.Executor
}

// Forget removes what an unknown pod left on the node.
func (l leftovers) Forget(ctx context.Context, uid, logDir string) error {
	return l.executor.Forget(ctx, uid, logDir)
}

func (n *node) podChange(c store.PodChange) worker.PodChange {
	status, published := n.store.Status(c.UID)
	return worker.PodChange{
		UID: c.UID, Preempted: preempted(c), After: c.Record.GetAfter(), Pod: c.Pod, Trace: c.Record.GetTrace().GetTraceparent(), Deleted: c.Deleted, Status: status,
		Fresh: !published && c.Record.GetStoredAt().AsTime().After(n.shards.heldSince(c.UID)),
	}
}

// manager makes the workers' manager.
func (n *node) manager() (*worker.Manager, *runtime.Executor, *images.Puller, error) {
	recorder := podEvents{n.deps.Events}
	settings := &settings{runtime: n.client}
	puller, err := n.puller(recorder)
	if err != nil {
		return nil, nil, nil, err
	}
	executor := runtime.New(runtime.Config{
		Node: n.deps.Node, Root: n.cfg.Root, PodLogDir: n.cfg.PodLogDir, LogLinkDir: n.cfg.LogLinkDir, HostIPs: n.addresses,
		Cluster: hosts.Cluster{Domain: n.cfg.ClusterDomain, Servers: n.cfg.ClusterDNS}, ResolvConf: n.cfg.ResolvConf, HostsFile: "/etc/hosts",
		Cgroups: runtime.NewCgroups(n.cfg.CgroupRoot), Driver: settings.cgroupDriver, Handlers: settings.features, SeccompDefault: n.cfg.SeccompDefault, Capacity: runtime.MachineResources(),
		Allocatable: n.cfg.Resources.allocatable(), Memory: n.cfg.Resources.memory(),
		PidsLimit: n.cfg.PodPidsLimit, RuntimeHandler: runtimeclass.Dir(n.cfg.RuntimeClassDir).Handler,
	}, n.client, puller, n.store, recorder)
	metrics, err := worker.NewMetrics(n.deps.Registry)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("register the workers' metrics: %w", err)
	}
	var maxDead *int
	if n.cfg.MaxDeadContainers >= 0 {
		maxDead = &n.cfg.MaxDeadContainers
	}
	return worker.New(worker.Config{
		Node: n.deps.Node, MaxDead: maxDead, HostIPs: n.addresses, StartSlots: n.cfg.StartSlots, Resync: n.cfg.Resync, MaxRestartDelay: n.cfg.MaxRestartDelay,
		ShardOf: shard.Of, Holds: n.keeper.Holds,
	}, worker.Deps{
		Observer: n.client, Starter: executor, Resizer: executor, Room: n.room, Ended: n.store.Ended, Ender: executor, Files: executor, Records: n.store, Sink: n.sink, Settings: settings, Events: recorder, Decisions: n.decisions, Metrics: metrics,
		Tracer: telemetry.Tracer("syncd"),
	}, n.deps.Log), executor, puller, nil
}

// room says why the node has no room for the pod's requests, "" when it has.
func (n *node) room(p *v1.Pod, held map[string]*v1.Pod) (reason, message string) {
	active := n.store.ActivePods()
	for i, other := range active {
		if newer := held[string(other.UID)]; newer != nil {
			active[i] = newer
		}
	}
	allocatable := n.cfg.Resources.allocatable()
	if why := admission.Room(p, nil, allocatable); why != "" {
		return plan.ResizeInfeasible, why
	}
	if why := admission.Room(p, active, allocatable); why != "" {
		return plan.ResizeDeferred, why
	}
	return "", ""
}

// podEvents records Events about pods.
type podEvents struct{ events *events.Recorder }

// PodEvent records one Event about a pod or one of its containers.
func (p podEvents) PodEvent(about *v1.Pod, container, eventType, reason, message string) {
	p.events.Event(events.Pod(about.Namespace, about.Name, string(about.UID), fieldPath(about, container)), eventType, reason, "%s", message)
}

func fieldPath(p *v1.Pod, container string) string {
	if container == "" {
		return ""
	}
	for i := range p.Spec.InitContainers {
		if p.Spec.InitContainers[i].Name == container {
			return "spec.initContainers{" + container + "}"
		}
	}
	for i := range p.Spec.EphemeralContainers {
		if p.Spec.EphemeralContainers[i].Name == container {
			return "spec.ephemeralContainers{" + container + "}"
		}
	}
	return "spec.containers{" + container + "}"
}
