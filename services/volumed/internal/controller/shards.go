package controller

import (
	"context"
	"time"

	"github.com/podplane/podplane/internal/pod"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/volumed/internal/plugin"
	"github.com/podplane/podplane/services/volumed/internal/reconcile"
)

const (
	// heldAgain is when a pod whose shard was not held is looked at again.
	heldAgain = time.Second
	// loseTimeout bounds the wait for operations on pods that go to another replica. One that hangs longer is left: it
	// begins nothing more, and what it has done the other replica finds in the mount table.
	loseTimeout = 5 * time.Second
)

// seenPod is a pod that another replica works on.
type seenPod struct {
	pod   *plugin.Pod
	trace *podplanev1.TraceContext
}

// owns says whether a pod's shard was gained.
func (c *Controller) owns(uid string) bool { return c.cfg.ShardOf == nil || c.mine[c.cfg.ShardOf(uid)] }

// held says whether, at this moment, anything may be done for a pod.
func (c *Controller) held(uid string) bool {
	return c.cfg.ShardOf == nil || c.cfg.Holds == nil || c.cfg.Holds(c.cfg.ShardOf(uid))
}

// Gain begins the work on the pods of shards, going on from their records.
func (c *Controller) Gain(ctx context.Context, shards []int, records []*podplanev1.VolumesRecord) error {
	return c.ask(ctx, func() {
		for _, n := range shards {
			c.mine[n] = true
		}
		for _, r := range records {
			c.restore(r)
		}
		for uid, p := range c.others {
			if c.owns(uid) {
				delete(c.others, uid)
				c.wanted(c.entry(uid), p.pod, p.trace)
			}
		}
		if len(c.unsynced) > 0 {
			return // Synced does the rest
		}
		c.findLeftovers()
		for _, e := range c.pods {
			c.step(e)
		}
	})
}

// restore goes on from a pod's record.
func (c *Controller) restore(r *podplanev1.VolumesRecord) {
	sameBoot := true
	for _, v := range r.GetVolumes() {
		sameBoot = sameBoot && v.GetAttributes()[pod.VolumeBootID] == c.cfg.BootID
	}
	e := c.entry(r.GetUid())
	e.namespace, e.name, e.trace = r.GetNamespace(), r.GetName(), r.GetTrace()
	e.state = reconcile.Restore(r, sameBoot, time.Now())
}

// Lose ends the work on the pods of shards and leaves their volumes and records as they are. It returns when their
// operations have ended, at most after loseTimeout or when ctx ends.
func (c *Controller) Lose(ctx context.Context, shards []int) error {
	var under []*operation
	err := c.ask(context.WithoutCancel(ctx), func() {
		for _, n := range shards {
			delete(c.mine, n)
		}
		for uid, e := range c.pods {
			if c.owns(uid) {
				continue
			}
			for op := range e.active {
				op.cancel()
				if op.slot != nil {
					under = append(under, op)
				} else {
					delete(e.active, op) // not begun: schedule leaves it out
				}
			}
			if e.pod != nil {
				c.others[uid] = seenPod{e.pod, e.trace}
			}
			c.drop(e)
		}
	})
	ctx, cancel := context.WithTimeout(ctx, loseTimeout)
	defer cancel()
	for _, op := range under {
		select {
		case <-op.ended:
		case <-ctx.Done():
			return err
		}
	}
	return err
}
