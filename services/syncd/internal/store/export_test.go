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

// BeforeCreations has f called before each creation of a pod's record; its error is the creation's.
func (f *Feed) BeforeCreations(call func() error) { f.Store.pods = intercepted{f.Store.pods, call} }

type intercepted struct {
	Bucket[*podplanev1.PodRecord]
	before func() error
}

func (i intercepted) CreateAfter(ctx context.Context, key string, rec *podplanev1.PodRecord, pattern string, rev uint64) (uint64, error) {
	if err := i.before(); err != nil {
		return 0, err
	}
	return i.Bucket.CreateAfter(ctx, key, rec, pattern, rev)
}
