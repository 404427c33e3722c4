package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// podCounts are how many pods are started, and deleted, at once, unless -pods says otherwise.
var podCounts = []int{1, 10, 30, fullPods}

// fullPods is how many pods a full node has: the kubelet's default limit.
const fullPods = 110

// parallelisms are tried for the floor; the one that finishes first counts.
var parallelisms = []int{1, 2, 4, 8, 16, 32}

// fewest of parallelisms that is tried with more than so many pods: fewer at a time were never faster.
const (
	manyPods       = 30
	fewestWithMany = 2
)

// allStarts measures starts and deletions of all numbers of pods.
func (b *bench) allStarts(ctx context.Context) error {
	for _, n := range b.o.pods {
		if err := b.starts(ctx, n); err != nil {
			return fmt.Errorf("start of %d pods: %w", n, err)
		}
	}
	b.report.ApplyTo201 = summarize(b.posts)
	return nil
}

// parallelism is how many pods the floor starts and deletes at a time.
type parallelism struct{ start, remove int }

// pairs are measurements that were taken in turn, in ms, with the CPU time that they cost.
type pairs struct {
	floor, podplane []float64
	cpu             StartCPU
}

func newPairs() *pairs {
	return &pairs{cpu: StartCPU{Floor: map[string]float64{}, Podplane: map[string]float64{}}}
}

func (p *pairs) result(pods, parallel int) Start {
	return Start{
		Pods: pods, FloorParallelism: parallel, Floor: summarize(p.floor), Podplane: summarize(p.podplane),
		Ratio: summarize(ratios(p.podplane, p.floor)), CPU: p.cpu,
	}
}

// roundsOf is how often n pods are measured: many take long, and differ less.
func (b *bench) roundsOf(n int) int {
	if n > manyPods {
		return min(b.o.rounds, b.o.manyRounds)
	}
	return b.o.rounds
}

// starts compares the start, and the deletion, of n pods with the floor, in turn.
func (b *bench) starts(ctx context.Context, n int) error {
	parallel, err := b.bestParallelism(ctx, n)
	if err != nil {
		return err
	}
	starts, removals := newPairs(), newPairs()
	for round := range b.roundsOf(n) {
		if err := b.floorRound(ctx, n, parallel, starts, removals); err != nil {
			return fmt.Errorf("floor: %w", err)
		}
		if err := b.podplaneRound(ctx, n, starts, removals); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%d pods, round %d: start: floor %.0f ms, podplane %.0f ms; deletion: floor %.0f ms, podplane %.0f ms\n",
			n, round+1, starts.floor[round], starts.podplane[round], removals.floor[round], removals.podplane[round])
	}
	b.report.Starts = append(b.report.Starts, starts.result(n, parallel.start))
	b.report.Removals = append(b.report.Removals, removals.result(n, parallel.remove))
	return nil
}

func (b *bench) floorRound(ctx context.Context, n int, parallel parallelism, starts, removals *pairs) error {
	var took time.Duration
	var pods []*floorPod
	err := b.account(starts.cpu.Floor, n, func() (err error) {
		took, pods, err = b.floor.start(ctx, n, parallel.start)
		return err
	})
	if err != nil {
		_, _ = b.floor.remove(context.WithoutCancel(ctx), pods, parallel.remove) // the start's error says more
		return err
	}
	starts.floor = append(starts.floor, milliseconds(took))
	err = b.account(removals.cpu.Floor, n, func() (err error) {
		took, err = b.floor.remove(context.WithoutCancel(ctx), pods, parallel.remove)
		return err
	})
	removals.floor = append(removals.floor, milliseconds(took))
	return err
}

func (b *bench) podplaneRound(ctx context.Context, n int, starts, removals *pairs) error {
	var took time.Duration
	var posts []time.Duration
	err := b.account(starts.cpu.Podplane, n, func() (err error) {
		took, posts, err = b.subject.start(ctx, n)
		return err
	})
	if err != nil {
		return err
	}
	starts.podplane = append(starts.podplane, milliseconds(took))
	for _, p := range posts {
		b.posts = append(b.posts, milliseconds(p))
	}
	err = b.account(removals.cpu.Podplane, n, func() (err error) {
		took, err = b.subject.remove(ctx)
		return err
	})
	removals.podplane = append(removals.podplane, milliseconds(took))
	return err
}

// bestParallelism finds with how many pods at a time the floor finishes first.
func (b *bench) bestParallelism(ctx context.Context, n int) (parallelism, error) {
	best := parallelism{1, 1}
	var bestStart, bestRemove time.Duration
	for _, p := range parallelisms {
		if n > manyPods && p < fewestWithMany {
			continue
		}
		if p > n {
			break
		}
		start, pods, err := b.floor.start(ctx, n, p)
		remove, rerr := b.floor.remove(context.WithoutCancel(ctx), pods, p)
		if err == nil {
			err = rerr
		}
		if err != nil {
			return best, fmt.Errorf("floor: %w", err)
		}
		fmt.Fprintf(os.Stderr, "%d pods, floor with %d at a time: start %.0f ms, deletion %.0f ms\n", n, p, milliseconds(start), milliseconds(remove))
		if bestStart == 0 || start < bestStart {
			best.start, bestStart = p, start
		}
		if bestRemove == 0 || remove < bestRemove {
			best.remove, bestRemove = p, remove
		}
	}
	return best, nil
}

// account adds the CPU time that each process, and the whole host, used while do ran, in ms a pod and round.
func (b *bench) account(sum map[string]float64, pods int, do func() error) error {
	pids, err := b.pids()
	if err != nil {
		return err
	}
	pids["runtime"], pids["bench"] = b.runtimePID, os.Getpid()
	before, err := cpuTimes(pids)
	if err != nil {
		return err
	}
	host, err := hostCPU()
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	after, err := cpuTimes(pids)
	if err != nil {
		return err
	}
	hostAfter, err := hostCPU()
	if err != nil {
		return err
	}
	each := func(d time.Duration) float64 { return milliseconds(d) / float64(pods*b.roundsOf(pods)) }
	for name := range pids {
		sum[name] += each(after[name] - before[name])
	}
	sum["host"] += each(hostAfter - host)
	return nil
}
