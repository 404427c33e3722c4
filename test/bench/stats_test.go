package main

import (
	"maps"
	"slices"
	"testing"
)

func TestSummarize(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   []float64
		want Summary
	}{
		{"nothing", nil, Summary{}},
		{"one", []float64{3}, Summary{N: 1, Min: 3, P50: 3, P99: 3, Max: 3}},
		{"odd", []float64{5, 1, 3}, Summary{N: 3, Min: 1, P50: 3, P99: 5, Max: 5}},
		{"even takes the lower middle", []float64{4, 1, 2, 3}, Summary{N: 4, Min: 1, P50: 2, P99: 4, Max: 4}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := summarize(tc.in); got != tc.want {
				t.Errorf("summarize(%v) = %+v, want %+v", tc.in, got, tc.want)
			}
		})
	}
}

func TestRatiosPairWhatRanInTurn(t *testing.T) {
	if got, want := ratios([]float64{2, 9, 5}, []float64{1, 3}), []float64{2, 3}; !slices.Equal(got, want) {
		t.Errorf("ratios = %v, want %v", got, want)
	}
}

func TestParseParts(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want map[string]bool
	}{
		{"rest", map[string]bool{partRest: true}},
		{"starts,growth", map[string]bool{partStarts: true, partGrowth: true}},
		{"starts,stops", nil},
		{"", nil},
	} {
		got, err := parseParts(tc.in)
		if (err != nil) != (tc.want == nil) || !maps.Equal(got, tc.want) {
			t.Errorf("parseParts(%q) = %v, %v, want %v", tc.in, got, err, tc.want)
		}
	}
}
