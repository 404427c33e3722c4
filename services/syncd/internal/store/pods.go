package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/admission"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

const recordSchema = bus.Schema

// NewPod is a pod to be stored.
type NewPod struct {
	// Pod is complete: defaulted, validated, with namespace and name. The store takes it over. An empty UID gets a random one.
	Pod    *v1.Pod
	Source podplanev1.Source
	// Origin is the file or URL; empty for the API.
	Origin string
	// Traceparent is what everything done for this pod continues.
	Traceparent string
	DryRun      bool
}

// Preconditions must hold for a change; nil fields say nothing.
type Preconditions struct {
	UID, ResourceVersion *string
	// Seen says what ResourceVersion means, where another replica gave it; nil: this one did.
	Seen *Seen
}

// DeleteOptions say how a pod is to go.
type DeleteOptions struct {
	Preconditions
	// GracePeriod in seconds; nil is the pod's own.
	GracePeriod *int64
	DryRun      bool
}

func (s *Store) podKey(uid string) string { return podKey(s.opts.Node, uid) }

func podFault(k fault.Kind, name, format string, args ...any) error {
	return fault.For(k, fault.Object{Resource: "pods", Name: name}, format, args...)
}

// CreatePod stores a new pod and gives it as stored. Its name is free from the moment on at which a pod of that name is gone entirely.
func (s *Store) CreatePod(ctx context.Context, n NewPod) (*watchcache.Object, error) {
	if err := s.WaitSynced(ctx); err != nil {
		return nil, err
	}
	pod := n.Pod
	fresh := pod.UID == ""
	if fresh {
		pod.UID = types.UID(uuid.NewString())
	}
	ctx = about(ctx, pod)
	pod.CreationTimestamp = metav1.NewTime(s.opts.Now()).Rfc3339Copy()
	pod.Generation = 1
	rec := &podplanev1.PodRecord{
		Schema: recordSchema, Node: s.opts.Node, Uid: string(pod.UID), Namespace: pod.Namespace, Name: pod.Name,
		Source: n.Source, Origin: n.Origin, StoredAt: timestamppb.New(s.opts.Now()),
	}
	if n.Traceparent != "" {
		rec.Trace = &podplanev1.TraceContext{Traceparent: n.Traceparent}
	}
	var err error
	if rec.Pod, err = encodePod(pod); err != nil {
		return nil, err
	}
	if n.DryRun {
		release, _, err := s.reserve(pod, n.Source)
		if err != nil {
			return nil, err
		}
		release()
		return dry(podObject(rec, pod, nil)), nil
	}
	_, known := s.Pod(rec.GetUid())
	if fresh {
		s.mu.Lock()
		s.minted[rec.GetUid()] = struct{}{}
		s.mu.Unlock()
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.minted, rec.GetUid())
		}()
	}
	err = s.admit(ctx, pod, rec, fresh)
	if !fresh && !known && fault.Is(err, fault.AlreadyExists) {
		// An earlier attempt under this UID was stored without an answer: it is the pod that is wanted.
		s.refresh(ctx, rec.GetUid())
		if o, ok := s.podTable.Get(pod.Namespace, pod.Name); ok && o.UID == rec.GetUid() {
			return o, nil
		}
	}
	if refused := (*refusal)(nil); errors.As(err, &refused) {
		return nil, refused.err
	}
	if err != nil {
		if fresh {
			s.abandon(rec.GetUid(), err)
		}
		return nil, fmt.Errorf("store pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	o, ok := s.podTable.Get(pod.Namespace, pod.Name)
	if !ok || o.UID != rec.GetUid() {
		// Deleted between the acknowledgement and now: it was stored, which is what is answered.
		return dry(podObject(rec, pod, nil)), nil
	}
	return o, nil
}

// about gives ctx with the pod.
func about(ctx context.Context, p *v1.Pod) context.Context {
	return telemetry.ContextWithAbout(ctx, telemetry.About{PodUID: string(p.UID), Namespace: p.Namespace, PodName: p.Name})
}

// refusal is why a pod is not taken: nothing was stored.
type refusal struct{ err error }

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// queuePatience is how many times the store's patience a pod may wait for its turn: many may be posted at once, on a busy host, and while the bus
// is there each of those before it takes a moment only.
const queuePatience = 4

// admit decides on a pod and stores it, only if nothing has been stored about any node's pods since what it was decided on:
// another replica or node may have taken the name, or the last room, meanwhile. Then it is decided anew. Creations of this replica
// wait for each other.
func (s *Store) admit(ctx context.Context, pod *v1.Pod, rec *podplanev1.PodRecord, fresh bool) error {
	waiting, cancel := context.WithTimeout(ctx, queuePatience*s.opts.Patience)
	defer cancel()
	unlock, err := s.busy.lock(waiting, "admission")
	if err != nil {
		if ctx.Err() == nil {
			err = unavailable(fault.New(fault.Unavailable, "other pods are waiting to be stored: %w", err))
		}
		return &refusal{err}
	}
	defer unlock()
	for begun := time.Now(); ; {
		err := s.admitOnce(ctx, pod, rec, fresh)
		if refused := (*refusal)(nil); errors.As(err, &refused) || !fault.Is(err, fault.Conflict) {
			return err
		}
		if time.Since(begun) > s.opts.Patience {
			return unavailable(fault.New(fault.Unavailable, "other pods kept being stored first: %w", err))
		}
	}
}

func (s *Store) admitOnce(ctx context.Context, pod *v1.Pod, rec *podplanev1.PodRecord, fresh bool) error {
	var rev uint64
	key := s.podKey(rec.GetUid())
	var release func()
	defer func() {
		if release != nil {
			release()
		}
	}()
	err := patient(ctx, s.opts.Patience, func(ctx context.Context, again bool) error {
		last, err := s.catchUpPods(ctx)
		if err != nil {
			return unavailable(fault.New(fault.Unavailable, "%w", err))
		}
		if (again || fresh) && s.has(rec.GetUid(), &rev) {
			return nil // an attempt without an answer was stored all the same
		}
		// What was decided for an earlier attempt may not hold any more: another node can have taken the name meanwhile.
		if release != nil {
			release()
		}
		var v admission.Verdict
		if release, v, err = s.reserve(pod, rec.GetSource()); err != nil {
			return &refusal{err}
		}
		rec.After = words(v.After)
		if len(v.Preempt) > 0 {
			return s.preempt(ctx, v.Preempt, pod)
		}
		rev, err = s.pods.CreateAfter(ctx, key, rec, bus.AllKeys, last)
		if again && fault.Is(err, fault.AlreadyExists) {
			rev, err = confirm(ctx, s.pods, key, rec, err)
		}
		return err
	})
	if err == nil {
		s.applyPod(rec, rev, fresh) // before the reservation ends
	}
	return err
}

// has gives the revision at which the view has a pod.
func (s *Store) has(uid string, rev *uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byUID[uid]
	if e != nil {
		*rev = e.rev
	}
	return e != nil
}

// reserve holds the name and the resources of a pod that is being stored.
func (s *Store) reserve(pod *v1.Pod, source podplanev1.Source) (release func(), v admission.Verdict, err error) {
	n := nsName{pod.Namespace, pod.Name}
	s.mu.Lock()
	defer s.mu.Unlock()
	if uid, taken := s.names[n]; taken {
		return nil, v, s.taken(n.name, s.byUID[uid])
	}
	if _, taken := s.pending[n]; taken || s.byUID[string(pod.UID)] != nil {
		return nil, v, podFault(fault.AlreadyExists, n.name, "")
	}
	candidate := admission.Tenant{Pod: pod, Static: static(source)}
	if s.opts.Admit != nil {
		if v, err = s.opts.Admit(candidate, s.active()); err != nil {
			return nil, v, err
		}
	}
	s.pending[n] = candidate
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.pending, n)
	}, v, nil
}

// taken says whose a name is.
func (s *Store) taken(name string, by *podEntry) error {
	switch from := by.rec.GetOrigin(); {
	case !s.own(by.rec.GetNode()):
		return podFault(fault.AlreadyExists, name, "pods %q already exists: on node %q; names are unique over all nodes", name, by.rec.GetNode())
	case by.pod.DeletionTimestamp != nil:
		return podFault(fault.AlreadyExists, name, "pods %q already exists: the pod of that name is being deleted and is not gone yet", name)
	case from != "":
		return podFault(fault.AlreadyExists, name, "pods %q already exists: it comes from %s", name, from)
	}
	return podFault(fault.AlreadyExists, name, "")
}

// abandon remembers a pod that may have been stored although its client was told otherwise.
func (s *Store) abandon(uid string, err error) {
	if !fault.Is(err, fault.Unavailable) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byUID[uid] != nil {
		return
	}
	s.abandoned[uid] = struct{}{}
	key := s.podKey(uid)
	s.chores.add("pod "+uid, func(ctx context.Context) error {
		if err := s.pods.Delete(ctx, key); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.abandoned, uid)
		return nil
	})
}

// UpdatePod replaces a pod by what change makes of it. change gets a copy that it may alter. The pod's identity, its source and what the
// system owns in its metadata stay. What changes nothing is not stored and makes no new version.
func (s *Store) UpdatePod(ctx context.Context, namespace, name string, pre Preconditions, dryRun bool, change func(current *v1.Pod) (*v1.Pod, error)) (*watchcache.Object, error) {
	e, unlock, err := s.begin(ctx, namespace, name, pre)
	if err != nil {
		return nil, err
	}
	defer unlock()
	pod, err := change(e.pod.DeepCopy())
	if err != nil {
		return nil, err
	}
	old := e.pod
	pod.Namespace, pod.Name, pod.UID = old.Namespace, old.Name, old.UID
	pod.CreationTimestamp, pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = old.CreationTimestamp, old.DeletionTimestamp, old.DeletionGracePeriodSeconds
	raw, err := encodePod(pod)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(raw, e.rec.GetPod()) {
		return s.present(e), nil
	}
	return s.replacePod(ctx, e, pod, raw, dryRun)
}

// DeletePod marks a pod as to be deleted and gives it as it is then. Its worker ends it and Remove takes it away. Deleting it again can
// only shorten its grace period.
func (s *Store) DeletePod(ctx context.Context, namespace, name string, opts DeleteOptions) (*watchcache.Object, error) {
	const tries = 5 // another replica's change may come in between
	for try := 1; ; try++ {
		o, err := s.deletePod(ctx, namespace, name, opts)
		if try == tries || opts.ResourceVersion != nil || !fault.Is(err, fault.Conflict) {
			return o, err
		}
	}
}

func (s *Store) deletePod(ctx context.Context, namespace, name string, opts DeleteOptions) (*watchcache.Object, error) {
	e, unlock, err := s.begin(ctx, namespace, name, opts.Preconditions)
	if err != nil {
		return nil, err
	}
	defer unlock()
	pod := e.pod.DeepCopy()
	grace := graceOf(pod, opts.GracePeriod)
	now := s.opts.Now()
	end := metav1.NewTime(now.Add(seconds(grace))).Rfc3339Copy()
	if pod.DeletionTimestamp != nil && (pod.DeletionGracePeriodSeconds == nil || grace >= *pod.DeletionGracePeriodSeconds || !end.Before(pod.DeletionTimestamp)) {
		return s.present(e), nil
	}
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &end, &grace
	pod.Generation++
	raw, err := spliceDeletion(e.rec.GetPod(), pod)
	if err != nil {
		return nil, err
	}
	return s.replacePod(ctx, e, pod, raw, opts.DryRun)
}

func graceOf(pod *v1.Pod, asked *int64) int64 {
	switch {
	case asked != nil:
		return max(*asked, 0)
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		return max(*pod.Spec.TerminationGracePeriodSeconds, 0)
	}
	return v1.DefaultTerminationGracePeriodSeconds
}

// begin finds the pod for a change and makes others wait until unlock.
func (s *Store) begin(ctx context.Context, namespace, name string, pre Preconditions) (*podEntry, func(), error) {
	if err := s.WaitSynced(ctx); err != nil {
		return nil, nil, err
	}
	unlock, err := s.busy.lock(ctx, "pod/"+namespace+"/"+name)
	if err != nil {
		return nil, nil, err
	}
	e := s.named(namespace, name)
	if e == nil {
		// Perhaps another replica has only just stored it. While the bus is away our own view counts.
		waiting, cancel := context.WithTimeout(ctx, s.opts.Patience)
		_, _ = s.catchUpPods(waiting)
		cancel()
		e = s.named(namespace, name)
	}
	if e == nil {
		unlock()
		return nil, nil, podFault(fault.NotFound, name, "")
	}
	if err := s.elsewhere(e); err != nil {
		unlock()
		return nil, nil, err
	}
	if err := s.translate(pre, e).check("pods", s.present(e)); err != nil {
		unlock()
		return nil, nil, err
	}
	return e, unlock, nil
}

func (s *Store) named(namespace, name string) *podEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byUID[s.names[nsName{namespace, name}]]
}

func (p Preconditions) check(resource string, o *watchcache.Object) error {
	about := fault.Object{Resource: resource, Name: o.Name, UID: o.UID}
	if p.UID != nil && *p.UID != o.UID {
		return fault.For(fault.Conflict, about, "operation cannot be fulfilled on %s %q: the UID in the precondition: %s, the UID in the object: %s", resource, o.Name, *p.UID, o.UID)
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != "" && *p.ResourceVersion != o.ResourceVersion() {
		return fault.For(fault.Conflict, about, "operation cannot be fulfilled on %s %q: the object has been modified; please apply your changes to the latest version and try again", resource, o.Name)
	}
	return nil
}

// present is the pod as the table has it.
func (s *Store) present(e *podEntry) *watchcache.Object {
	if o, ok := s.podTable.Get(e.pod.Namespace, e.pod.Name); ok {
		return o
	}
	return dry(podObject(e.rec, e.pod, nil))
}

func (s *Store) replacePod(ctx context.Context, e *podEntry, pod *v1.Pod, raw []byte, dryRun bool) (*watchcache.Object, error) {
	uid := e.rec.GetUid()
	ctx = about(ctx, pod)
	rec := proto.CloneOf(e.rec) // with the fields that only a newer Podplane knows
	rec.Schema, rec.Namespace, rec.Name = max(recordSchema, rec.GetSchema()), pod.Namespace, pod.Name
	rec.Pod, rec.StoredAt = raw, timestamppb.New(s.opts.Now())
	if dryRun {
		st, _ := s.Status(uid)
		o := podObject(rec, pod, st)
		o.Version = s.present(e).Version
		return &o, nil
	}
	rev, err := update(ctx, s.pods, s.podKey(uid), rec, e.rev, s.opts.Patience)
	if fault.Is(err, fault.Conflict) {
		s.refresh(ctx, uid)
		return nil, podFault(fault.Conflict, pod.Name, "operation cannot be fulfilled on pods %q: %w", pod.Name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("store pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	s.applyPod(rec, rev, false)
	return s.present(&podEntry{rec: rec, pod: pod, rev: rev}), nil
}

// refresh takes over what the bus has when it is not what was expected.
func (s *Store) refresh(ctx context.Context, uid string) {
	rec, rev, err := s.pods.Lookup(ctx, s.podKey(uid))
	switch {
	case fault.Is(err, fault.NotFound):
		s.removePod(uid, 0, false)
	case err == nil:
		s.mu.Lock()
		if e := s.byUID[uid]; e != nil && e.rev > rev {
			e.rev = 0 // the bus has an older state than we: it was restored
		}
		s.mu.Unlock()
		s.applyPod(rec, rev, false)
	}
}

// Remove takes a pod away for good: its record, then its status. Its worker calls it when nothing of the pod is left on the node.
func (s *Store) Remove(ctx context.Context, uid string) error {
	if err := remove(ctx, s.pods, s.podKey(uid), s.opts.Patience); err != nil {
		return fmt.Errorf("delete the record of pod %s: %w", uid, err)
	}
	s.removePod(uid, 0, true)
	if err := remove(ctx, s.status, s.podKey(uid), s.opts.Patience); err != nil {
		return fmt.Errorf("delete the status of pod %s: %w", uid, err)
	}
	s.removeStatus(uid, 0)
	return nil
}

func encodePod(pod *v1.Pod) ([]byte, error) {
	pod.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	// Of the status only what others than the node say of the pod is kept here.
	pod.Status = v1.PodStatus{Conditions: pod.Status.Conditions}
	pod.ResourceVersion = ""
	raw, err := json.Marshal(pod)
	if err != nil {
		return nil, fmt.Errorf("encode pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return raw, nil
}

// dry is an object that is in no table.
func dry(o watchcache.Object) *watchcache.Object { return &o }
