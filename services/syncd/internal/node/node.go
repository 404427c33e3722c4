// Package node makes the v1.Node of the machine that syncd runs on: facts of the machine, the runtime's version, and the conditions that
// evictd and pleg keep on the bus. It shows the other nodes of the bus beside it.
//
// It owns this node's record in the bucket nodes, which it writes when it changes, and reads the buckets nodes and conditions and the
// registrations. A condition whose heartbeat is older than 40 s is Unknown, as its writer is away. This node is Ready when RuntimeReady and
// NetworkReady are True and syncd has the bus; another one under the same conditions, and Unknown while no syncd of it is registered or
// while this node can't see the bus. A new version is published when something but a heartbeat changed, and each five minutes.
package node

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/rawjson"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

const (
	// Stale is the age of a heartbeat from which its condition is Unknown.
	Stale = 40 * time.Second

	checkInterval   = 10 * time.Second
	publishInterval = 5 * time.Minute
	versionTimeout  = 2 * time.Second
	storeTimeout    = 5 * time.Second
	patience        = 3 * time.Second

	fieldName = "metadata.name"
)

// Versioner tells the runtime's version; cri.Health is one.
type Versioner interface {
	Version(ctx context.Context) (cri.Version, error)
}

// Sources are what the view is made of, on the bus.
type Sources struct {
	// Conditions opens the bucket, which is there once evictd or pleg has run.
	Conditions func(ctx context.Context) (Bucket[*podplanev1.ConditionRecord], error)
	Nodes      Nodes
	Services   Services
}

// Bucket is what the view needs of a bucket that it reads; bus.Bucket is one.
type Bucket[T proto.Message] interface {
	Watch(ctx context.Context, pattern string, h bus.Handler[T]) error
}

// Nodes is what the view needs of the bucket of nodes.
type Nodes interface {
	Bucket[*podplanev1.NodeRecord]
	Put(ctx context.Context, key string, value *podplanev1.NodeRecord) (uint64, error)
}

// Services follows the registrations; bus.Conn does.
type Services interface {
	WatchServices(ctx context.Context, service string, f func([]*podplanev1.ServiceRecord)) error
}

// Options are the view's settings.
type Options struct {
	Node    string
	Version string
	// Root is the directory whose file system gives ephemeral-storage.
	Root    string
	MaxPods int
	// Reserved is what of the machine is not for pods.
	Reserved v1.ResourceList
	// Addresses are the node's IPs, the primary one first; none takes the machine's.
	Addresses []string
	// Runtime may be nil.
	Runtime Versioner
	// BusErr says why the bus can't be used; nil when it can.
	BusErr func() error
	Log    *slog.Logger
	Now    func() time.Time
}

// View is the node as an object of the API. Make one with New and run it.
type View struct {
	opts  Options
	facts facts
	table *watchcache.Table
	wake  chan struct{}

	// closed once the nodes' records and the registrations have been read
	nodesKnown, servicesKnown chan struct{}
	toldServices              sync.Once

	mu         sync.Mutex
	conditions map[id]*podplanev1.ConditionRecord
	others     map[string]*v1.Node // as they describe themselves
	live       map[string]bool     // nodes with a registered syncd
	ready      map[string]v1.NodeCondition
	shown      map[string]shown
	runtime    string
}

// id names a condition of a node.
type id struct{ node, condition string }

// shown is what the table has of a node, and since when.
type shown struct {
	node *v1.Node
	at   time.Time
}

// New reads the machine's facts and makes the view, which has the node from the start.
func New(opts Options) *View {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.BusErr == nil {
		opts.BusErr = func() error { return nil }
	}
	v := &View{
		opts: opts, facts: readFacts(opts.Root, opts.Addresses), table: watchcache.New(watchcache.Limits{History: 256}), wake: make(chan struct{}, 1),
		conditions: make(map[id]*podplanev1.ConditionRecord), others: make(map[string]*v1.Node), live: make(map[string]bool),
		ready: make(map[string]v1.NodeCondition), shown: make(map[string]shown), nodesKnown: make(chan struct{}), servicesKnown: make(chan struct{}),
	}
	v.refresh()
	return v
}

// Labels are the node's labels, for admission.
func Labels(node string) map[string]string {
	return map[string]string{
		v1.LabelHostname: node, v1.LabelOSStable: "linux", v1.LabelArchStable: goarch,
		"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": goarch,
	}
}

// Table is the view itself.
func (v *View) Table() *watchcache.Table { return v.table }

// Ready is always nil: the facts are there from the start.
func (v *View) Ready(context.Context) error { return nil }

// Fields are what nodes can be selected by.
func (v *View) Fields() []string { return []string{fieldName, "spec.unschedulable"} }

// Wake makes the view look again soon, as when the bus comes or goes.
func (v *View) Wake() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// Nodes gives the names of all nodes, sorted, once they are known: with a record or with a registered syncd, this one in any case.
func (v *View) Nodes(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, known := range []chan struct{}{v.nodesKnown, v.servicesKnown} {
		select {
		case <-known:
		case <-ctx.Done():
			return nil, fault.WithRetryAfter(fault.New(fault.Unavailable, "syncd has not read from the bus yet which nodes there are"), time.Second)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	all := map[string]bool{v.opts.Node: true}
	for n := range v.others {
		all[n] = true
	}
	for n := range v.live {
		all[n] = true
	}
	return slices.Sorted(maps.Keys(all)), nil
}

// Run keeps the view up to date until ctx ends.
func (v *View) Run(ctx context.Context, from Sources) error {
	defer v.table.Close(fault.New(fault.Unavailable, "syncd is stopping"))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		conditions, err := from.Conditions(ctx)
		if err != nil {
			return err
		}
		return conditions.Watch(ctx, bus.AllKeys, bus.Handler[*podplanev1.ConditionRecord]{Apply: v.apply})
	})
	g.Go(func() error {
		return from.Nodes.Watch(ctx, bus.AllKeys, bus.Handler[*podplanev1.NodeRecord]{
			Apply: v.applyNode, Synced: func() { close(v.nodesKnown) },
		})
	})
	g.Go(func() error { return from.Services.WatchServices(ctx, bus.ServiceSyncd, v.applyServices) })
	g.Go(func() error { return v.loop(ctx, from.Nodes) })
	return fmt.Errorf("node view: %w", g.Wait())
}

func (v *View) loop(ctx context.Context, nodes Nodes) error {
	t := time.NewTicker(checkInterval)
	defer t.Stop()
	var stored *v1.Node
	for {
		v.askRuntime(ctx)
		v.refresh()
		stored = v.store(ctx, nodes, stored)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-v.wake:
		case <-t.C:
		}
	}
}

// store tells the other nodes about this one when it is not what was last stored, and gives what is stored now.
func (v *View) store(ctx context.Context, nodes Nodes, before *v1.Node) *v1.Node {
	v.mu.Lock()
	n := v.describe()
	v.mu.Unlock()
	if before != nil && reflect.DeepEqual(n, before) {
		return before
	}
	data, err := json.Marshal(n)
	if err != nil {
		v.opts.Log.ErrorContext(ctx, "can't encode the node", slog.Any("error", err))
		return n
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	r := &podplanev1.NodeRecord{Schema: 1, Node: v.opts.Node, Object: data, StoredAt: timestamppb.New(v.opts.Now())}
	if _, err := nodes.Put(ctx, bus.NodeKey(v.opts.Node), r); err != nil {
		v.opts.Log.DebugContext(ctx, "what this node says about itself is not stored yet", slog.Any("error", err))
		return before
	}
	return n
}

func (v *View) apply(e bus.Entry[*podplanev1.ConditionRecord]) {
	parts, err := bus.SplitKey(e.Key)
	if err != nil || len(parts) != 2 {
		return
	}
	k := id{parts[0], parts[1]}
	v.mu.Lock()
	old := v.conditions[k]
	if e.Deleted {
		delete(v.conditions, k)
	} else {
		v.conditions[k] = e.Value
	}
	v.mu.Unlock()
	if e.Deleted || old.GetStatus() != e.Value.GetStatus() || old.GetReason() != e.Value.GetReason() || old.GetMessage() != e.Value.GetMessage() {
		v.Wake()
	}
}

func (v *View) applyNode(e bus.Entry[*podplanev1.NodeRecord]) {
	name, err := bus.Untoken(e.Key)
	if err != nil || name == v.opts.Node {
		return
	}
	n := new(v1.Node)
	if !e.Deleted {
		if err := json.Unmarshal(e.Value.GetObject(), n); err != nil {
			v.opts.Log.Error("what a node says about itself can't be read", slog.String("node", name), slog.Any("error", err))
			return
		}
	}
	v.mu.Lock()
	if e.Deleted {
		delete(v.others, name)
	} else {
		v.others[name] = n
	}
	v.mu.Unlock()
	v.Wake()
}

func (v *View) applyServices(records []*podplanev1.ServiceRecord) {
	live := make(map[string]bool)
	for _, r := range records {
		live[r.GetNode()] = true
	}
	v.mu.Lock()
	same := maps.Equal(live, v.live)
	v.live = live
	v.mu.Unlock()
	v.toldServices.Do(func() { close(v.servicesKnown) })
	if !same {
		v.Wake()
	}
}

// askRuntime learns the runtime's version once it answers.
func (v *View) askRuntime(ctx context.Context) {
	v.mu.Lock()
	runtimeUp := v.conditions[id{v.opts.Node, bus.ConditionRuntimeReady}].GetStatus() == string(v1.ConditionTrue)
	known := v.runtime
	if !runtimeUp {
		v.runtime = "" // it may come back as another version
	}
	v.mu.Unlock()
	if v.opts.Runtime == nil || !runtimeUp || known != "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	version, err := v.opts.Runtime.Version(ctx)
	if err != nil {
		v.opts.Log.DebugContext(ctx, "the runtime does not tell its version", slog.Any("error", err))
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.runtime = version.RuntimeName + "://" + version.RuntimeVersion
}

// refresh publishes the nodes that changed.
func (v *View) refresh() {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.opts.Now()
	for name := range v.shown {
		if name != v.opts.Node && v.others[name] == nil {
			delete(v.shown, name)
			delete(v.ready, name)
			v.table.Delete("", name)
		}
	}
	v.show(v.opts.Node, now)
	for name := range v.others {
		v.show(name, now)
	}
}

// show publishes a node if it changed. mu is held.
func (v *View) show(name string, now time.Time) {
	n := v.build(name, now)
	if last, ok := v.shown[name]; ok && now.Sub(last.at) < publishInterval && reflect.DeepEqual(still(n), still(last.node)) {
		return
	}
	data, err := json.Marshal(n)
	if err != nil {
		v.opts.Log.Error("can't encode the node", slog.Any("error", err))
		return
	}
	v.shown[name] = shown{n, now}
	v.table.Set(watchcache.Object{
		Name: n.Name, UID: string(n.UID), Labels: n.Labels, Fields: map[string]string{fieldName: n.Name, "spec.unschedulable": "false"},
		Size: len(data), Render: func(o *watchcache.Object) ([]byte, error) { return rawjson.WithVersion(data, o.ResourceVersion()) },
	})
}

// still is a node without its heartbeats.
func still(n *v1.Node) *v1.Node {
	n = n.DeepCopy()
	for i := range n.Status.Conditions {
		n.Status.Conditions[i].LastHeartbeatTime = metav1.Time{}
	}
	return n
}
