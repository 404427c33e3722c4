package main

import (
	"math"
	"slices"
	"time"
)

// Summary is the spread of a set of measurements.
type Summary struct {
	N   int     `json:"n"`
	Min float64 `json:"min"`
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// summarize sorts a copy; percentiles are nearest-rank. No values: all NaN-free zeros.
func summarize(values []float64) Summary {
	if len(values) == 0 {
		return Summary{}
	}
	v := slices.Clone(values)
	slices.Sort(v)
	rank := func(p float64) float64 {
		return v[max(0, int(math.Ceil(p*float64(len(v))))-1)]
	}
	return Summary{N: len(v), Min: v[0], P50: rank(.5), P99: rank(.99), Max: v[len(v)-1]}
}

// ratios divides pair by pair: only what ran in turn is compared.
func ratios(a, b []float64) []float64 {
	out := make([]float64, min(len(a), len(b)))
	for i := range out {
		out[i] = a[i] / b[i]
	}
	return out
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
