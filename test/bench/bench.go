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

// podCounts are how many pods are started at once, unless -pods says otherwise.
var podCounts = []int{1, 10, 30}

// restPods is with how many pods memory and CPU at rest are measured.
const restPods = 30

// parallelisms are tried for the floor; the one that finishes first counts.
var parallelisms = []int{1, 2, 4, 8, 16}

type bench struct {
	o       options
	report  *Report
	floor   *floor
	subject *subject
	posts   []float64
	// runtimePID is the container runtime's process.
	runtimePID int
}

func (b *bench) all(ctx context.Context) error {
	if err := b.atRest(ctx, 0); err != nil {
		return err
	}
	if err := b.record(ctx); err != nil {
		return fmt.Errorf("record the requests of a pod: %w", err)
	}
	if err := b.allStarts(ctx); err != nil {
		return err
	}
	if err := b.exits(ctx); err != nil {
		return fmt.Errorf("exits: %w", err)
	}
	if _, _, err := b.subject.start(ctx, restPods); err != nil {
		return err
	}
	if err := b.atRest(ctx, restPods); err != nil {
		return err
	}
	return b.subject.remove(ctx)
}

// record starts a pod and notes what Podplane asks the runtime for it: the floor asks for the same.
func (b *bench) record(ctx context.Context) error {
	if _, _, err := b.subject.start(ctx, 1); err != nil {
		return err
	}
	w, err := b.subject.watch(ctx, fmt.Sprintf("run=%d", b.subject.run))
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
	return b.subject.remove(ctx)
}

func (b *bench) allStarts(ctx context.Context) error {
	for _, n := range b.o.pods {
		if err := b.starts(ctx, n); err != nil {
			return fmt.Errorf("start of %d pods: %w", n, err)
		}
	}
	b.report.ApplyTo201 = summarize(b.posts)
	return nil
}

// starts compares the start of n pods with the floor, in turn.
func (b *bench) starts(ctx context.Context, n int) error {
	parallel, err := b.bestParallelism(ctx, n)
	if err != nil {
		return err
	}
	var floors, subjects []float64
	work := StartCPU{Floor: map[string]float64{}, Podplane: map[string]float64{}}
	for round := range b.o.rounds {
		var f, took time.Duration
		var posts []time.Duration
		var pods []*floorPod
		err := b.account(work.Floor, n, func() (err error) {
			f, pods, err = b.floor.start(ctx, n, parallel)
			return err
		})
		if rerr := b.floor.remove(context.WithoutCancel(ctx), pods); err == nil {
			err = rerr
		}
		if err != nil {
			return err
		}
		err = b.account(work.Podplane, n, func() (err error) {
			took, posts, err = b.subject.start(ctx, n)
			return err
		})
		if err != nil {
			return err
		}
		if err := b.subject.remove(ctx); err != nil {
			return err
		}
		for _, p := range posts {
			b.posts = append(b.posts, milliseconds(p))
		}
		floors, subjects = append(floors, milliseconds(f)), append(subjects, milliseconds(took))
		fmt.Fprintf(os.Stderr, "%d pods, round %d: floor %.0f ms, podplane %.0f ms\n", n, round+1, milliseconds(f), milliseconds(took))
	}
	b.report.Starts = append(b.report.Starts, Start{
		Pods: n, FloorParallelism: parallel, Floor: summarize(floors), Podplane: summarize(subjects),
		Ratio: summarize(ratios(subjects, floors)), CPU: work,
	})
	return nil
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
	each := func(d time.Duration) float64 { return milliseconds(d) / float64(pods*b.o.rounds) }
	for name := range pids {
		sum[name] += each(after[name] - before[name])
	}
	sum["host"] += each(hostAfter - host)
	return nil
}

func (b *bench) floorOnce(ctx context.Context, n, parallel int) (time.Duration, error) {
	took, pods, err := b.floor.start(ctx, n, parallel)
	if rerr := b.floor.remove(context.WithoutCancel(ctx), pods); err == nil {
		err = rerr
	}
	return took, err
}

// bestParallelism finds at how many pods at a time the floor finishes first.
func (b *bench) bestParallelism(ctx context.Context, n int) (int, error) {
	best, bestTime := 1, time.Duration(0)
	for _, p := range parallelisms {
		if p > n {
			break
		}
		took, err := b.floorOnce(ctx, n, p)
		if err != nil {
			return 0, err
		}
		fmt.Fprintf(os.Stderr, "%d pods, floor with %d at a time: %.0f ms\n", n, p, milliseconds(took))
		if bestTime == 0 || took < bestTime {
			best, bestTime = p, took
		}
	}
	return best, nil
}

// exits measures restarts, the floor's and Podplane's.
func (b *bench) exits(ctx context.Context) error {
	_, pods, err := b.floor.start(ctx, 1, 1)
	defer func() { _ = b.floor.remove(context.WithoutCancel(ctx), pods) }()
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
