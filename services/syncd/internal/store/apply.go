package store

import (
	"context"
	"encoding/json"
	"log/slog"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// applyPod takes a revision of a pod's record, from the watch or from an acknowledged write of ours. fresh says that we made its UID.
func (s *Store) applyPod(rec *podplanev1.PodRecord, rev uint64, fresh bool) {
	pod := new(v1.Pod)
	if err := json.Unmarshal(rec.GetPod(), pod); err != nil {
		s.opts.Log.ErrorContext(telemetry.ContextWithRecord(context.Background(), rec), "a stored pod can't be read and is left alone", slog.Any("error", err))
		return
	}
	s.order.Lock()
	defer s.order.Unlock()
	uid := rec.GetUid()
	s.mu.Lock()
	if _, unwanted := s.abandoned[uid]; unwanted {
		s.mu.Unlock()
		s.drop(uid, rev)
		return
	}
	if old := s.byUID[uid]; (old != nil && rev <= old.rev) || s.gone.holds(uid, rev, s.opts.Now()) {
		s.mu.Unlock()
		return
	}
	if _, ours := s.minted[uid]; ours {
		fresh = true // the watch was faster than the acknowledgement
		delete(s.minted, uid)
	}
	s.byUID[uid] = &podEntry{rec: rec, pod: pod, rev: rev}
	s.names[nsName{pod.Namespace, pod.Name}] = uid
	s.show(uid)
	s.mu.Unlock()
	s.publish(PodChange{UID: uid, Record: rec, Pod: pod, Fresh: fresh})
}

// removePod takes the deletion of a pod's record at a revision (0: unknown). ours says that the deletion was acknowledged to us.
func (s *Store) removePod(uid string, rev uint64, ours bool) {
	s.order.Lock()
	defer s.order.Unlock()
	s.mu.Lock()
	if !ours {
		delete(s.abandoned, uid)
	}
	s.gone.bury(uid, rev, s.opts.Now())
	e := s.byUID[uid]
	if e == nil || (rev != 0 && rev <= e.rev) {
		s.mu.Unlock()
		return
	}
	s.gone.bury(uid, e.rev, s.opts.Now())
	delete(s.byUID, uid)
	n := nsName{e.pod.Namespace, e.pod.Name}
	if s.names[n] == uid {
		delete(s.names, n)
		s.podTable.Delete(n.namespace, n.name)
	}
	s.mu.Unlock()
	s.publish(PodChange{UID: uid, Record: e.rec, Pod: e.pod, Deleted: true})
}

// ApplyStatus takes a status record that was stored at a revision: the worker's echo of its own write, or the watch.
func (s *Store) ApplyStatus(rec *podplanev1.StatusRecord, rev uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	uid := rec.GetUid()
	if old, ok := s.statuses[uid]; (ok && rev <= old.rev) || s.noStatus.holds(uid, rev, s.opts.Now()) {
		return
	}
	s.statuses[uid] = statusEntry{rec: rec, rev: rev}
	if s.byUID[uid] != nil {
		s.show(uid)
	}
}

// removeStatus takes the deletion of a pod's status at a revision (0: unknown).
func (s *Store) removeStatus(uid string, rev uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.statuses[uid].rev
	if rev != 0 && rev <= last {
		return
	}
	s.noStatus.bury(uid, max(rev, last), s.opts.Now())
	delete(s.statuses, uid)
}

// show puts a pod with its status into the table. It is called with mu held.
func (s *Store) show(uid string) {
	e := s.byUID[uid]
	if s.names[nsName{e.pod.Namespace, e.pod.Name}] != uid {
		return
	}
	st := s.statuses[uid]
	s.podTable.Set(podObject(e.rec, e.pod, st.rec))
}

// drop deletes a record that must not be there.
func (s *Store) drop(uid string, rev uint64) {
	s.chores.add("pod "+uid, func(ctx context.Context) error {
		return settled(s.pods.DeleteRevision(ctx, s.podKey(uid), rev))
	})
}
