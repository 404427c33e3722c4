package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/podplane/podplane/test/harness"
)

type bench struct {
	o       options
	report  *Report
	floor   *floor
	subject *subject
	posts   []float64
	// runtimePID is the container runtime's process.
	runtimePID int
}

// parts are what can be measured, in this order.
var parts = []string{partRest, partStarts, partExits, partGrowth}

const (
	partRest   = "rest"   // memory and CPU without pods and, once they are there, with those of partGrowth
	partStarts = "starts" // starts and deletions beside the floor
	partExits  = "exits"  // exits and restarts
	partGrowth = "growth" // what one pod more takes, the more there are
)

func (b *bench) all(ctx context.Context) error {
	if b.o.parts[partRest] {
		if err := b.atRest(ctx, 0); err != nil {
			return err
		}
	}
	if err := b.record(ctx); err != nil {
		return fmt.Errorf("record the requests of a pod: %w", err)
	}
	if b.o.parts[partStarts] {
		if err := b.allStarts(ctx); err != nil {
			return err
		}
	}
	if b.o.parts[partExits] {
		if err := b.exits(ctx); err != nil {
			return fmt.Errorf("exits: %w", err)
		}
	}
	if !b.o.parts[partGrowth] && !b.o.parts[partRest] {
		return nil
	}
	return b.full(ctx)
}

// full fills the node, and measures what one pod more takes on the way there, and rest when it is full.
func (b *bench) full(ctx context.Context) error {
	if b.o.parts[partGrowth] {
		if err := b.growth(ctx); err != nil {
			return fmt.Errorf("one pod more: %w", err)
		}
	}
	if err := b.subject.fill(ctx, fullPods); err != nil {
		return err
	}
	if b.o.parts[partRest] {
		if err := b.atRest(ctx, fullPods); err != nil {
			return err
		}
	}
	return b.subject.empty(ctx)
}

// record starts a pod and notes what Podplane asks the runtime for it: the floor asks for the same.
func (b *bench) record(ctx context.Context) error {
	if _, _, err := b.subject.start(ctx, 1); err != nil {
		return err
	}
	w, err := b.subject.watch(ctx, b.subject.set())
	if err != nil {
		return err
	}
	defer w.close()
	ids, err := w.waitRunning(1)
	if err != nil {
		return err
	}
	if b.floor.requests, err = recordRequests(ctx, b.floor.runtime, ids[0]); err != nil {
		return err
	}
	_, err = b.subject.remove(ctx)
	return err
}

// exits measures restarts, the floor's and Podplane's.
func (b *bench) exits(ctx context.Context) error {
	_, pods, err := b.floor.start(ctx, 1, 1)
	defer func() { _, _ = b.floor.remove(context.WithoutCancel(ctx), pods, 1) }()
	if err != nil {
		return err
	}
	var floors []float64
	for i := range b.o.exits {
		took, err := b.floor.restart(ctx, pods[0], uint32(i)+1)
		if err != nil {
			return err
		}
		floors = append(floors, milliseconds(took))
	}
	times, err := b.subject.exits(ctx, b.o.exits)
	if err != nil {
		return err
	}
	b.report.ExitToRuntimeEvent = summarize(times.toRuntimeEvent)
	b.report.RuntimeEventToFollower = summarize(times.toFollower)
	b.report.ExitToRestart = Restart{Floor: summarize(floors), Podplane: summarize(times.toRestart), Ratio: summarize(ratios(times.toRestart, floors))}
	return nil
}

// atRest measures memory, and CPU time over a while, with so many pods running.
func (b *bench) atRest(ctx context.Context, pods int) error {
	pids, err := b.pids()
	if err != nil {
		return err
	}
	// What the start left to do (garbage collection, statistics) is not rest.
	if err := pause(ctx, 10*time.Second); err != nil {
		return err
	}
	before, err := cpuTimes(pids)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%d pods at rest for %s\n", pods, b.o.rest)
	began := time.Now()
	if err := pause(ctx, b.o.rest); err != nil {
		return err
	}
	window := time.Since(began)
	after, err := cpuTimes(pids)
	if err != nil {
		return err
	}
	rest := Rest{Pods: pods, Window: window.Seconds(), Processes: map[string]float64{}}
	use := Usage{Pods: pods, Processes: map[string]Memory{}}
	for name, pid := range pids {
		s := (after[name] - before[name]).Seconds() * 60 / window.Seconds()
		rest.Processes[name] = s
		rest.Total += s
		m, err := memoryOf(pid)
		if err != nil {
			return err
		}
		use.Processes[name] = m
		use.Total.RSS += m.RSS
		use.Total.PSS += m.PSS
	}
	b.report.CPU = append(b.report.CPU, rest)
	b.report.Memory = append(b.report.Memory, use)
	return nil
}

func (b *bench) pids() (map[string]int, error) {
	pids := map[string]int{}
	for _, name := range processNames {
		pid, err := b.subject.stack.PID(name)
		if err != nil {
			return nil, fmt.Errorf("find process of %s: %w", name, err)
		}
		pids[name] = pid
	}
	return pids, nil
}

func cpuTimes(pids map[string]int) (map[string]time.Duration, error) {
	out := map[string]time.Duration{}
	for name, pid := range pids {
		t, err := cpuOf(pid)
		if err != nil {
			return nil, fmt.Errorf("CPU time of %s (process %s): %w", name, strconv.Itoa(pid), err)
		}
		out[name] = t
	}
	return out, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func version(ctx context.Context, s *harness.Stack) string {
	out, err := exec.CommandContext(ctx, s.Binary(), "--version").Output()
	if err != nil {
		return "podplane, version unknown"
	}
	return strings.TrimSpace(string(out))
}
