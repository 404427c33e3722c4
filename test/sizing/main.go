// Command sizing measures what Podplane itself needs with no pods and with many: memory (PSS), CPU time, the bus' directory and its journal. It
// prints the rows of the sizing table in docs/operations.md. Run it by `make sizing`, on a host with nothing else to do.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/hostruntime"
	"github.com/podplane/podplane/test/harness"
)

const (
	namespace  = "sizing"
	settle     = 15 * time.Second
	endTimeout = 3 * time.Minute
	userHZ     = 100 // of the times in /proc/<pid>/stat
)

func main() {
	rest := flag.Duration("rest", time.Minute, "how long CPU time at rest is measured")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *rest); err != nil {
		fmt.Fprintln(os.Stderr, "sizing:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, rest time.Duration) (err error) {
	local, err := harness.FindUp(".local")
	if err != nil {
		return fmt.Errorf("%w: run `make runtime images build` first", err)
	}
	dir, err := os.MkdirTemp("", "podplane-sizing-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	rc := hostruntime.DefaultConfig(local)
	rc.Root, rc.State = filepath.Join(dir, "containerd"), fmt.Sprintf("/run/ppsize%d", os.Getpid())
	rc.Bridge, rc.PodCIDR = fmt.Sprintf("pps%d", os.Getpid()), "10.186.0.0/16"
	rt, err := hostruntime.Start(ctx, rc)
	if err != nil {
		return err
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		err = errors.Join(err, rt.Close(), hostruntime.Purge(ending, rc))
	}()
	cgroup := fmt.Sprintf("/podplane-sizing-%d", os.Getpid())
	defer func() { err = errors.Join(err, removeCgroups(cgroup)) }()
	s, err := harness.New(harness.Options{CRIEndpoint: rt.Endpoint(), Node: "sizing", Root: filepath.Join(dir, "podplane"), CgroupRoot: cgroup})
	if err != nil {
		return err
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		err = errors.Join(err, s.Close(ending))
	}()
	if err := s.Start(ctx); err != nil {
		return err
	}
	fmt.Println("| pods | memory (PSS) | CPU, of one core | directory of the bus | journal, for each pod that starts |\n| --- | --- | --- | --- | --- |")
	have := 0
	for _, pods := range []int{0, 30, 100} {
		before, err := journal(ctx, s)
		if err != nil {
			return err
		}
		if err := grow(ctx, s, have, pods); err != nil {
			return err
		}
		after, err := journal(ctx, s)
		if err != nil {
			return err
		}
		if err := row(ctx, s, rest, pods, float64(after-before)/float64(max(pods-have, 1))); err != nil {
			return err
		}
		have = pods
	}
	return nil
}

// removeCgroups removes what is left of a cgroup, empty by now, in every hierarchy, the deepest first.
func removeCgroups(name string) error {
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		tops, err := filepath.Glob(pattern + name)
		if err != nil {
			return err
		}
		for _, top := range tops {
			if err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					found = append(found, path)
				}
				return err
			}); err != nil {
				return err
			}
		}
	}
	var errs []error
	for _, path := range slices.Backward(found) {
		errs = append(errs, os.Remove(path))
	}
	return errors.Join(errs...)
}

// grow starts pods until there are so many, and waits until all are Ready.
func grow(ctx context.Context, s *harness.Stack, from, to int) error {
	for i := from; i < to; i++ {
		manifest := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: p%d}\nspec:\n  containers:\n  - name: web\n    image: %s\n    readinessProbe: {httpGet: {path: /healthz, port: 8080}}\n", i, hostruntime.DemoImage)
		if _, err := s.Apply(ctx, namespace, manifest); err != nil {
			return err
		}
	}
	for i := from; i < to; i++ {
		if _, err := s.WaitReady(ctx, namespace, "p"+strconv.Itoa(i)); err != nil {
			return err
		}
	}
	return nil
}

// row measures and prints one row.
func row(ctx context.Context, s *harness.Stack, rest time.Duration, pods int, perPod float64) error {
	if err := pause(ctx, settle); err != nil {
		return err
	}
	began, cpu, _, err := use(s)
	if err != nil {
		return err
	}
	if err := pause(ctx, rest); err != nil {
		return err
	}
	ended, cpuThen, pss, err := use(s)
	if err != nil {
		return err
	}
	var disk int64
	err = filepath.WalkDir(filepath.Join(s.Root(), "nats"), func(path string, d fs.DirEntry, err error) error {
		var st syscall.Stat_t
		if err == nil && syscall.Lstat(path, &st) == nil { // what goes meanwhile counts for nothing
			disk += st.Blocks * 512
		}
		return nil
	})
	if err != nil {
		return err
	}
	journaled := "-"
	if pods > 0 {
		journaled = fmt.Sprintf("%.1f KiB", perPod/1024)
	}
	share := (cpuThen - cpu).Seconds() / ended.Sub(began).Seconds() * 100
	fmt.Printf("| %d | %.0f MiB | %.1f %% | %.1f MiB | %s |\n", pods, pss/1024, share, float64(disk)/(1<<20), journaled)
	return nil
}

// use sums over Podplane's processes their CPU time and their PSS in KiB.
func use(s *harness.Stack) (now time.Time, cpu time.Duration, pss float64, err error) {
	for _, name := range append([]string{"nats", "up"}, harness.Services...) {
		pid, err := s.PID(name)
		if err != nil {
			return now, 0, 0, fmt.Errorf("find process of %s: %w", name, err)
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return now, 0, 0, err
		}
		memory, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return now, 0, 0, err
		}
		_, rest, _ := bytes.Cut(stat, []byte(") "))
		if f := bytes.Fields(rest); len(f) > 12 {
			for _, ticks := range f[11:13] {
				n, err := strconv.ParseInt(string(ticks), 10, 64)
				if err != nil {
					return now, 0, 0, err
				}
				cpu += time.Duration(n) * time.Second / userHZ
			}
		}
		for line := range strings.Lines(string(memory)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
				n, err := strconv.ParseFloat(f[1], 64)
				if err != nil {
					return now, 0, 0, err
				}
				pss += n
			}
		}
	}
	return time.Now(), cpu, pss, nil
}

// journal is how many bytes the journal of lifecycle events has.
func journal(ctx context.Context, s *harness.Stack) (size uint64, err error) {
	c, err := bus.Connect(ctx, bus.Config{URL: s.Info().NATSURL, Instance: "sizing", NKeySeedFile: filepath.Join(s.RunDir(), "keys", "admin.nk")})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	list, err := c.Extents(ctx)
	if err != nil {
		return 0, err
	}
	for _, e := range list {
		if e.Name == bus.StreamLifecycle {
			return e.Bytes, nil
		}
	}
	return 0, errors.New("there is no journal")
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
