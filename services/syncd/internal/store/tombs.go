package store

import "time"

// tombTTL is longer than any change can be under way.
const tombTTL = time.Minute

// tombs remember for a while at which revision keys were deleted: news about an older revision that arrives later, by the watch or by a
// change of ours that was slower than its own removal, must not bring them back.
type tombs[K comparable] struct {
	at map[K]tomb
}

type tomb struct {
	rev uint64
	at  time.Time
}

func newTombs[K comparable]() tombs[K] { return tombs[K]{at: make(map[K]tomb)} }

// bury remembers that the key was deleted at or after a revision.
func (t tombs[K]) bury(k K, rev uint64, now time.Time) {
	if len(t.at) >= 256 {
		for old, x := range t.at {
			if now.Sub(x.at) > tombTTL {
				delete(t.at, old)
			}
		}
	}
	t.at[k] = tomb{rev: max(rev, t.at[k].rev), at: now}
}

// holds says whether a revision of the key is known to be deleted.
func (t tombs[K]) holds(k K, rev uint64, now time.Time) bool {
	x, ok := t.at[k]
	return ok && rev <= x.rev && now.Sub(x.at) <= tombTTL
}
