package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is all that was measured in one run.
type Report struct {
	Time    time.Time `json:"time"`
	Version string    `json:"version"`
	Kernel  string    `json:"kernel"`
	CPUs    int       `json:"cpus"`
	// ColdStart: from the start of the binary until NATS and all six services are ready, ms.
	ColdStart Summary `json:"coldStartMs"`
	// Starts by number of pods.
	Starts []Start `json:"starts"`
	// Removals: deletions of so many pods at once, beside the calls that stop and remove them.
	Removals []Start `json:"removals"`
	// Growth: the start of one pod more, the one of that number; GrowthRemovals: its deletion.
	Growth         []Start `json:"growth"`
	GrowthRemovals []Start `json:"growthRemovals"`
	// ExitToRuntimeEvent: from the container's exit until the runtime's own event stream told of it, ms.
	ExitToRuntimeEvent Summary `json:"exitToRuntimeEventMs"`
	// RuntimeEventToFollower: from then until a follower of the journal over REST had it, ms.
	RuntimeEventToFollower Summary `json:"runtimeEventToFollowerMs"`
	// ExitToRestart: from the container's exit to the next instance's start, by the runtime's clock, ms.
	ExitToRestart Restart `json:"exitToRestartMs"`
	// ApplyTo201 is the time of the POST, ms.
	ApplyTo201 Summary `json:"applyTo201Ms"`
	Memory     []Usage `json:"memory"`
	CPU        []Rest  `json:"cpu"`
}

// Start compares the start, or the deletion, of n pods with the floor, both in ms.
type Start struct {
	Pods             int     `json:"pods"`
	FloorParallelism int     `json:"floorParallelism"`
	Floor            Summary `json:"floorMs"`
	Podplane         Summary `json:"podplaneMs"`
	// Ratio is of the pairs that ran in turn.
	Ratio Summary  `json:"ratio"`
	CPU   StartCPU `json:"cpu"`
}

// StartCPU is the CPU time that a start cost each process, and "host" all of them together with what the runtime starts, in ms a pod.
type StartCPU struct {
	Floor    map[string]float64 `json:"floorMs"`
	Podplane map[string]float64 `json:"podplaneMs"`
}

// Restart compares a restart with the bare create and start calls.
type Restart struct {
	Floor    Summary `json:"floorMs"`
	Podplane Summary `json:"podplaneMs"`
	Ratio    Summary `json:"ratio"`
}

// Usage is the memory of each process with so many pods.
type Usage struct {
	Pods      int               `json:"pods"`
	Processes map[string]Memory `json:"processes"`
	Total     Memory            `json:"total"`
}

// Rest is the CPU time of each process at rest with so many pods, in seconds per minute.
type Rest struct {
	Pods      int                `json:"pods"`
	Window    float64            `json:"windowSeconds"`
	Processes map[string]float64 `json:"processes"`
	Total     float64            `json:"total"`
}

func newReport(version string) *Report {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return &Report{
		Time: time.Now().UTC(), Version: version,
		Kernel: strings.TrimSpace(string(kernel)), CPUs: runtime.NumCPU(),
	}
}

func (r *Report) writeJSON(file string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}

func (r *Report) print(w io.Writer) error {
	fmt.Fprintf(w, "\n%s, Linux %s, %d CPUs; medians, floor and Podplane in turn\n\n", r.Version, r.Kernel, r.CPUs)
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	printPairs(tw, "start of", "%d pods", r.Starts)
	printPairs(tw, "deletion of", "%d pods", r.Removals)
	printPairs(tw, "start of one more", "pod number %d", r.Growth)
	printPairs(tw, "its deletion", "pod number %d", r.GrowthRemovals)
	for _, s := range r.Starts {
		printCPU(tw, "start", s)
	}
	for _, s := range r.Removals {
		printCPU(tw, "deletion", s)
	}
	for _, s := range r.Growth {
		printCPU(tw, "start with others there", s)
	}
	fmt.Fprintln(tw)
	r.printTimes(tw)
	r.printRest(tw)
	return tw.Flush()
}

// printPairs prints what ran in turn with the floor.
func printPairs(tw io.Writer, title, row string, of []Start) {
	if len(of) == 0 {
		return
	}
	fmt.Fprintf(tw, "%s\tfloor\tparallel\tPodplane\tratio\t(min .. max)\n", title)
	for _, s := range of {
		fmt.Fprintf(tw, row+"\t%.0f ms\t%d\t%.0f ms\t%.2f\t(%.2f .. %.2f)\n",
			s.Pods, s.Floor.P50, s.FloorParallelism, s.Podplane.P50, s.Ratio.P50, s.Ratio.Min, s.Ratio.Max)
	}
	fmt.Fprintln(tw)
}

func printCPU(tw io.Writer, what string, s Start) {
	fmt.Fprintf(tw, "CPU time of a pod's %s, of %d\tfloor\tPodplane\n", what, s.Pods)
	for _, name := range append([]string{"host", "runtime", "bench"}, processNames...) {
		fmt.Fprintf(tw, "  %s\t%.1f ms\t%.1f ms\n", name, s.CPU.Floor[name], s.CPU.Podplane[name])
	}
}

func (r *Report) printTimes(tw io.Writer) {
	fmt.Fprintln(tw, "what\tp50\tp99\tn")
	row := func(what string, s Summary) {
		fmt.Fprintf(tw, "%s\t%.1f ms\t%.1f ms\t%d\n", what, s.P50, s.P99, s.N)
	}
	row("container exit to the runtime's own event (floor)", r.ExitToRuntimeEvent)
	row("  from there over pleg, bus and REST to a follower", r.RuntimeEventToFollower)
	x := r.ExitToRestart
	row("container exit to the bare calls' next container (floor)", x.Floor)
	row("container exit to the restarted container", x.Podplane)
	fmt.Fprintf(tw, "  ratio\t%.2f\t\t\n", x.Ratio.P50)
	row("apply to 201", r.ApplyTo201)
	row("start of the binary until NATS and all services are ready", r.ColdStart)
	fmt.Fprintln(tw)
}

// printRest prints memory, and CPU time at rest.
func (r *Report) printRest(tw io.Writer) {
	for _, u := range r.Memory {
		fmt.Fprintf(tw, "memory, %d pods\tRSS\tPSS\n", u.Pods)
		for _, name := range processNames {
			fmt.Fprintf(tw, "  %s\t%.1f MiB\t%.1f MiB\n", name, u.Processes[name].RSS, u.Processes[name].PSS)
		}
		fmt.Fprintf(tw, "  together\t%.1f MiB\t%.1f MiB\n", u.Total.RSS, u.Total.PSS)
	}
	fmt.Fprintln(tw)
	for _, c := range r.CPU {
		fmt.Fprintf(tw, "CPU at rest, %d pods\tseconds per minute\n", c.Pods)
		for _, name := range processNames {
			fmt.Fprintf(tw, "  %s\t%.2f\n", name, c.Processes[name])
		}
		fmt.Fprintf(tw, "  together\t%.2f\n", c.Total)
	}
}
