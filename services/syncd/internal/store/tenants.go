package store

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/admission"
)

// ActivePods are the pods of this node that hold or will hold resources, but for those that make room. They have the resources that were allocated to
// them, are shared and never changed.
func (s *Store) ActivePods() []*v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*v1.Pod
	for _, t := range s.active() {
		if !t.Leaving {
			list = append(list, t.Pod)
		}
	}
	return list
}

// active are the pods of this node that hold or will hold resources: all but those whose containers have ended for good. mu is held.
func (s *Store) active() []admission.Tenant {
	list := make([]admission.Tenant, 0, len(s.byUID)+len(s.pending))
	for uid, e := range s.byUID {
		status := s.statuses[uid].rec
		if !s.own(e.rec.GetNode()) || status.GetPhase() == podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED {
			continue
		}
		t := admission.Tenant{Pod: s.allocated(uid, e.pod), Static: static(e.rec.GetSource()), Leaving: e.rec.GetPreemption() != nil}
		list = append(list, t)
	}
	for _, t := range s.pending {
		list = append(list, t)
	}
	return list
}

// static says whether pods of a source are static ones.
func static(source podplanev1.Source) bool {
	return source == podplanev1.Source_SOURCE_FILE || source == podplanev1.Source_SOURCE_HTTP
}

// Ended says whether nothing of a pod runs any more and nothing will.
func (s *Store) Ended(uid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byUID[uid] == nil || s.statuses[uid].rec.GetPhase() == podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED
}

// preempt tells pods to make room for another one. Its error is a Conflict when all were told: the other one is decided on anew then.
func (s *Store) preempt(ctx context.Context, uids []types.UID, by *v1.Pod) error {
	for _, uid := range uids {
		s.mu.Lock()
		e := s.byUID[string(uid)]
		s.mu.Unlock()
		if e == nil || e.rec.GetPreemption() != nil {
			continue
		}
		rec := proto.CloneOf(e.rec)
		rec.Preemption = &podplanev1.Preemption{Uid: string(by.UID), Namespace: by.Namespace, Name: by.Name, At: timestamppb.New(s.opts.Now())}
		rev, err := s.pods.Update(ctx, s.podKey(string(uid)), rec, e.rev)
		if fault.Is(err, fault.Conflict) {
			s.refresh(ctx, string(uid))
			return err
		}
		if err != nil {
			return fmt.Errorf("tell pod %s/%s to make room: %w", e.pod.Namespace, e.pod.Name, err)
		}
		s.applyPod(rec, rev, false)
	}
	return fault.New(fault.Conflict, "pods were told to make room")
}

func words(uids []types.UID) []string {
	var list []string
	for _, u := range uids {
		list = append(list, string(u))
	}
	return list
}
