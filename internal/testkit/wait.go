package testkit

import (
	"context"
	"testing"
	"time"
)

const eventuallyPoll = 20 * time.Millisecond

// Eventually waits until the condition returns nil and fails the test with its last error when the context ends first. The context
// should have a deadline. It polls, and is for tests against real processes only: what runs in the test's own process is
// waited for by channel or in a synctest bubble.
func Eventually(ctx context.Context, t testing.TB, what string, condition func(context.Context) error) {
	t.Helper()
	ticker := time.NewTicker(eventuallyPoll)
	defer ticker.Stop()
	start := time.Now()
	var last error
	for {
		err := condition(ctx)
		if err == nil {
			return
		}
		// That the context ended says less than what was wrong before.
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %v", what, time.Since(start).Round(time.Millisecond), last)
		case <-ticker.C:
		}
	}
}
