package bus_test

import (
	"context"
	"errors"
	"testing"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// TestCatchUp: a watch that is held back has not caught up before it has seen what was stored, a deletion too; and once it has, it has.
func TestCatchUp(t *testing.T) {
	c := bustest.New(t).Connect("", "")
	b, err := bus.Open(t.Context(), c, bus.Status)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	progress, step, watched := bus.NewProgress(), make(chan struct{}), make(chan error, 1)
	seen := map[string]bool{}
	go func() {
		watched <- b.Watch(ctx, bus.NodePattern("n"), bus.Handler[*podplanev1.StatusRecord]{
			Apply:   func(e bus.Entry[*podplanev1.StatusRecord]) { <-step; seen[e.Key] = !e.Deleted },
			Reached: progress.Set,
		})
	}()
	defer func() { cancel(); <-watched }()
	if err := b.CatchUp(ctx, bus.NodePattern("n"), progress); err != nil {
		t.Fatalf("with nothing stored: %v", err)
	}
	for _, uid := range []string{"1", "2"} {
		if _, err := b.Put(ctx, bus.PodKey("n", uid), &podplanev1.StatusRecord{Uid: uid}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Put(ctx, bus.PodKey("elsewhere", "3"), &podplanev1.StatusRecord{Uid: "3"}); err != nil {
		t.Fatal(err)
	}
	caughtUp := make(chan error, 1)
	go func() { caughtUp <- b.CatchUp(ctx, bus.NodePattern("n"), progress) }()
	step <- struct{}{}
	select {
	case err := <-caughtUp:
		t.Fatalf("caught up with one of two records seen: %v", err)
	case step <- struct{}{}:
	}
	if err := <-caughtUp; err != nil || !seen[bus.PodKey("n", "1")] || !seen[bus.PodKey("n", "2")] {
		t.Fatalf("caught up: %v; seen %v", err, seen)
	}
	if err := b.Delete(ctx, bus.PodKey("n", "1")); err != nil {
		t.Fatal(err)
	}
	close(step)
	if err := b.CatchUp(ctx, bus.NodePattern("n"), progress); err != nil || seen[bus.PodKey("n", "1")] {
		t.Fatalf("after a deletion: %v; seen %v", err, seen)
	}
	ended, end := context.WithCancel(ctx)
	end()
	if err := bus.NewProgress().Wait(ended, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("wait with a context that has ended: %v", err)
	}
}
