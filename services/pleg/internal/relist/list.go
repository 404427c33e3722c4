package relist

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/pleg/internal/diff"
)

// group waits for the goroutines of Run.
type group struct{ sync.WaitGroup }

// startList starts a relist when it is due.
func (l *Loop) startList(ctx context.Context, g *group, now time.Time) {
	if l.listing || now.Before(l.next) {
		return
	}
	l.listing = true
	if !l.lastList.IsZero() {
		l.metrics.interval.Observe(now.Sub(l.lastList).Seconds())
	}
	l.lastList = now
	g.Go(func() {
		r := listResult{began: time.Now()}
		r.pods, r.err = l.rt.ListPods(ctx, cri.Filter{})
		r.end = time.Now()
		l.send(ctx, input{list: &r})
	})
}

func (l *Loop) onList(r *listResult) {
	l.listing = false
	l.metrics.duration.Observe(r.end.Sub(r.began).Seconds())
	missed := false
	if r.err == nil {
		l.metrics.seen(r.end)
		l.opts.OnAnswer(r.end)
		missed = l.compare(r)
	}
	l.noteListError(r.err)
	switch {
	case l.listAgain:
		l.next = r.end
	case !l.streaming:
		l.next = r.end.Add(l.opts.FallbackPeriod)
	default:
		l.pace = min(max(2*l.pace, settlePeriod), l.opts.Period)
		if r.err != nil || missed || l.follow {
			l.pace = min(settlePeriod, l.opts.Period)
		}
		l.next = r.end.Add(l.pace)
	}
	if r.err == nil && !l.listAgain {
		l.follow = false
	}
	l.listAgain = false
}

// noteListError logs the first of a series of failures and its end.
func (l *Loop) noteListError(err error) {
	switch {
	case err != nil && l.listErr == nil:
		l.opts.Log.Warn("can't list what the runtime has", "error", err)
	case err == nil && l.listErr != nil:
		l.opts.Log.Info("the runtime lists what it has again")
	}
	l.listErr = err
}

// compare has the pods inspected that the list shows to be behind, and ends those that are gone. It says whether there
// were any.
func (l *Loop) compare(r *listResult) bool {
	found := false
	listed := make(map[string]bool, len(r.pods))
	for i := range r.pods {
		p := &r.pods[i]
		listed[p.UID] = true
		e := l.entry(p.UID)
		if e.record.Behind(p) {
			found = true
			l.want(p.UID, e)
		}
	}
	for uid, e := range l.pods {
		if !listed[uid] && e.record.Live() {
			found = true
			gone := pod.RuntimePod{UID: uid, ObservedAt: r.began}
			l.apply(e, diff.Observation{Pod: gone, Complete: true, At: r.end, Via: diff.ViaRelist})
		}
		if !e.record.Forget(r.end.Add(-keepRemoved)) && !listed[uid] && !e.queued && e.retryAt.IsZero() {
			delete(l.pods, uid)
		}
	}
	return found
}

// startInspections starts what is due, as far as there is room. Inspections that hang take no room.
func (l *Loop) startInspections(ctx context.Context, g *group, now time.Time) {
	for uid, e := range l.pods {
		if !e.retryAt.IsZero() && !now.Before(e.retryAt) {
			l.want(uid, e)
		}
	}
	fresh := 0
	for _, began := range l.inflight {
		if now.Sub(began) < l.opts.StuckAfter {
			fresh++
		}
	}
	for ; len(l.waiting) > 0 && fresh < l.opts.Parallel; fresh++ {
		uid := l.waiting[0]
		l.waiting = l.waiting[1:]
		l.inflight[uid] = now
		g.Go(func() { l.inspect(ctx, uid) })
	}
}

func (l *Loop) inspect(ctx context.Context, uid string) {
	r := inspectResult{uid: uid, began: time.Now()}
	bounded, cancel := context.WithTimeout(ctx, l.opts.InspectTimeout)
	defer cancel()
	r.pod, r.err = l.rt.PodStatus(bounded, uid)
	r.end = time.Now()
	l.send(ctx, input{inspect: &r})
}

func (l *Loop) onInspect(r *inspectResult) {
	delete(l.inflight, r.uid)
	l.metrics.inspection.Observe(r.end.Sub(r.began).Seconds())
	e := l.entry(r.uid)
	again := e.again
	e.queued, e.again = false, false
	obs := diff.Observation{Pod: r.pod, Complete: r.err == nil, At: r.end, Via: diff.ViaRelist}
	if obs.Pod.ObservedAt.IsZero() {
		obs.Pod.ObservedAt = r.began
	}
	if obs.Pod.UID == "" {
		obs.Pod.UID = r.uid
	}
	_, partial := errors.AsType[*cri.InspectError](r.err)
	switch {
	case r.err == nil:
		l.opts.OnAnswer(r.end)
		e.backoff, e.retryAt = 0, time.Time{}
		l.unstick(r.uid, r.end)
		l.apply(e, obs)
	case partial:
		l.apply(e, obs)
		fallthrough
	default:
		l.retry(e, r.end)
		l.noteInspectError(r, e)
	}
	if again {
		l.want(r.uid, e)
	}
}

// noteInspectError keeps in mind which pod does not answer. That the whole runtime is away is not about the pod.
func (l *Loop) noteInspectError(r *inspectResult, e *entry) {
	if !timedOut(r.err) {
		l.opts.Log.DebugContext(l.about(context.Background(), e.record.Ref), "can't inspect a pod", "error", r.err)
		return
	}
	s := l.stuck[r.uid]
	if s == nil {
		s = &stuckPod{Stuck: Stuck{Pod: e.record.Ref, Since: r.began}}
		l.stuck[r.uid] = s
	}
	s.Err = r.err
}

// timedOut says whether anything in the error is a deadline that passed.
func timedOut(err error) bool {
	if e, ok := errors.AsType[*cri.InspectError](err); ok {
		return slices.ContainsFunc(e.Failed, timedOut)
	}
	return fault.Is(err, fault.DeadlineExceeded)
}

func (l *Loop) unstick(uid string, now time.Time) {
	s := l.stuck[uid]
	if s == nil {
		return
	}
	delete(l.stuck, uid)
	l.opts.Log.InfoContext(l.about(context.Background(), s.Pod), "the runtime answers for the pod again", "after", now.Sub(s.Since).String())
	l.tellStuck()
}

// reportStuck names the pods whose inspection hangs: at once in metric and condition, in the log once a minute.
func (l *Loop) reportStuck(ctx context.Context, now time.Time) {
	for uid, began := range l.inflight {
		if l.stuck[uid] == nil && now.Sub(began) >= l.opts.StuckAfter {
			l.stuck[uid] = &stuckPod{Stuck: Stuck{Pod: l.entry(uid).record.Ref, Since: began}}
		}
	}
	changed := false
	for _, s := range l.stuck {
		if s.loggedAt.IsZero() {
			changed = true
		}
		if s.loggedAt.IsZero() || now.Sub(s.loggedAt) >= stuckLogEvery {
			s.loggedAt = now
			l.opts.Log.WarnContext(l.about(ctx, s.Pod), "the runtime does not answer for a pod", "age", now.Sub(s.Since).String(), "error", s.Err)
		}
	}
	if changed {
		l.tellStuck()
	}
}

func (l *Loop) tellStuck() {
	list := make([]Stuck, 0, len(l.stuck))
	for _, s := range l.stuck {
		list = append(list, s.Stuck)
	}
	slices.SortFunc(list, func(a, b Stuck) int { return a.Since.Compare(b.Since) })
	l.metrics.stuck.Set(float64(len(list)))
	l.opts.OnStuck(list)
}
