package policy

import (
	"fmt"
	"maps"
	"strings"
	"time"
)

// Observation is one measurement.
type Observation struct {
	Signal    Signal
	Available int64
	Capacity  int64
	At        time.Time
	// Err says why it can't be measured here.
	Err error
}

// Values of a condition's status.
const (
	True    = "True"
	False   = "False"
	Unknown = "Unknown"
)

// Condition is what is said about one kind of pressure.
type Condition struct {
	Type, Status, Reason, Message string
	// Observation holds what was measured, by signal.
	Observation map[string]string
}

// Crossed is a threshold that is crossed.
type Crossed struct {
	Threshold   Threshold
	Observation Observation
	// Value is the threshold in the signal's unit.
	Value int64
}

// State is what one round leaves to the next.
type State struct {
	// LastCrossed is when a threshold of the condition was last seen crossed, by type.
	LastCrossed map[string]time.Time
	// LastOrderEnd is when the last order was obeyed or given up: older measurements do not justify another one.
	LastOrderEnd time.Time
}

// reasons of the conditions, as Kubernetes has them: under pressure, and not.
var reasons = map[string][2]string{
	MemoryPressure: {"KubeletHasInsufficientMemory", "KubeletHasSufficientMemory"},
	DiskPressure:   {"KubeletHasDiskPressure", "KubeletHasNoDiskPressure"},
	PIDPressure:    {"KubeletHasInsufficientPID", "KubeletHasSufficientPID"},
}

var messages = map[string][2]string{
	MemoryPressure: {"the node has insufficient memory available", "the node has sufficient memory available"},
	DiskPressure:   {"the node has disk pressure", "the node has no disk pressure"},
	PIDPressure:    {"the node has insufficient PIDs available", "the node has sufficient PIDs available"},
}

// Reasons of a condition that nobody can tell.
const reasonUnobservable = "SignalsUnavailable"

// Observe derives the conditions and the crossed thresholds, those to deal with first first.
func Observe(state State, observations []Observation, thresholds []Threshold, transition time.Duration, now time.Time) (State, []Condition, []Crossed) {
	next := State{LastCrossed: maps.Clone(state.LastCrossed), LastOrderEnd: state.LastOrderEnd}
	if next.LastCrossed == nil {
		next.LastCrossed = make(map[string]time.Time)
	}
	crossed := findCrossed(observations, thresholds)
	for _, c := range crossed {
		next.LastCrossed[ConditionOf(c.Threshold.Signal)] = now
	}
	conditions := make([]Condition, 0, len(ConditionTypes))
	for _, t := range ConditionTypes {
		last, ever := next.LastCrossed[t]
		pressure := ever && now.Sub(last) < transition || ever && last.Equal(now)
		if ever && !pressure {
			delete(next.LastCrossed, t)
		}
		conditions = append(conditions, condition(t, pressure, observations, thresholds, crossed))
	}
	return next, conditions, crossed
}

func findCrossed(observations []Observation, thresholds []Threshold) []Crossed {
	var crossed []Crossed
	for _, t := range thresholds {
		for _, o := range observations {
			if o.Signal != t.Signal || o.Err != nil {
				continue
			}
			if v := t.Value(o.Capacity); o.Available < v {
				crossed = append(crossed, Crossed{Threshold: t, Observation: o, Value: v})
			}
		}
	}
	return crossed
}

func condition(conditionType string, pressure bool, observations []Observation, thresholds []Threshold, crossed []Crossed) Condition {
	c := Condition{Type: conditionType, Status: False, Reason: reasons[conditionType][1], Message: messages[conditionType][1], Observation: map[string]string{}}
	measured, missing := 0, []string(nil)
	for _, o := range observations {
		if ConditionOf(o.Signal) != conditionType {
			continue
		}
		if o.Err != nil {
			if hasThreshold(thresholds, o.Signal) {
				missing = append(missing, fmt.Sprintf("%s: %v", o.Signal, o.Err))
			}
			continue
		}
		measured++
		c.Observation[string(o.Signal)] = o.Signal.Format(o.Available)
	}
	switch {
	case pressure:
		c.Status, c.Reason, c.Message = True, reasons[conditionType][0], messages[conditionType][0]
		for _, x := range crossed {
			if ConditionOf(x.Threshold.Signal) == conditionType {
				c.Message += fmt.Sprintf("; %s", x.Threshold)
			}
		}
	case measured == 0 && len(missing) > 0:
		c.Status, c.Reason, c.Message = Unknown, reasonUnobservable, "can't be measured here: "+strings.Join(missing, "; ")
	}
	return c
}

func hasThreshold(thresholds []Threshold, s Signal) bool {
	for _, t := range thresholds {
		if t.Signal == s {
			return true
		}
	}
	return false
}
