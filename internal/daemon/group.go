package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/podplane/podplane/internal/fault"
)

// Group runs components and stops them in the reverse order of their start. Make one with NewGroup; it is used once.
type Group struct {
	base context.Context
	log  *slog.Logger

	mu         sync.Mutex
	components []*component
	stopping   bool
	first      error         // what the component that ended by itself said
	failed     chan struct{} // closed with first set
}

type component struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
}

// NewGroup makes an empty group. Components get the values of ctx, not its end.
func NewGroup(ctx context.Context, log *slog.Logger) *Group {
	return &Group{base: context.WithoutCancel(ctx), log: log, failed: make(chan struct{})}
}

// Go starts a component. It runs until its context ends; if it ends before, the group ends. In a group that is stopping it does nothing.
func (g *Group) Go(name string, run func(context.Context) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopping {
		return
	}
	ctx, cancel := context.WithCancel(g.base)
	c := &component{name: name, cancel: cancel, done: make(chan struct{})}
	g.components = append(g.components, c)
	go func() {
		defer close(c.done)
		defer cancel()
		err := run(ctx)
		g.ended(name, err, ctx.Err() != nil)
	}()
}

func (g *Group) ended(name string, err error, asked bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if asked {
		if err != nil && !errors.Is(err, context.Canceled) {
			g.log.Warn("component ended with an error while stopping", "component", name, "error", err)
		}
		return
	}
	if err == nil {
		err = errors.New("ended by itself")
	}
	if g.first == nil {
		g.first = fmt.Errorf("%s: %w", name, err)
		close(g.failed)
	}
}

// Wait waits until ctx or a component ends, then stops all of them within timeout. It returns what the component that ended by itself
// said, and which components did not stop.
func (g *Group) Wait(ctx context.Context, timeout time.Duration) error {
	select {
	case <-ctx.Done():
	case <-g.failed:
	}
	g.mu.Lock()
	g.stopping = true
	components, first := g.components, g.first
	g.mu.Unlock()
	return errors.Join(first, g.stop(components, timeout))
}

func (g *Group) stop(components []*component, timeout time.Duration) error {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	for i := len(components) - 1; i >= 0; i-- {
		components[i].cancel()
		select {
		case <-components[i].done:
		case <-deadline.C:
			return leftBehind(components[:i+1], timeout)
		}
	}
	return nil
}

// leftBehind cancels everything that is left and names what hangs.
func leftBehind(components []*component, timeout time.Duration) error {
	var names []string
	for _, c := range components {
		c.cancel()
		names = append(names, c.name)
	}
	return fault.New(fault.DeadlineExceeded, "still stopping after %s: %s", timeout, strings.Join(names, ", "))
}
