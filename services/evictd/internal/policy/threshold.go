package policy

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podplane/podplane/internal/fault"
)

// Signal is something that is measured of the node.
type Signal string

// The signals, under Kubernetes' names.
const (
	MemoryAvailable   Signal = "memory.available"
	NodefsAvailable   Signal = "nodefs.available"
	NodefsInodesFree  Signal = "nodefs.inodesFree"
	ImagefsAvailable  Signal = "imagefs.available"
	ImagefsInodesFree Signal = "imagefs.inodesFree"
	PIDAvailable      Signal = "pid.available"
)

// Signals are all signals in the order in which their thresholds are dealt with: memory first.
var Signals = []Signal{MemoryAvailable, NodefsAvailable, NodefsInodesFree, ImagefsAvailable, ImagefsInodesFree, PIDAvailable}

// Condition types.
const (
	MemoryPressure = "MemoryPressure"
	DiskPressure   = "DiskPressure"
	PIDPressure    = "PIDPressure"
)

// ConditionTypes are all conditions.
var ConditionTypes = []string{MemoryPressure, DiskPressure, PIDPressure}

// ConditionOf is the condition that a signal speaks for.
func ConditionOf(s Signal) string {
	switch s {
	case MemoryAvailable:
		return MemoryPressure
	case PIDAvailable:
		return PIDPressure
	}
	return DiskPressure
}

// IsDisk says that a signal is about a file system.
func (s Signal) IsDisk() bool { return ConditionOf(s) == DiskPressure }

// StarvedResource is the resource that a signal is about, as messages and Events name it.
func (s Signal) StarvedResource() string {
	switch s {
	case MemoryAvailable:
		return "memory"
	case PIDAvailable:
		return "pids"
	case NodefsInodesFree, ImagefsInodesFree:
		return "inodes"
	}
	return "ephemeral-storage"
}

// Threshold is a hard threshold: crossed as soon as less is available.
type Threshold struct {
	Signal Signal
	// Percent of the capacity, when it is not 0; else Quantity counts.
	Percent  float64
	Quantity int64
	// Text is the value as configured: "100Mi", "10%".
	Text string
}

// String is the threshold as configured.
func (t Threshold) String() string { return string(t.Signal) + "<" + t.Text }

// Value is the threshold in the signal's unit.
func (t Threshold) Value(capacity int64) int64 {
	if t.Percent > 0 {
		return int64(float64(capacity) * t.Percent / 100)
	}
	return t.Quantity
}

// DefaultHard are the thresholds of a node where nothing is configured.
const DefaultHard = "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%"

// ParseThresholds reads thresholds in Kubernetes' syntax: signal<quantity or signal<percentage, separated by commas. A
// percentage of 0% or 100% switches the signal's threshold off. The empty text means none.
func ParseThresholds(text string) ([]Threshold, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var list []Threshold
	seen := make(map[Signal]bool)
	for part := range strings.SplitSeq(text, ",") {
		t, on, err := parseThreshold(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		if seen[t.Signal] {
			return nil, fault.New(fault.Invalid, "threshold %q: there is another one for %s", part, t.Signal)
		}
		seen[t.Signal] = true
		if on {
			list = append(list, t)
		}
	}
	slices.SortFunc(list, func(a, b Threshold) int { return slices.Index(Signals, a.Signal) - slices.Index(Signals, b.Signal) })
	return list, nil
}

func parseThreshold(part string) (t Threshold, on bool, err error) {
	name, value, ok := strings.Cut(part, "<")
	if !ok {
		return t, false, fault.New(fault.Invalid, "threshold %q: want signal<quantity, such as memory.available<100Mi", part)
	}
	t = Threshold{Signal: Signal(name), Text: value}
	if !slices.Contains(Signals, t.Signal) {
		return t, false, fault.New(fault.Invalid, "threshold %q: no such signal; there are %v", part, Signals)
	}
	if percent, ok := strings.CutSuffix(value, "%"); ok {
		t.Percent, err = strconv.ParseFloat(percent, 64)
		if err != nil || math.IsNaN(t.Percent) || t.Percent < 0 || t.Percent > 100 {
			return t, false, fault.New(fault.Invalid, "threshold %q: want a percentage from 0%% to 100%%", part)
		}
		return t, t.Percent > 0 && t.Percent < 100, nil
	}
	q, err := resource.ParseQuantity(value)
	if err != nil {
		return t, false, fault.New(fault.Invalid, "threshold %q: %w", part, err)
	}
	t.Quantity = q.Value()
	if q.Sign() <= 0 {
		return t, false, fault.New(fault.Invalid, "threshold %q: want a quantity above 0", part)
	}
	return t, true, nil
}

// Format is an amount of a signal's unit for people: bytes in binary units, other things as a number.
func (s Signal) Format(v int64) string {
	if s == PIDAvailable || s.StarvedResource() == "inodes" {
		return strconv.FormatInt(v, 10)
	}
	return FormatBytes(v)
}

// FormatBytes is a number of bytes for people: in Ki where it is at least one, as Kubernetes does it.
func FormatBytes(v int64) string {
	if v >= 1<<10 {
		return fmt.Sprintf("%dKi", v>>10)
	}
	return strconv.FormatInt(v, 10)
}
