package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/plan"
	"github.com/podplane/podplane/services/syncd/internal/status"
)

const recordSchema = 1

var phases = map[plan.Phase]podplanev1.WorkerPhase{
	plan.Syncing:     podplanev1.WorkerPhase_WORKER_PHASE_SYNCING,
	plan.Terminating: podplanev1.WorkerPhase_WORKER_PHASE_TERMINATING,
	plan.Terminated:  podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED,
}

// restore begins where an earlier process stopped.
func (w *worker) restore(rec *podplanev1.StatusRecord) {
	if rec == nil {
		return
	}
	var s v1.PodStatus
	if err := json.Unmarshal(rec.GetStatus(), &s); err != nil {
		return // as if there were none: everything in it can be observed again
	}
	w.previous = &s
	w.waiting = rec.GetWaiting()
	w.told = toldBefore(w.waiting)
	w.wasReady = isReady(&s)
	switch rec.GetPhase() {
	case podplanev1.WorkerPhase_WORKER_PHASE_TERMINATING:
		w.phase = plan.Terminating
	case podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED:
		w.phase = plan.Terminated
	default:
		return
	}
	w.stop = &plan.Stop{Cause: plan.CauseCompleted, Reason: s.Reason, Message: s.Message, Deadline: w.first.Add(specGrace(w.pod))}
	if t := rec.GetStopDeadline(); t != nil {
		w.stop.Deadline = t.AsTime()
	}
	switch s.Reason {
	case plan.ReasonEvicted, plan.ReasonPreempting:
		w.stop.Cause = plan.CauseEviction
	case plan.ReasonDeadlineExceeded:
		w.stop.Cause = plan.CauseDeadline
	}
}

func specGrace(p *v1.Pod) time.Duration {
	if p.Spec.TerminationGracePeriodSeconds == nil {
		return 30 * time.Second
	}
	return time.Duration(*p.Spec.TerminationGracePeriodSeconds) * time.Second
}

// publish computes the status and hands it to the sink when it differs from what was published last. Before the pod was observed completely only
// what it waits for, and its phase, may change.
func (w *worker) publish(in plan.Input, p plan.Plan) {
	s := w.previous
	if !w.stale || s == nil {
		made := status.Make(status.Input{
			Input: in, Plan: p, HostIPs: w.m.cfg.HostIPs, RuntimeName: w.m.deps.Settings.RuntimeName(), FirstSeen: w.first, Messages: w.messages,
		})
		s = &made
	} else {
		s = status.Unobserved(s, p.Stop)
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return // cannot happen: a PodStatus always encodes
	}
	waits := w.waits(p.Waits)
	rec := &podplanev1.StatusRecord{
		Schema: recordSchema, Node: w.m.cfg.Node, Uid: w.uid, Namespace: w.pod.Namespace, Name: w.pod.Name, Phase: phases[p.Phase],
		Status: raw, Waiting: waits,
	}
	if w.trace != "" {
		rec.Trace = &podplanev1.TraceContext{Traceparent: w.trace}
	}
	if sb := w.view.runtime.NewestSandbox(); sb != nil {
		rec.SandboxId = sb.ID
	}
	if p.Stop != nil {
		rec.StopDeadline = timestamppb.New(p.Stop.Deadline)
	}
	w.waiting = waits
	if !w.worthPublishing(rec, in.Now) {
		return
	}
	w.explainStatus(&in, &p)
	w.announce(in.Now, s)
	w.previous = s
	rec.UpdatedAt = timestamppb.New(in.Now)
	w.m.deps.Sink.Set(rec)
}

// waitsPause is how long a change of nothing but what a pod waits for is held back: most such waits are over at once.
const waitsPause = 300 * time.Millisecond

// worthPublishing says whether the record differs from the one before. It decides that a change of the waits alone can wait, until holdUntil.
func (w *worker) worthPublishing(rec *podplanev1.StatusRecord, now time.Time) bool {
	if w.published == nil {
		w.published = rec
		return true
	}
	if proto.Equal(rec, withTime(w.published, rec)) {
		w.holdUntil = time.Time{}
		return false
	}
	if proto.Equal(withWaits(rec, nil), withWaits(withTime(w.published, rec), nil)) {
		if w.holdUntil.IsZero() {
			w.holdUntil = now.Add(waitsPause)
		}
		if now.Before(w.holdUntil) {
			return false
		}
	}
	w.holdUntil = time.Time{}
	w.published = rec
	return true
}

// withTime is the record with the time of another.
func withTime(rec, of *podplanev1.StatusRecord) *podplanev1.StatusRecord {
	c := shallow(rec)
	c.UpdatedAt = of.GetUpdatedAt()
	return c
}

// withWaits is the record with other waits.
func withWaits(rec *podplanev1.StatusRecord, waits []*podplanev1.Waiting) *podplanev1.StatusRecord {
	c := shallow(rec)
	c.Waiting = waits
	return c
}

// shallow copies a record's fields, not what they point to.
func shallow(rec *podplanev1.StatusRecord) *podplanev1.StatusRecord {
	return &podplanev1.StatusRecord{
		Schema: rec.GetSchema(), Node: rec.GetNode(), Uid: rec.GetUid(), Namespace: rec.GetNamespace(), Name: rec.GetName(), Phase: rec.GetPhase(),
		Status: rec.GetStatus(), SandboxId: rec.GetSandboxId(), Waiting: rec.GetWaiting(), Trace: rec.GetTrace(), UpdatedAt: rec.GetUpdatedAt(),
		StopDeadline: rec.GetStopDeadline(),
	}
}

// waits turns the plan's waits into records that keep their age while they last.
func (w *worker) waits(list []plan.Wait) []*podplanev1.Waiting {
	waits := make([]*podplanev1.Waiting, 0, len(list))
	for _, p := range list {
		if slices.ContainsFunc(waits, func(x *podplanev1.Waiting) bool { return x.GetStep() == p.Step && x.GetResource() == p.Resource }) {
			continue
		}
		r := &podplanev1.Waiting{Step: p.Step, Resource: p.Resource, Message: p.Message}
		since := p.Since
		if since.IsZero() {
			since = w.m.deps.Now()
			for _, old := range w.waiting {
				if old.GetStep() == p.Step && old.GetResource() == p.Resource {
					since = old.GetSince().AsTime()
				}
			}
		}
		r.Since = timestamppb.New(since)
		waits = append(waits, r)
	}
	slices.SortStableFunc(waits, func(a, b *podplanev1.Waiting) int {
		return strings.Compare(a.GetStep()+a.GetResource(), b.GetStep()+b.GetResource())
	})
	return waits
}

// announce tells of what is new in a status: events for back-offs, the span of the moment of readiness.
func (w *worker) announce(now time.Time, s *v1.PodStatus) {
	lists := [][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses}
	for _, list := range lists {
		for i := range list {
			w.announceBackoff(&list[i])
		}
	}
	ready := isReady(s)
	if ready && !w.wasReady {
		w.announceReady(now)
	}
	w.wasReady = ready
}

func (w *worker) announceBackoff(c *v1.ContainerStatus) {
	if c.State.Waiting == nil {
		return
	}
	reason := c.State.Waiting.Reason
	if reason != plan.ReasonCrashLoopBackOff && reason != plan.ReasonImagePullBackOff {
		return
	}
	if old := w.previousContainer(c.Name); old != nil && old.State.Waiting != nil && old.State.Waiting.Reason == reason && old.RestartCount == c.RestartCount {
		return
	}
	message := c.State.Waiting.Message
	if reason == plan.ReasonCrashLoopBackOff {
		message = fmt.Sprintf("Back-off restarting failed container %s in pod %s_%s(%s)", c.Name, w.pod.Name, w.pod.Namespace, w.uid)
	}
	w.event(c.Name, v1.EventTypeWarning, "BackOff", message)
}

func (w *worker) previousContainer(name string) *v1.ContainerStatus {
	if w.previous == nil {
		return nil
	}
	for _, list := range [][]v1.ContainerStatus{w.previous.ContainerStatuses, w.previous.InitContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

func (w *worker) announceReady(now time.Time) {
	_, span := telemetry.Start(w.context(context.Background()), w.m.deps.Tracer, "pod.status.ready")
	span.End()
	if created := w.pod.CreationTimestamp; !created.IsZero() && neverReady(w.previous) {
		w.m.deps.Metrics.podStarted(span.SpanContext(), now.Sub(created.Time))
	}
}

// neverReady says whether a pod with this status has not been ready yet: then that it is not has stood as long as that it is placed, from its first
// status on.
func neverReady(s *v1.PodStatus) bool {
	if s == nil {
		return true
	}
	since := make(map[v1.PodConditionType]time.Time, len(s.Conditions))
	for i := range s.Conditions {
		since[s.Conditions[i].Type] = s.Conditions[i].LastTransitionTime.Time
	}
	return !isReady(s) && since[v1.PodReady].Equal(since[v1.PodScheduled])
}

func isReady(s *v1.PodStatus) bool {
	return slices.ContainsFunc(s.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady && c.Status == v1.ConditionTrue })
}

// stopped tells why a pod is being stopped, where nobody else does: an eviction is told by evictd, which ordered it.
func (w *worker) stopped(s *plan.Stop) {
	switch {
	case s == nil:
	case s.Cause == plan.CauseDeadline:
		w.event("", v1.EventTypeNormal, s.Reason, s.Message)
	case s.Reason == plan.ReasonPreempting:
		w.event("", v1.EventTypeWarning, s.Reason, s.Message)
	}
}

// volumeState reads volumed's record.
func (w *worker) volumeState() plan.Volumes {
	v := plan.Volumes{Resource: "volumes", Message: "volumed has not set up the pod's volumes yet"}
	if w.phase != plan.Syncing {
		v.Message = "volumed has not torn down the pod's volumes yet"
	}
	rec := w.volumes
	if rec == nil {
		return v
	}
	v.Ready = rec.GetPhase() == podplanev1.VolumePhase_VOLUME_PHASE_READY
	v.Gone = rec.GetPhase() == podplanev1.VolumePhase_VOLUME_PHASE_GONE
	want := podplanev1.VolumePhase_VOLUME_PHASE_READY
	if w.phase != plan.Syncing {
		want = podplanev1.VolumePhase_VOLUME_PHASE_GONE
	}
	var names, errs []string
	for _, x := range rec.GetVolumes() {
		if x.GetPhase() == want {
			continue
		}
		names = append(names, x.GetName())
		if x.GetError() != "" {
			errs = append(errs, x.GetName()+": "+x.GetError())
		}
		if since := x.GetSince(); since != nil && (v.Since.IsZero() || since.AsTime().Before(v.Since)) {
			v.Since = since.AsTime()
		}
	}
	if len(names) > 0 {
		v.Resource = strings.Join(names, ",")
	}
	if len(errs) > 0 {
		v.Message = strings.Join(errs, "; ")
	}
	return v
}

// volumePaths maps the pod's volumes to where they are on the host.
func (w *worker) volumePaths() map[string]string {
	if w.volumes == nil {
		return nil
	}
	paths := make(map[string]string, len(w.volumes.GetVolumes()))
	for _, x := range w.volumes.GetVolumes() {
		if x.GetPhase() == podplanev1.VolumePhase_VOLUME_PHASE_READY {
			paths[x.GetName()] = x.GetHostPath()
		}
	}
	return paths
}
