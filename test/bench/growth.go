package main

import (
	"context"
	"fmt"
	"os"
)

// growthAt are how many pods are there when one more is started.
var growthAt = []int{9, 49, fullPods - 1}

// growth measures what one pod more takes when so many are there, beside the floor for the same on the same runtime, which may itself
// become slower the more it has.
func (b *bench) growth(ctx context.Context) error {
	for _, there := range growthAt {
		if err := b.subject.fill(ctx, there); err != nil {
			return err
		}
		one, gone := newPairs(), newPairs()
		for range b.o.rounds {
			if err := b.floorRound(ctx, 1, parallelism{1, 1}, one, gone); err != nil {
				return fmt.Errorf("floor: %w", err)
			}
			if err := b.podplaneRound(ctx, 1, one, gone); err != nil {
				return err
			}
		}
		start, deletion := one.result(there+1, 1), gone.result(there+1, 1)
		fmt.Fprintf(os.Stderr, "pod %d: start: floor %.0f ms, podplane %.0f ms; deletion: floor %.0f ms, podplane %.0f ms\n",
			start.Pods, start.Floor.P50, start.Podplane.P50, deletion.Floor.P50, deletion.Podplane.P50)
		b.report.Growth = append(b.report.Growth, start)
		b.report.GrowthRemovals = append(b.report.GrowthRemovals, deletion)
	}
	return nil
}
