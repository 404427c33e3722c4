package daemon_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/internal/fault"
)

var quiet = slog.New(slog.DiscardHandler)

func TestComponentsStopInReverse(t *testing.T) {
	g := daemon.NewGroup(t.Context(), quiet)
	var mu sync.Mutex
	var order []string
	component := func(name string) {
		g.Go(name, func(ctx context.Context) error {
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			order = append(order, name)
			return ctx.Err()
		})
	}
	for _, n := range []string{"a", "b", "c"} {
		component(n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Wait(ctx, time.Minute); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(order, []string{"c", "b", "a"}) {
		t.Errorf("stopped in order %v", order)
	}
}

func TestAnyEndEndsAll(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		name string
		err  error
	}{{"with an error", boom}, {"without", nil}} {
		t.Run(c.name, func(t *testing.T) {
			g := daemon.NewGroup(t.Context(), quiet)
			stopped := false
			g.Go("other", func(ctx context.Context) error {
				<-ctx.Done()
				stopped = true
				return nil
			})
			g.Go("faulty", func(context.Context) error { return c.err })
			err := g.Wait(t.Context(), time.Minute)
			if err == nil || !strings.HasPrefix(err.Error(), "faulty: ") || (c.err != nil && !errors.Is(err, boom)) || !stopped {
				t.Errorf("got %v, other stopped: %v", err, stopped)
			}
		})
	}
}

func TestWhatHangsIsNamedAndLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := daemon.NewGroup(t.Context(), quiet)
		release := make(chan struct{})
		g.Go("below", func(ctx context.Context) error { <-ctx.Done(); return nil })
		g.Go("hanging", func(context.Context) error { <-release; return nil })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := g.Wait(ctx, 5*time.Second)
		if !fault.Is(err, fault.DeadlineExceeded) || !strings.Contains(err.Error(), "below, hanging") {
			t.Errorf("got %v", err)
		}
		g.Go("late", func(context.Context) error { t.Error("started in a stopping group"); return nil })
		close(release)
	})
}
