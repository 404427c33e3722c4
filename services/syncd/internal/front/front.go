// Package front puts syncd's API together and starts what feeds it: the Events, the node, the manifests and the gRPC services. It
// decides nothing and keeps no state of its own.
package front

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/admission"
	"github.com/podplane/podplane/services/syncd/internal/api"
	"github.com/podplane/podplane/services/syncd/internal/eventlog"
	"github.com/podplane/podplane/services/syncd/internal/logs"
	"github.com/podplane/podplane/services/syncd/internal/manifest"
	"github.com/podplane/podplane/services/syncd/internal/node"
	"github.com/podplane/podplane/services/syncd/internal/runtimeclass"
	"github.com/podplane/podplane/services/syncd/internal/store"
)

// Config are the settings of the API's half of syncd.
type Config struct {
	Node string
	// Root is the directory whose file system the node's ephemeral storage is.
	Root        string
	PodLogDir   string
	ManifestDir string
	// ManifestRescan is the time between two readings of the directory without a reason.
	ManifestRescan time.Duration
	ManifestURL    manifest.Remote
	MaxPods        int
	// Reserved is what of the machine is not for pods.
	Reserved v1.ResourceList
	// Allocatable is what the node has for the requests of pods; nil: requests are not compared with it.
	Allocatable v1.ResourceList
	// StrictGroups says whether the runtime can keep the image's groups from a pod.
	StrictGroups func() bool
	// Rejected counts the pods that were refused, by reason; nil counts nothing.
	Rejected func(reason string)
	// StaticPods says whether this replica is the one that reads the manifests; nil: it is.
	StaticPods func() bool
	// UnsafeSysctls are kernel parameters that pods may set beside the safe ones.
	UnsafeSysctls []string
	// RuntimeClasses has the node's runtime classes.
	RuntimeClasses runtimeclass.Dir
	// Addresses are the node's IPs, the primary one first.
	Addresses []string
}

// Admission is what decides which pods the node takes.
func (c Config) Admission() admission.Node {
	return admission.Node{
		Name: c.Node, MaxPods: c.MaxPods, Allocatable: c.Allocatable, Labels: node.Labels(c.Node), UnsafeSysctls: c.UnsafeSysctls,
		RuntimeClass: c.RuntimeClasses.Get, AppArmor: appArmor, StrictGroups: c.StrictGroups,
	}
}

// Admit is for store.Options.
func (c Config) Admit(candidate admission.Tenant, active []admission.Tenant) (admission.Verdict, error) {
	v, err := c.Admission().Fit(candidate, active)
	c.count(err)
	return v, err
}

// count counts a refusal.
func (c Config) count(err error) {
	if reason := fault.ReasonOf(err); err != nil && c.Rejected != nil {
		c.Rejected(reason)
	}
}

// Start registers the services on deps.GRPC and starts their feeds; runtime may be nil. The store is run by the caller, who then calls deps.Serve.
func Start(ctx context.Context, cfg Config, deps daemon.Deps, s *store.Store, runtime node.Versioner) error {
	log, err := eventlog.Open(ctx, deps.Bus, deps.Log)
	if err != nil {
		return err
	}
	view := node.New(node.Options{
		Node: deps.Node, Version: deps.Version, Root: cfg.Root, MaxPods: cfg.MaxPods, Reserved: cfg.Reserved, Addresses: cfg.Addresses, Runtime: runtime,
		BusErr: deps.Bus.Err, Log: deps.Log,
	})
	api.Register(deps.GRPC, api.Backends{
		Store: s, Node: cfg.Admission(), Logs: logs.New(cfg.PodLogDir, s, deps.Log), Events: log, Nodes: view, Conditions: view.Conditions, NodeNames: view.Nodes, Rejected: cfg.count,
	})
	manifests, err := manifest.New(s, manifest.Options{
		Dir: cfg.ManifestDir, Rescan: cfg.ManifestRescan, Remote: cfg.ManifestURL, Node: cfg.Admission(), Active: cfg.StaticPods, Events: deps.Events, Log: deps.Log,
	})
	if err != nil {
		return err
	}
	deps.AddCheck("store", func(context.Context) error {
		select {
		case <-s.Synced():
			return nil
		default:
			return errors.New("the stored pods have not been read from the bus yet")
		}
	})
	deps.Go("events", quiet(log.Run))
	deps.Go("node", quiet(func(ctx context.Context) error {
		defer deps.Bus.OnState(func(bool) { view.Wake() })()
		nodes, err := bus.Open(ctx, deps.Bus, bus.Nodes)
		if err != nil {
			return fmt.Errorf("open the bucket of nodes: %w", err)
		}
		return view.Run(ctx, node.Sources{Nodes: nodes, Services: deps.Bus, Conditions: func(ctx context.Context) (node.Bucket[*podplanev1.ConditionRecord], error) {
			conditions, err := bus.Open(ctx, deps.Bus, bus.Conditions)
			if err != nil {
				return nil, fmt.Errorf("open the bucket of conditions: %w", err)
			}
			return conditions, nil
		}})
	}))
	deps.Go("manifests", quiet(manifests.Run))
	return nil
}

// quiet takes the end of the context for a good end.
func quiet(run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := run(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		return nil
	}
}
