package store

import (
	"context"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// SayAllSynced takes the present state of every bucket for seen.
func (s *Store) SayAllSynced() {
	for range 3 {
		s.sayOnce()()
	}
}

// RunChores does what is to be done until ctx ends.
func (s *Store) RunChores(ctx context.Context) { s.chores.run(ctx, s.opts.Log) }

// SayPod is news from the watch.
func (s *Store) SayPod(rec *podplanev1.PodRecord, rev uint64) { s.applyPod(rec, rev, false) }

// SayPodRemoved is news from the watch.
func (s *Store) SayPodRemoved(uid string, rev uint64) { s.removePod(uid, rev, false) }
