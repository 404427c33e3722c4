package store

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/podplane/podplane/internal/bus"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// Feed is a store that is kept up to date by the bus. Make one with Open and run it.
type Feed struct {
	*Store
	pods    *bus.Bucket[*podplanev1.PodRecord]
	status  *bus.Bucket[*podplanev1.StatusRecord]
	objects *bus.Bucket[*podplanev1.ObjectRecord]
}

// Open opens syncd's buckets, which creates them where they are missing, and makes a store on them. It waits for the bus as long as ctx.
func Open(ctx context.Context, c *bus.Conn, opts Options) (*Feed, error) {
	f := &Feed{}
	var err error
	if f.pods, err = bus.Open(ctx, c, bus.Pods); err != nil {
		return nil, fmt.Errorf("open the bucket of pods: %w", err)
	}
	if f.status, err = bus.Open(ctx, c, bus.Status); err != nil {
		return nil, fmt.Errorf("open the bucket of statuses: %w", err)
	}
	if f.objects, err = bus.Open(ctx, c, bus.Objects); err != nil {
		return nil, fmt.Errorf("open the bucket of objects: %w", err)
	}
	f.Store = New(onBus[*podplanev1.PodRecord]{f.pods}, onBus[*podplanev1.StatusRecord]{f.status}, onBus[*podplanev1.ObjectRecord]{f.objects}, opts)
	return f, nil
}

// Run feeds the store until ctx ends.
func (f *Feed) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return f.pods.Watch(ctx, bus.AllKeys, bus.Handler[*podplanev1.PodRecord]{Apply: f.onPod, Synced: f.sayOnce(), Reached: f.atPods.Set})
	})
	g.Go(func() error {
		return f.status.Watch(ctx, bus.AllKeys, bus.Handler[*podplanev1.StatusRecord]{Apply: f.onStatus, Synced: f.sayOnce(), Reached: f.atStat.Set})
	})
	g.Go(func() error {
		return f.objects.Watch(ctx, bus.AllKeys, bus.Handler[*podplanev1.ObjectRecord]{Apply: f.onObject, Synced: f.sayOnce()})
	})
	g.Go(func() error {
		f.sweep(ctx)
		f.chores.run(ctx, f.opts.Log)
		return nil
	})
	err := g.Wait()
	f.podTable.Close(errStopping)
	f.configMaps.Close(errStopping)
	f.secrets.Close(errStopping)
	return err
}

// sweep deletes the statuses of the node's pods that are gone: the rest of a removal during which this service ended.
func (f *Feed) sweep(ctx context.Context) {
	select {
	case <-f.synced:
	case <-ctx.Done():
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for uid, st := range f.statuses {
		if f.byUID[uid] != nil || st.rec.GetNode() != f.opts.Node {
			continue
		}
		key, rev := f.podKey(uid), st.rev
		f.chores.add("status "+uid, func(ctx context.Context) error {
			return settled(f.Store.status.DeleteRevision(ctx, key, rev))
		})
	}
}

func (f *Feed) onPod(e bus.Entry[*podplanev1.PodRecord]) {
	if !e.Deleted {
		f.applyPod(e.Value, e.Revision, false)
	} else if uid, ok := lastToken(e.Key); ok {
		f.removePod(uid, e.Revision, false)
	}
}

func (f *Feed) onStatus(e bus.Entry[*podplanev1.StatusRecord]) {
	if !e.Deleted {
		f.ApplyStatus(e.Value, e.Revision)
	} else if uid, ok := lastToken(e.Key); ok {
		f.removeStatus(uid, e.Revision)
	}
}

func (f *Feed) onObject(e bus.Entry[*podplanev1.ObjectRecord]) {
	if !e.Deleted {
		f.applyObject(e.Value, e.Revision)
		return
	}
	if parts, err := bus.SplitKey(e.Key); err == nil && len(parts) == 3 {
		f.removeObject(objectKey{kind: parts[1], namespace: parts[0], name: parts[2]}, e.Revision)
	}
}

func lastToken(key string) (string, bool) {
	parts, err := bus.SplitKey(key)
	if err != nil || len(parts) != 2 {
		return "", false
	}
	return parts[1], true
}

// onBus lends a bucket of the bus to the store.
type onBus[T proto.Message] struct{ *bus.Bucket[T] }

// Lookup is described at Bucket.
func (b onBus[T]) Lookup(ctx context.Context, key string) (value T, rev uint64, err error) {
	e, err := b.Get(ctx, key)
	if err != nil {
		return value, 0, err
	}
	return e.Value, e.Revision, nil
}
