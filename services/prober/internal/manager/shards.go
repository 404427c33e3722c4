package manager

import (
	"context"
	"time"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// heldAgain is when a probe that was due while its shard was not held is looked at again.
const heldAgain = time.Second

// owns says whether a pod's shard was gained.
func (m *Manager) owns(uid string) bool { return m.cfg.ShardOf == nil || m.mine[m.cfg.ShardOf(uid)] }

// held says whether, at this moment, anything may be done for a pod.
func (m *Manager) held(uid string) bool {
	return m.cfg.ShardOf == nil || m.cfg.Holds == nil || m.cfg.Holds(m.cfg.ShardOf(uid))
}

// Gain begins to probe the pods of shards, going on from the verdicts that their records say.
func (m *Manager) Gain(ctx context.Context, shards []int, verdicts map[string]*podplanev1.ProbeRecord) error {
	return m.ask(ctx, func() {
		for _, n := range shards {
			m.mine[n] = true
		}
		for key, r := range verdicts {
			m.restored[key] = r
		}
		for uid, p := range m.others {
			if m.owns(uid) {
				delete(m.others, uid)
				m.observe(m.add(p))
			}
		}
		if !m.synced.Load() {
			return // Synced does it
		}
		for key := range m.restored {
			m.cfg.Writer.Remove(key)
		}
		clear(m.restored)
	})
}

// Lose ends the probes of the pods of shards; their verdicts stay as they are.
func (m *Manager) Lose(ctx context.Context, shards []int) error {
	return m.ask(ctx, func() {
		for _, n := range shards {
			delete(m.mine, n)
		}
		for uid, e := range m.pods {
			if !m.owns(uid) {
				m.drop(e)
				m.others[uid] = e.pod
			}
		}
		for key, r := range m.restored {
			if !m.owns(r.GetUid()) {
				delete(m.restored, key)
			}
		}
	})
}
