package store

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/podplane/podplane/internal/fault"
)

// A change is tried again while the bus is away, until the store's patience ends. An attempt without an answer may have been stored all
// the same: the next one finds out by looking at what is there.

// The pauses between attempts.
const (
	minRetryPause = 5 * time.Millisecond
	maxRetryPause = 100 * time.Millisecond
)

// patient calls try until it gives something else than Unavailable or the time is over. It goes on when the caller goes away: whoever was
// half way through a change must know how it ended.
func patient(ctx context.Context, patience time.Duration, try func(ctx context.Context, again bool) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	pause := minRetryPause
	for again := false; ; again = true {
		err := try(ctx, again)
		if err == nil || !(fault.Is(err, fault.Unavailable) || fault.Is(err, fault.DeadlineExceeded)) {
			return err
		}
		select {
		case <-ctx.Done():
			return unavailable(fault.New(fault.Unavailable, "the bus did not confirm the change within %v: %w", patience, err))
		case <-time.After(pause):
			pause = min(2*pause, maxRetryPause)
		}
	}
}

// create stores a value under a key that must not exist.
func create[T proto.Message](ctx context.Context, b Bucket[T], key string, value T, patience time.Duration) (rev uint64, err error) {
	err = patient(ctx, patience, func(ctx context.Context, again bool) error {
		var err error
		rev, err = b.Create(ctx, key, value)
		if again && fault.Is(err, fault.AlreadyExists) {
			rev, err = confirm(ctx, b, key, value, err)
		}
		return err
	})
	return rev, err
}

// update stores a value over the revision that it was made from.
func update[T proto.Message](ctx context.Context, b Bucket[T], key string, value T, from uint64, patience time.Duration) (rev uint64, err error) {
	err = patient(ctx, patience, func(ctx context.Context, again bool) error {
		var err error
		rev, err = b.Update(ctx, key, value, from)
		if again && fault.Is(err, fault.Conflict) {
			rev, err = confirm(ctx, b, key, value, err)
		}
		return err
	})
	return rev, err
}

// remove deletes a key. Deleting what is not there is no error.
func remove[T proto.Message](ctx context.Context, b Bucket[T], key string, patience time.Duration) error {
	return patient(ctx, patience, func(ctx context.Context, _ bool) error { return b.Delete(ctx, key) })
}

// confirm takes an attempt for stored when what is there is what it wrote.
func confirm[T proto.Message](ctx context.Context, b Bucket[T], key string, value T, refused error) (uint64, error) {
	there, rev, err := b.Lookup(ctx, key)
	switch {
	case fault.Is(err, fault.NotFound):
		return 0, refused
	case err != nil:
		return 0, fmt.Errorf("look up what became of the change: %w", err)
	case proto.Equal(there, value):
		return rev, nil
	}
	return 0, refused
}
