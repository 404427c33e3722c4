// Package node makes the v1.Node of the machine that syncd runs on: facts of the machine, the runtime's version, and the conditions that
// evictd and pleg keep on the bus.
//
// It owns nothing on the bus: it reads the bucket conditions. A condition whose heartbeat is older than 40 s is Unknown, as its writer is
// away. Ready is True when RuntimeReady and NetworkReady are, and syncd has the bus. A new version is published when something but a
// heartbeat changed, and each five minutes.
package node

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

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
)

// Versioner tells the runtime's version; cri.Health is one.
type Versioner interface {
	Version(ctx context.Context) (cri.Version, error)
}

// Conditions is what the view needs of the bucket of conditions.
type Conditions interface {
	Watch(ctx context.Context, pattern string, h bus.Handler[*podplanev1.ConditionRecord]) error
}

// Options are the view's settings.
type Options struct {
	Node    string
	Version string
	// Root is the directory whose file system gives ephemeral-storage.
	Root    string
	MaxPods int
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

	mu         sync.Mutex
	conditions map[string]*podplanev1.ConditionRecord
	ready      v1.NodeCondition
	runtime    string
	last       *v1.Node
	published  time.Time
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
		opts: opts, facts: readFacts(opts.Root, opts.Addresses), table: watchcache.New(watchcache.Limits{History: 64}), wake: make(chan struct{}, 1),
		conditions: make(map[string]*podplanev1.ConditionRecord),
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
func (v *View) Fields() []string { return []string{"metadata.name", "spec.unschedulable"} }

// Wake makes the view look again soon, as when the bus comes or goes.
func (v *View) Wake() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// Run keeps the view up to date until ctx ends.
func (v *View) Run(ctx context.Context, conditions Conditions) error {
	defer v.table.Close(fault.New(fault.Unavailable, "syncd is stopping"))
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan error, 1)
	go func() {
		watched <- conditions.Watch(ctx, bus.NodePattern(v.opts.Node), bus.Handler[*podplanev1.ConditionRecord]{Apply: v.apply})
	}()
	err := v.loop(ctx, watched)
	cancel()
	if err == nil {
		err = <-watched
	}
	return fmt.Errorf("node view: %w", err)
}

// loop gives the error of the watch, or nil when ctx ended and the watch is still to be waited for.
func (v *View) loop(ctx context.Context, watched <-chan error) error {
	t := time.NewTicker(checkInterval)
	defer t.Stop()
	for {
		v.askRuntime(ctx)
		v.refresh()
		select {
		case <-ctx.Done():
			return nil
		case err := <-watched:
			return err
		case <-v.wake:
		case <-t.C:
		}
	}
}

func (v *View) apply(e bus.Entry[*podplanev1.ConditionRecord]) {
	parts, err := bus.SplitKey(e.Key)
	if err != nil || len(parts) != 2 {
		return
	}
	v.mu.Lock()
	old := v.conditions[parts[1]]
	if e.Deleted {
		delete(v.conditions, parts[1])
	} else {
		v.conditions[parts[1]] = e.Value
	}
	v.mu.Unlock()
	if e.Deleted || old.GetStatus() != e.Value.GetStatus() || old.GetReason() != e.Value.GetReason() || old.GetMessage() != e.Value.GetMessage() {
		v.Wake()
	}
}

// askRuntime learns the runtime's version once it answers.
func (v *View) askRuntime(ctx context.Context) {
	v.mu.Lock()
	runtimeUp := v.conditions[bus.ConditionRuntimeReady].GetStatus() == string(v1.ConditionTrue)
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

// refresh publishes the node when it changed.
func (v *View) refresh() {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.opts.Now()
	n := v.build(now)
	if v.last != nil && now.Sub(v.published) < publishInterval && reflect.DeepEqual(still(n), still(v.last)) {
		return
	}
	data, err := json.Marshal(n)
	if err != nil {
		v.opts.Log.Error("can't encode the node", slog.Any("error", err))
		return
	}
	v.last, v.published = n, now
	v.table.Set(watchcache.Object{
		Name: n.Name, UID: string(n.UID), Labels: n.Labels, Fields: map[string]string{"metadata.name": n.Name, "spec.unschedulable": "false"},
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
