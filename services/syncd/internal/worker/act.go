package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/internal/telemetry"
	"github.com/podplane/podplane/services/syncd/internal/images"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// batch is one span over the actions that one step started: it ends with the last of them.
type batch struct {
	span  trace.Span
	left  atomic.Int32
	began time.Time
	m     *Manager
}

func (b *batch) done() {
	if b.left.Add(-1) == 0 {
		b.span.End()
		b.m.deps.Metrics.synced(b.span.SpanContext(), b.m.deps.Now().Sub(b.began))
	}
}

// act starts the actions.
func (w *worker) act(ctx context.Context, actions []plan.Action) {
	if len(actions) == 0 {
		return
	}
	traced, span := telemetry.Start(w.context(ctx), w.m.deps.Tracer, "pod.sync")
	b := &batch{span: span, began: w.m.deps.Now(), m: w.m}
	b.left.Store(int32(len(actions)))
	for _, a := range actions {
		w.start(traced, b, a)
	}
}

// context gives ctx with the pod and its trace.
func (w *worker) context(ctx context.Context) context.Context {
	return telemetry.ContextWithAbout(telemetry.ContextWithTraceparent(ctx, w.trace),
		telemetry.About{PodUID: w.uid, Namespace: w.pod.Namespace, PodName: w.pod.Name})
}

// start marks what the action is about as busy and runs it.
func (w *worker) start(ctx context.Context, b *batch, a plan.Action) {
	var run func(context.Context) func(*worker)
	starting := false
	switch a.Kind {
	case plan.CreateSandbox:
		starting, run = true, w.createSandbox(a)
	case plan.EnsureImage:
		starting, run = true, w.ensureImage(a)
	case plan.StartContainer:
		starting, run = true, w.startContainer(a)
	case plan.KillContainer:
		run = w.killContainer(a)
	case plan.StopSandbox, plan.RemoveSandbox:
		run = w.endSandbox(a)
	case plan.RemoveContainer:
		run = w.removeContainer(a)
	case plan.Resize:
		run = w.resizePod()
	case plan.Cleanup:
		run = w.cleanup()
	case plan.RemoveRecord:
		run = w.removeRecord()
	default:
		b.done()
		return
	}
	cancelled := w.startCtx
	if a.Container != "" {
		ctx = telemetry.ContextWithContainer(ctx, a.Container)
	}
	w.spawn(ctx, func(ctx context.Context) func(*worker) {
		defer b.done()
		if starting {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(cancelled, cancel)()
		}
		return run(ctx)
	})
}

func (w *worker) createSandbox(a plan.Action) func(context.Context) func(*worker) {
	w.busy.Sandbox = true
	p, traceparent := w.pod, w.trace
	if a.Attempt > 0 {
		w.event("", v1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
	}
	return func(ctx context.Context) func(*worker) {
		release, err := w.m.slot(ctx)
		if err != nil {
			return func(w *worker) { w.sandboxFailed(err) }
		}
		s, err := w.m.deps.Starter.CreateSandbox(ctx, p, a.Attempt, parentOf(ctx, traceparent))
		release()
		telemetry.Fail(ctx, err)
		now := w.m.deps.Now()
		return func(w *worker) {
			if err != nil {
				w.sandboxFailed(err)
				return
			}
			w.busy.Sandbox, w.box = false, plan.Failure{}
			w.view.sawSandbox(s, now)
		}
	}
}

func (w *worker) sandboxFailed(err error) {
	w.busy.Sandbox = false
	w.unsure()
	if errors.Is(err, context.Canceled) {
		return
	}
	if !fault.Is(err, fault.Unavailable) {
		w.event("", v1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+err.Error())
	}
	w.box = w.failed(w.box, "", err)
}

// failed counts one more failure.
func (w *worker) failed(f plan.Failure, reason string, err error) plan.Failure {
	now := w.m.deps.Now()
	f.Count++
	if f.At.IsZero() || f.Message != err.Error() {
		f.At = now
	}
	f.Reason, f.Message = reason, err.Error()
	f.NotBefore = now.Add(plan.CreateDelay(f.Count))
	return f
}

func (w *worker) ensureImage(a plan.Action) func(context.Context) func(*worker) {
	key, p := a.ImageKey(), w.pod
	w.busy.Images[key] = true
	ref, policy, _ := plan.ImageOf(p, key)
	return func(ctx context.Context) func(*worker) {
		img, err := w.m.deps.Starter.EnsureImage(ctx, p, images.Want{Container: a.Container, Image: ref, Policy: policy})
		telemetry.Fail(ctx, err)
		return func(w *worker) {
			delete(w.busy.Images, key)
			switch {
			case err == nil:
				maps.DeleteFunc(w.images, func(_ string, i plan.Image) bool { return i.Ref == ref && !i.Ready })
				w.images[key], w.infos[key] = plan.Image{Ref: ref, Ready: true}, img
			case errors.Is(err, context.Canceled):
			default:
				w.imageFailed(a, ref, err)
			}
		}
	}
}

// imageFailed counts one more failure of the image in this pod, whichever container it was for.
func (w *worker) imageFailed(a plan.Action, ref string, err error) {
	now := w.m.deps.Now()
	img := plan.Image{Ref: ref}
	for _, other := range w.images {
		if other.Ref == ref && other.Failures > img.Failures {
			img = other
		}
	}
	img.Failures++
	img.Reason, img.Message, img.FailedAt = plan.ReasonErrImagePull, err.Error(), now
	if e, ok := errors.AsType[*cri.ImageError](err); ok && e.Reason != "" {
		img.Reason = e.Reason
	}
	img.NotBefore = now.Add(plan.ImageDelay(img.Failures))
	w.images[a.ImageKey()] = img
	w.event(a.Container, v1.EventTypeWarning, "Failed", "Error: "+img.Reason)
}

func (w *worker) startContainer(a plan.Action) func(context.Context) func(*worker) {
	w.busy.Containers[a.Container] = true
	r := StartRequest{
		Pod: w.pod, Container: a.Container, ID: a.ID, Attempt: a.Attempt, RestartDelay: a.Delay, Decided: a.Decided,
		Image: w.infos[a.Container], Volumes: w.volumePaths(), ImageVolumes: w.imageVolumes(),
	}
	r.TargetID = w.target(a.Container)
	if s := w.view.runtime.Sandbox(a.SandboxID); s != nil {
		r.Sandbox = *s
	}
	podIP := ""
	if ips := w.view.runtime.IPs(); len(ips) > 0 {
		podIP = ips[0]
	}
	traceparent := w.trace
	return func(ctx context.Context) func(*worker) {
		r.Trace = parentOf(ctx, traceparent)
		release, err := w.m.slot(ctx)
		if err != nil {
			return func(w *worker) { w.startFailed(r, err) }
		}
		c, err := w.m.deps.Starter.StartContainer(ctx, r)
		release()
		telemetry.Fail(ctx, err)
		if err != nil {
			return func(w *worker) { w.startFailed(r, err) }
		}
		now := w.m.deps.Now()
		var hookErr error
		if spec := pod.FindContainer(r.Pod, r.Container); spec != nil && spec.Lifecycle != nil && spec.Lifecycle.PostStart != nil {
			// The container runs: say so before the hook has ended, which may take its time.
			w.post(func(n *news) {
				n.results = append(n.results, func(w *worker) { w.view.sawContainer(c, now) })
			})
			hookErr = w.m.deps.Starter.PostStart(ctx, r.Pod, r.Container, c.ID, podIP)
			telemetry.Fail(ctx, hookErr)
		}
		return func(w *worker) {
			w.view.sawContainer(c, now)
			w.containerStarted(r, c.ID, hookErr)
		}
	}
}

func (w *worker) startFailed(r StartRequest, err error) {
	delete(w.busy.Containers, r.Container)
	w.forgetImages(r.Container)
	w.unsure()
	if errors.Is(err, context.Canceled) {
		return
	}
	reason := ReasonRunContainerError
	if e, ok := errors.AsType[*StartError](err); ok {
		reason = e.Reason
		if r.ID == "" && e.ContainerID != "" {
			w.startFails[e.ContainerID] = true
		}
	}
	w.fails[r.Container] = w.failed(w.fails[r.Container], reason, err)
	if !fault.Is(err, fault.Unavailable) {
		w.event(r.Container, v1.EventTypeWarning, "Failed", "Error: "+err.Error())
	}
	w.m.deps.Metrics.startFailed(reason)
}

// forgetImages makes sure that the container's image, and those that it mounts, are looked at before it is tried again: they may be gone.
func (w *worker) forgetImages(container string) {
	delete(w.images, container)
	if c := pod.FindContainer(w.pod, container); c != nil {
		for i := range c.VolumeMounts {
			delete(w.images, plan.VolumeImage(c.VolumeMounts[i].Name))
		}
	}
}

// imageVolumes maps the pod's image volumes to their images. They stay the same for as long as the pod lives.
func (w *worker) imageVolumes() map[string]cri.Image {
	var list map[string]cri.Image
	for i := range w.pod.Spec.Volumes {
		name := w.pod.Spec.Volumes[i].Name
		if img, ok := w.infos[plan.VolumeImage(name)]; ok {
			if list == nil {
				list = make(map[string]cri.Image)
			}
			list[name] = img
		}
	}
	return list
}

func (w *worker) containerStarted(r StartRequest, id string, hookErr error) {
	delete(w.busy.Containers, r.Container)
	delete(w.images, r.Container)
	delete(w.fails, r.Container)
	w.m.deps.Metrics.started()
	if hookErr == nil || errors.Is(hookErr, context.Canceled) {
		return
	}
	w.event(r.Container, v1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed: "+hookErr.Error())
	w.fails[r.Container] = w.failed(w.fails[r.Container], "PostStartHookError", hookErr)
	w.hookFailed[id] = true
}

func (w *worker) killContainer(a plan.Action) func(context.Context) func(*worker) {
	end := w.m.deps.Now().Add(a.Grace)
	_, again := w.busy.Kills[a.ID]
	w.busy.Kills[a.ID] = end
	if a.Restart {
		w.killed[a.ID] = true
	}
	if !again {
		w.event(a.Container, v1.EventTypeNormal, "Killing", a.Message)
	}
	r := KillRequest{Pod: w.pod, Container: a.Container, ID: a.ID, Grace: a.Grace, NoHook: a.NoHook || again}
	if ips := w.view.runtime.IPs(); len(ips) > 0 {
		r.PodIP = ips[0]
	}
	return func(ctx context.Context) func(*worker) {
		err := w.m.deps.Ender.KillContainer(ctx, r)
		telemetry.Fail(ctx, err)
		c, seenErr := w.m.deps.Observer.ContainerStatus(ctx, a.ID)
		now := w.m.deps.Now()
		return func(w *worker) {
			if w.busy.Kills[a.ID].Equal(end) {
				delete(w.busy.Kills, a.ID)
			}
			switch {
			case seenErr == nil:
				w.view.sawContainer(c, now)
				w.readMessages()
			case fault.Is(seenErr, fault.NotFound):
				w.view.containerRemoved(a.ID, now)
			default:
				w.unsure()
			}
			w.ended(a.ID, err)
		}
	}
}

// ended notes how ending something went.
func (w *worker) ended(key string, err error) {
	switch {
	case err == nil:
		delete(w.ends, key)
	case errors.Is(err, context.Canceled):
	default:
		w.ends[key] = w.failed(w.ends[key], "", err)
		if !fault.Is(err, fault.Unavailable) {
			w.event("", v1.EventTypeWarning, "FailedKillPod", "error killing pod: "+err.Error())
		}
	}
}

func (w *worker) endSandbox(a plan.Action) func(context.Context) func(*worker) {
	w.busy.Removals[a.ID] = true
	return func(ctx context.Context) func(*worker) {
		var err error
		if a.Kind == plan.StopSandbox {
			err = w.m.deps.Ender.StopSandbox(ctx, a.ID)
		} else {
			err = w.m.deps.Ender.RemoveSandbox(ctx, a.ID)
		}
		telemetry.Fail(ctx, err)
		now := w.m.deps.Now()
		return func(w *worker) {
			delete(w.busy.Removals, a.ID)
			w.ended(a.ID, err)
			switch {
			case err != nil:
				w.unsure()
			case a.Kind == plan.StopSandbox:
				w.view.sandboxStopped(a.ID, now)
			default:
				w.view.sandboxRemoved(a.ID, now)
			}
		}
	}
}

func (w *worker) removeContainer(a plan.Action) func(context.Context) func(*worker) {
	w.busy.Removals[a.ID] = true
	p := w.pod
	var c pod.Container
	if have := w.view.runtime.Container(a.ID); have != nil {
		c = *have
	}
	return func(ctx context.Context) func(*worker) {
		err := w.m.deps.Ender.RemoveContainer(ctx, p, &c)
		telemetry.Fail(ctx, err)
		now := w.m.deps.Now()
		return func(w *worker) {
			delete(w.busy.Removals, a.ID)
			if err == nil {
				w.view.containerRemoved(a.ID, now)
				delete(w.ends, a.ID)
				return
			}
			if errors.Is(err, context.Canceled) {
				return
			}
			w.ends[a.ID] = w.failed(w.ends[a.ID], "", err)
			if !fault.Is(err, fault.Unavailable) {
				w.event(a.Container, v1.EventTypeWarning, "ContainerGCFailed", "Failed to remove a dead container: "+err.Error())
			}
		}
	}
}

func (w *worker) cleanup() func(context.Context) func(*worker) {
	w.busy.Cleanup = true
	p := w.pod
	return func(ctx context.Context) func(*worker) {
		err := w.m.deps.Files.Cleanup(ctx, p)
		telemetry.Fail(ctx, err)
		return func(w *worker) {
			w.busy.Cleanup = false
			w.cleaned = err == nil
			w.ended(plan.EndCleanup, err)
		}
	}
}

func (w *worker) removeRecord() func(context.Context) func(*worker) {
	w.busy.Cleanup = true
	return func(ctx context.Context) func(*worker) {
		err := w.m.deps.Records.Remove(ctx, w.uid)
		telemetry.Fail(ctx, err)
		return func(w *worker) {
			w.busy.Cleanup = false
			if err == nil {
				w.m.deps.Sink.Remove(w.uid)
				w.over = true
				return
			}
			w.ended(plan.EndRecord, fmt.Errorf("remove the pod's record: %w", err))
		}
	}
}

func (w *worker) event(container, eventType, reason, message string) {
	w.m.deps.Events.PodEvent(w.pod, container, eventType, reason, message)
}

// parentOf is the trace that things made now belong to.
func parentOf(ctx context.Context, traceparent string) string {
	if t := telemetry.Traceparent(ctx); t != "" {
		return t
	}
	return traceparent
}
