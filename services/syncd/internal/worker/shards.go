package worker

import (
	"context"
	"time"
)

const (
	// drainTimeout is how long actions that are under way may go on when their pod goes to another replica; then they are cancelled.
	drainTimeout = 1500 * time.Millisecond
	// loseTimeout bounds the wait for actions that were cancelled.
	loseTimeout = 5 * time.Second
	// heldAgain is when a pod whose shard was not held is looked at again.
	heldAgain = time.Second
)

// owns says whether a pod's shard was gained. mu is held.
func (m *Manager) owns(uid string) bool { return m.cfg.ShardOf == nil || m.mine[m.cfg.ShardOf(uid)] }

// held says whether, at this moment, anything may be done for a pod.
func (m *Manager) held(uid string) bool {
	return m.cfg.ShardOf == nil || m.cfg.Holds == nil || m.cfg.Holds(m.cfg.ShardOf(uid))
}

// Owns says whether the pod is this replica's to work on.
func (m *Manager) Owns(uid string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.owns(uid) && m.held(uid)
}

// Gain takes the pods of shards on, which are handed in by PodChanged afterwards; then Compare looks for what they left in the runtime.
func (m *Manager) Gain(shards []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range shards {
		m.mine[n] = true
	}
}

// Compare makes the next comparison with the runtime happen now.
func (m *Manager) Compare() {
	select {
	case m.look <- struct{}{}:
	default:
	}
}

// Lose ends the workers of the pods of shards. What runs goes on running. Nothing new is begun; actions under way may end
// until drainTimeout or the end of ctx, then they are cancelled. It returns when all have ended, or after loseTimeout: a call that the runtime does
// not give up is left to its own deadline, and what it comes to is found by whoever looks at the pod next.
func (m *Manager) Lose(ctx context.Context, shards []int) {
	var leaving []*worker
	m.mu.Lock()
	for _, n := range shards {
		delete(m.mine, n)
	}
	for uid, w := range m.workers {
		if m.owns(uid) {
			continue
		}
		delete(m.workers, uid)
		if w.cancel != nil { // else it was never started
			leaving = append(leaving, w)
			w.post(func(n *news) { n.leave = true })
		}
	}
	m.deps.Metrics.pods(len(m.workers))
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	for _, w := range leaving {
		select {
		case <-w.done:
			continue
		case <-ctx.Done():
		}
		w.cancel()
	}
	limit := time.NewTimer(loseTimeout)
	defer limit.Stop()
	for _, w := range leaving {
		select {
		case <-w.done: // calls end with their context
		case <-limit.C:
			m.log.Warn("an action on a pod that goes to another replica does not end; left behind")
			return
		}
	}
}
