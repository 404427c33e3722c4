package controller

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/podplane/podplane/internal/events"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/internal/telemetry"
	"github.com/podplane/podplane/services/volumed/internal/plugin"
	"github.com/podplane/podplane/services/volumed/internal/reconcile"
)

var errEnded = fault.New(fault.Unavailable, "volumed is stopping")

// operation is one piece of work on disk.
//
//	queued --a slot is free--> running --its end--> settled
//	   |                          |
//	   +--cancelled--> settled    +--2 s--> running, its slot given back
type operation struct {
	e      *entry
	ctx    context.Context
	cancel context.CancelFunc
	work   func(context.Context) (settle func())
	abort  func() // settles one that never ran
	slot   *time.Timer
	ended  chan struct{} // closed when the work has ended
	holds  bool          // counts in running
}

// start queues work for a pod. work runs in a goroutine; what it returns runs on the goroutine that owns the state.
func (c *Controller) start(e *entry, work func(context.Context) func(), abort func()) {
	op := &operation{e: e, work: work, abort: abort, ended: make(chan struct{})}
	op.ctx, op.cancel = context.WithCancel(e.span.context(podContext(c.ctx, e)))
	e.active[op] = true
	c.queue = append(c.queue, op)
	c.schedule()
}

// schedule starts what is queued, as far as there are slots.
func (c *Controller) schedule() {
	for len(c.queue) > 0 && c.running < Parallel {
		op := c.queue[0]
		c.queue = c.queue[1:]
		if !op.e.active[op] {
			continue // cancelled
		}
		op.holds = true
		c.running++
		op.slot = time.AfterFunc(momentary, func() { c.do(func() { c.release(op) }) })
		c.wg.Go(func() {
			settle := op.abort
			if c.held(op.e.uid) {
				settle = op.work(op.ctx)
			}
			close(op.ended)
			c.do(func() { c.settle(op, settle) })
		})
	}
}

func (c *Controller) release(op *operation) {
	if op.holds {
		op.holds = false
		c.running--
		c.schedule()
	}
}

func (c *Controller) settle(op *operation, settle func()) {
	op.cancel()
	op.slot.Stop()
	delete(op.e.active, op)
	if c.pods[op.e.uid] == op.e {
		settle()
	}
	c.release(op)
	if c.pods[op.e.uid] == op.e {
		c.step(op.e)
	}
}

// cancel ends a pod's operations: those that wait at once, the others as soon as they can. It says whether it ended one.
func (c *Controller) cancel(e *entry) bool {
	ended := false
	for op := range e.active {
		op.cancel()
		if op.slot == nil {
			delete(e.active, op)
			op.abort()
			ended = true
		}
	}
	return ended
}

func (c *Controller) startSetup(e *entry, volume string) {
	p, before := e.pod, attributes(e, volume)
	if e.span == nil && e.state.Phase == reconcile.Pending {
		e.span = c.startSpan(e)
	}
	done := func(m plugin.Mounted, err error) {
		r := reconcile.SetupResult{HostPath: m.HostPath, ReadOnly: m.ReadOnly, Revision: m.Revision}
		r.Attributes = map[string]string{pod.VolumeBootID: c.cfg.BootID}
		maps.Copy(r.Attributes, m.Attributes)
		if err != nil {
			r.Error = err.Error()
		}
		reconcile.SetupDone(&e.state, volume, r, time.Now())
		if err != nil && !errors.Is(err, context.Canceled) {
			c.failed(e, "MountVolume.SetUp failed for volume %q : %v", volume, err)
		}
	}
	c.start(e, func(ctx context.Context) func() {
		started := time.Now()
		ctx, end := c.span(ctx, "volume.plugin.setup", p, volume)
		m, err := c.cfg.Disk.Setup(ctx, p, volume, before)
		end(err)
		c.cfg.Metrics.observe(ctx, pluginOf(p, volume), "volume_mount", started, err)
		return func() { done(m, err) }
	}, func() { done(plugin.Mounted{}, context.Canceled) })
}

func attributes(e *entry, volume string) map[string]string {
	for i := range e.state.Volumes {
		if e.state.Volumes[i].Name == volume {
			return e.state.Volumes[i].Attributes
		}
	}
	return nil
}

func (c *Controller) startTeardown(e *entry) {
	uid, p := e.uid, e.pod
	detach := e.state.Backoff.Failures >= detachAfter
	done := func(r plugin.Report) {
		errs := make(map[string]string, len(r.Errors))
		for v, err := range r.Errors {
			errs[v] = err.Error()
			c.failedTeardown(e, v, err)
		}
		general := ""
		if r.Err != nil {
			general = r.Err.Error()
			c.failedTeardown(e, "", r.Err)
		}
		for _, m := range r.Detached {
			c.cfg.Log.WarnContext(c.logContext(e), "a mount stayed busy and was detached; something still uses it", "path", m)
			c.event(e, "DetachedBusyVolume", "A mount of the pod stayed busy and was detached: %s", m)
		}
		reconcile.TeardownDone(&e.state, errs, general, time.Now())
	}
	c.start(e, func(ctx context.Context) func() {
		started := time.Now()
		ctx, end := c.span(ctx, "volume.teardown", p, "")
		r := c.cfg.Disk.Teardown(ctx, uid, detach)
		err := r.Err
		for _, e := range r.Errors {
			err = errors.Join(err, e)
		}
		end(err)
		c.cfg.Metrics.observe(ctx, "", "volume_unmount", started, err)
		return func() { done(r) }
	}, func() { done(plugin.Report{Err: context.Canceled}) })
}

func (c *Controller) failed(e *entry, format, volume string, err error) {
	c.cfg.Log.WarnContext(c.logContext(e), "volume not set up", string(telemetry.VolumeName), volume, "error", err)
	c.event(e, "FailedMount", format, volume, err)
}

func (c *Controller) failedTeardown(e *entry, volume string, err error) {
	c.cfg.Log.WarnContext(c.logContext(e), "volumes not torn down", string(telemetry.VolumeName), volume, "error", err)
	c.event(e, "FailedUnMount", "UnmountVolume.TearDown failed for volume %q : %v", volume, err)
}

// event tells it about the pod; of a pod without a record nothing is known that could be told.
func (c *Controller) event(e *entry, reason, format string, args ...any) {
	if e.name == "" {
		return
	}
	ref := events.Pod(e.namespace, e.name, e.uid, "")
	c.cfg.Events.EventContext(podContext(context.Background(), e), ref, events.Warning, reason, format, args...)
}
