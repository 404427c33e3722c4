package store

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/podplane/podplane/internal/fault"
)

// chores are deletions that must happen some time and that nobody waits for. There is at most one for each key.
type chores struct {
	mu   *sync.Mutex
	todo map[string]func(context.Context) error
	wake chan struct{}
}

func newChores() chores {
	return chores{mu: new(sync.Mutex), todo: make(map[string]func(context.Context) error), wake: make(chan struct{}, 1)}
}

func (c *chores) add(key string, do func(context.Context) error) {
	c.mu.Lock()
	c.todo[key] = do
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// run does what is to be done until ctx ends; what fails is tried again each second.
func (c *chores) run(ctx context.Context, log *slog.Logger) {
	for {
		left := c.pass(ctx, log)
		var again <-chan time.Time
		if left {
			again = time.After(time.Second)
		}
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-again:
		}
	}
}

func (c *chores) pass(ctx context.Context, log *slog.Logger) (left bool) {
	c.mu.Lock()
	todo := make(map[string]func(context.Context) error, len(c.todo))
	for k, f := range c.todo {
		todo[k] = f
	}
	clear(c.todo)
	c.mu.Unlock()
	for k, f := range todo {
		if err := f(ctx); err != nil {
			log.DebugContext(ctx, "a clean-up of the bus has to wait", slog.String("what", k), slog.Any("error", err))
			c.mu.Lock()
			if _, newer := c.todo[k]; !newer {
				c.todo[k] = f
			}
			c.mu.Unlock()
			left = true
		}
	}
	return left
}

// settled takes for done what somebody else has done or overtaken.
func settled(err error) error {
	if fault.Is(err, fault.Conflict) || fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// keyLock lets one holder at a time have a key. The zero value is ready.
type keyLock struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// lock waits for the key or for the end of ctx.
func (l *keyLock) lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		l.mu.Lock()
		if l.held == nil {
			l.held = make(map[string]chan struct{})
		}
		free, taken := l.held[key]
		if !taken {
			mine := make(chan struct{})
			l.held[key] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				delete(l.held, key)
				l.mu.Unlock()
				close(mine)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-free:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
