// Package feed connects the controller with the bus. It decides nothing.
//
// It reads pods, status and objects, each by one watch in the order of the revisions, and writes volumes through a
// coalescing writer. While the bus is away nothing arrives, what was decided is kept and stored on return, and what
// happened meanwhile is applied from the present state.
package feed

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/volumed/internal/controller"
	"github.com/podplane/podplane/services/volumed/internal/plugin"
)

// Pods watches the node's pods until ctx ends.
func Pods(ctx context.Context, pods *bus.Watched[*podplanev1.PodRecord], c *controller.Controller, log *slog.Logger) error {
	return pods.Watch(ctx, bus.Handler[*podplanev1.PodRecord]{
		Apply: func(e bus.Entry[*podplanev1.PodRecord]) {
			if e.Deleted {
				if uid, ok := uidOf(e.Key); ok {
					c.PodGone(uid)
				}
				return
			}
			p, err := plugin.Decode(e.Value)
			if err != nil { // syncd stores none like that; its volumes stay as they are
				log.ErrorContext(telemetry.ContextWithRecord(ctx, e.Value), "pod's record can't be read", "error", err)
				return
			}
			c.PodSeen(p, e.Value.GetTrace())
		},
		Synced: func() { c.Synced(controller.SourcePods) },
	})
}

// Status watches the phases of the node's pods until ctx ends.
func Status(ctx context.Context, status *bus.Watched[*podplanev1.StatusRecord], c *controller.Controller) error {
	return status.Watch(ctx, bus.Handler[*podplanev1.StatusRecord]{
		Apply: func(e bus.Entry[*podplanev1.StatusRecord]) {
			if uid, ok := uidOf(e.Key); ok {
				c.Status(uid, e.Value.GetPhase() == podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED)
			}
		},
		Synced: func() { c.Synced(controller.SourceStatus) },
	})
}

// Objects watches ConfigMaps and Secrets until ctx ends. Only their revisions are kept.
func Objects(ctx context.Context, b *bus.Bucket[*podplanev1.ObjectRecord], c *controller.Controller) error {
	return b.Watch(ctx, ">", bus.Handler[*podplanev1.ObjectRecord]{
		Apply: func(e bus.Entry[*podplanev1.ObjectRecord]) {
			if e.Deleted {
				c.Object(e.Key, 0)
				return
			}
			c.Object(e.Key, e.Revision)
		},
	})
}

func uidOf(key string) (string, bool) {
	parts, err := bus.SplitKey(key)
	if err != nil || len(parts) != 2 {
		return "", false
	}
	return parts[1], true
}

// ObjectReader reads ConfigMaps and Secrets from their bucket; it is a plugin.Objects.
type ObjectReader struct {
	Bucket *bus.Bucket[*podplanev1.ObjectRecord]
}

// ConfigMap implements plugin.Objects.
func (o ObjectReader) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, uint64, error) {
	var cm corev1.ConfigMap
	revision, err := o.read(ctx, bus.ObjectKey(namespace, "configmap", name), &cm)
	return &cm, revision, err
}

// Secret implements plugin.Objects.
func (o ObjectReader) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, uint64, error) {
	var s corev1.Secret
	revision, err := o.read(ctx, bus.ObjectKey(namespace, "secret", name), &s)
	return &s, revision, err
}

func (o ObjectReader) read(ctx context.Context, key string, into any) (uint64, error) {
	e, err := o.Bucket.Get(ctx, key)
	if err != nil {
		return 0, err
	}
	if err := json.Unmarshal(e.Value.GetObject(), into); err != nil {
		// The decoder's words may hold a piece of a secret.
		return 0, errors.New("its record can't be decoded")
	}
	return e.Revision, nil
}
