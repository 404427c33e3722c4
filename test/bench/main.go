// Command bench measures Podplane beside the bare CRI calls that any node agent
// has to make (the floor), on a runtime of its own, and prints the ratios.
//
// Floor and Podplane run in turn, A B A B, because the speed of a shared host
// drifts; what is reported are medians of the ratios of such pairs. Times are
// taken by one clock: the runtime's own start and exit times.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/hostruntime"
	"github.com/podplane/podplane/test/harness"
)

// processNames are what is measured: everything that `podplane up` starts, and itself.
var processNames = append([]string{"up", "nats"}, harness.Services...)

type options struct {
	out    string
	rounds int
	// manyRounds bounds the rounds with many pods.
	manyRounds int
	exits      int
	rest       time.Duration
	pods       []int
	parts      map[string]bool
}

func main() {
	o := options{pods: podCounts, parts: map[string]bool{}}
	for _, p := range parts {
		o.parts[p] = true
	}
	flag.StringVar(&o.out, "out", "bench.json", "where to write the figures as JSON")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of floor and Podplane in turn")
	flag.IntVar(&o.manyRounds, "many-rounds", 3, fmt.Sprintf("at most so many rounds with more than %d pods", manyPods))
	flag.IntVar(&o.exits, "exits", 30, "containers whose exit is measured")
	flag.DurationVar(&o.rest, "rest", time.Minute, "how long CPU time at rest is measured")
	flag.Func("pods", "how many pods are started and deleted at once, such as 1,10,30,110 (the default)", func(v string) (err error) {
		o.pods, err = parseCounts(v)
		return err
	})
	flag.Func("parts", "what is measured, of "+strings.Join(parts, ",")+" (the default)", func(v string) (err error) {
		o.parts, err = parseParts(v)
		return err
	})
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	local, err := harness.FindUp(".local")
	if err != nil {
		return fmt.Errorf("%w: run `make runtime images build` first", err)
	}
	dir, err := os.MkdirTemp("", "podplane-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	rc := hostruntime.DefaultConfig(local)
	rc.Root = filepath.Join(dir, "containerd")
	rc.State = fmt.Sprintf("/run/ppbench%d", os.Getpid())
	rc.Bridge = fmt.Sprintf("ppb%d", os.Getpid())
	rc.PodCIDR = "10.187.0.0/16"
	rt, err := hostruntime.Start(ctx, rc)
	if err != nil {
		return err
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		_ = rt.Close()
		if perr := hostruntime.Purge(cctx, rc); perr != nil && err == nil {
			err = perr
		}
		removeCgroups(cgroupRoot())
	}()
	return measure(ctx, o, dir, rt)
}

// cgroupRoot is the cgroup of all pods of this run.
func cgroupRoot() string { return fmt.Sprintf("/podplane-bench-%d", os.Getpid()) }

func measure(ctx context.Context, o options, dir string, rt *hostruntime.Runtime) (err error) {
	endpoint := rt.Endpoint()
	client, err := cri.Dial(ctx, endpoint, cri.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stack, err := harness.New(harness.Options{
		CRIEndpoint: endpoint, Node: "bench", Root: filepath.Join(dir, "podplane"), CgroupRoot: cgroupRoot(),
	})
	if err != nil {
		return err
	}
	cold, err := coldStarts(ctx, stack)
	if err != nil {
		return err
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		if cerr := stack.Close(cctx); cerr != nil && err == nil {
			err = cerr
		}
	}()
	b := &bench{
		o: o, report: newReport(version(ctx, stack)), runtimePID: rt.PID(),
		floor:   &floor{runtime: runtimeapi.NewRuntimeServiceClient(conn)},
		subject: &subject{stack: stack, cri: client, image: hostruntime.DemoImage},
	}
	b.report.ColdStart = summarize(cold)
	err = b.all(ctx)
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, stack.Logs())
	}
	// What was measured before a failure, or an interruption, counts.
	return errors.Join(err, b.report.writeJSON(o.out), b.report.print(os.Stdout))
}

// coldStartRuns is how often the cold start is measured.
const coldStartRuns = 5

// coldStarts starts the stack a few times and leaves it running.
func coldStarts(ctx context.Context, stack *harness.Stack) ([]float64, error) {
	var out []float64
	for i := range coldStartRuns {
		began := time.Now()
		if err := stack.Start(ctx); err != nil {
			return nil, err
		}
		out = append(out, milliseconds(time.Since(began)))
		if i == coldStartRuns-1 {
			break
		}
		if err := stack.Stop(ctx); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// parseCounts reads numbers separated by commas.
func parseCounts(v string) ([]int, error) {
	var out []int
	for _, f := range strings.Split(v, ",") {
		n, err := strconv.Atoi(f)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q: want numbers from 1 up, separated by commas", v)
		}
		out = append(out, n)
	}
	return out, nil
}

// parseParts reads names of parts separated by commas.
func parseParts(v string) (map[string]bool, error) {
	out := map[string]bool{}
	for _, f := range strings.Split(v, ",") {
		if !slices.Contains(parts, f) {
			return nil, fmt.Errorf("%q: want some of %s, separated by commas", f, strings.Join(parts, ","))
		}
		out[f] = true
	}
	return out, nil
}
