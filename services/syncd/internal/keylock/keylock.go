// Package keylock is a set of locks by name. A lock exists only while somebody holds it or waits for it.
package keylock

import (
	"context"
	"sync"
)

// Locks is a set of locks. The zero value is ready for use.
type Locks struct {
	mu    sync.Mutex
	locks map[string]*lock
}

type lock struct {
	held  chan struct{}
	users int
}

// Lock waits for the lock of the key, at most until ctx ends. Who got it calls unlock once. Waiters get it in the order of their calls.
func (l *Locks) Lock(ctx context.Context, key string) (unlock func(), err error) {
	l.mu.Lock()
	k := l.locks[key]
	if k == nil {
		if l.locks == nil {
			l.locks = make(map[string]*lock)
		}
		k = &lock{held: make(chan struct{}, 1)}
		l.locks[key] = k
	}
	k.users++
	l.mu.Unlock()
	select {
	case k.held <- struct{}{}:
		return func() {
			<-k.held
			l.leave(key, k)
		}, nil
	case <-ctx.Done():
		l.leave(key, k)
		return nil, ctx.Err()
	}
}

func (l *Locks) leave(key string, k *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.users--; k.users == 0 {
		delete(l.locks, key)
	}
}

// Len is how many locks are held or waited for.
func (l *Locks) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.locks)
}
