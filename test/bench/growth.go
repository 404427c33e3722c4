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
		one := newPairs()
		for range b.o.rounds {
			took, pods, err := b.floor.start(ctx, 1, 1)
			_, rerr := b.floor.remove(context.WithoutCancel(ctx), pods, 1)
			if err == nil {
				err = rerr
			}
			if err != nil {
				return fmt.Errorf("floor: %w", err)
			}
			one.floor = append(one.floor, milliseconds(took))
			if took, _, err = b.subject.start(ctx, 1); err != nil {
				return err
			}
			one.podplane = append(one.podplane, milliseconds(took))
			if _, err := b.subject.remove(ctx); err != nil {
				return err
			}
		}
		r := one.result(there+1, 1)
		fmt.Fprintf(os.Stderr, "pod %d: floor %.0f ms, podplane %.0f ms\n", r.Pods, r.Floor.P50, r.Podplane.P50)
		b.report.Growth = append(b.report.Growth, r)
	}
	return nil
}
