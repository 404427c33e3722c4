package store

import (
	"context"
	"fmt"

	"github.com/podplane/podplane/internal/bus"
)

// CatchUp returns when the view has everything that was stored before the call, by whichever replica: pods and statuses.
func (s *Store) CatchUp(ctx context.Context) error {
	if _, err := s.catchUpPods(ctx); err != nil {
		return err
	}
	rev, err := s.status.LastRevision(ctx, bus.AllKeys)
	if err == nil {
		err = s.atStat.Wait(ctx, rev)
	}
	if err != nil {
		return fmt.Errorf("catch up with the stored statuses: %w", err)
	}
	return nil
}

// catchUpPods gives the last revision of any node's pods, which the view has.
func (s *Store) catchUpPods(ctx context.Context) (uint64, error) {
	rev, err := s.pods.LastRevision(ctx, bus.AllKeys)
	if err == nil {
		err = s.atPods.Wait(ctx, rev)
	}
	if err != nil {
		return 0, fmt.Errorf("catch up with the stored pods: %w", err)
	}
	return rev, nil
}
