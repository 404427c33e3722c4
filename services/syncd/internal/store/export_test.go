package store

import "context"

// SayAllSynced takes the present state of every bucket for seen.
func (s *Store) SayAllSynced() {
	for range 3 {
		s.sayOnce()()
	}
}

// RunChores does what is to be done until ctx ends.
func (s *Store) RunChores(ctx context.Context) { s.chores.run(ctx, s.opts.Log) }
