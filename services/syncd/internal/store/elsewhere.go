package store

import (
	"context"
	"fmt"

	"github.com/podplane/podplane/internal/fault"
)

// Elsewhere is why a change is not made here: the pod is on another node, whose own syncd alone may change it. Its kind is Unavailable, as
// it only comes to light where nobody carried the request on to that node.
type Elsewhere struct {
	// Node is where the pod is, or is to be.
	Node string
	// Seen is the pod as it is seen here; zero for one that is to be made.
	Seen Seen
	err  error
}

// NewElsewhere says that a node that can't be reached would have to do something.
func NewElsewhere(node string, format string, args ...any) *Elsewhere {
	err := fault.New(fault.Unavailable, "%s: syncd on node %q can't be reached", fmt.Sprintf(format, args...), node)
	return &Elsewhere{Node: node, err: unavailable(err)}
}

func (e *Elsewhere) Error() string { return e.err.Error() }

// Unwrap gives the fault.
func (e *Elsewhere) Unwrap() error { return e.err }

// Seen ties a version that one replica gave a pod to the revisions on the bus that it showed, which mean the same to every replica.
type Seen struct {
	Version     string
	Pod, Status uint64
}

// own says whether a record is of this node's.
func (s *Store) own(node string) bool { return node == s.opts.Node }

// seen is how a pod is seen here.
func (s *Store) seen(e *podEntry) Seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Seen{Version: s.present(e).ResourceVersion(), Pod: e.rev, Status: s.statuses[e.rec.GetUid()].rev}
}

// Elsewhere gives the error for a pod of another node; nil for one of this node.
func (s *Store) Elsewhere(namespace, name string) error {
	e := s.named(namespace, name)
	if e == nil {
		return nil
	}
	return s.elsewhere(e)
}

func (s *Store) elsewhere(e *podEntry) error {
	if s.own(e.rec.GetNode()) {
		return nil
	}
	err := NewElsewhere(e.rec.GetNode(), "pods %q is on another node", e.pod.Name)
	err.Seen = s.seen(e)
	return err
}

// translate turns a version that another replica gave, and that stands for what is here too, into none: it is fulfilled. One that stands
// for something else stays, and is refused.
func (s *Store) translate(pre Preconditions, e *podEntry) Preconditions {
	if pre.Seen == nil || pre.ResourceVersion == nil || *pre.ResourceVersion == "" {
		return pre
	}
	here := s.seen(e)
	if *pre.ResourceVersion == pre.Seen.Version && pre.Seen.Pod == here.Pod && pre.Seen.Status == here.Status {
		pre.ResourceVersion = nil
	} else {
		never := "0"
		pre.ResourceVersion = &never
	}
	return pre
}

// Revision gives the revision on the bus at which a pod is seen; 0 when it is not.
func (s *Store) Revision(uid string) uint64 {
	var rev uint64
	s.has(uid, &rev)
	return rev
}

// WaitRevision returns when the view has a revision of the bucket of pods, at most after Options.Patience.
func (s *Store) WaitRevision(ctx context.Context, rev uint64) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Patience)
	defer cancel()
	if err := s.atPods.Wait(ctx, rev); err != nil {
		return unavailable(fault.New(fault.Unavailable, "what was stored on another node has not been seen here: %w", err))
	}
	return nil
}
