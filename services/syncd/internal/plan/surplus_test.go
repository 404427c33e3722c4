package plan_test

import (
	"strings"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

func TestSurplus(t *testing.T) {
	at := func(m int) time.Time { return now.Add(time.Duration(m) * time.Minute) }
	dead := []plan.Dead{
		{ID: "c", CreatedAt: at(3)}, {ID: "a", CreatedAt: at(1), Needed: true}, {ID: "b", CreatedAt: at(2)}, {ID: "d", CreatedAt: at(4)}, {ID: "b2", CreatedAt: at(2)},
	}
	for most, want := range map[int]string{-1: "", 9: "", 5: "", 4: "b", 3: "b b2", 1: "b b2 c d", 0: "b b2 c d"} {
		if got := strings.Join(plan.Surplus(dead, most), " "); got != want {
			t.Errorf("at most %d: %q go, want %q", most, got, want)
		}
	}
}

func TestDeadOf(t *testing.T) {
	p := &pod.RuntimePod{Containers: []pod.Container{
		{ID: "x2", Name: "x", State: pod.ContainerRunning},
		{ID: "x1", Name: "x", State: pod.ContainerExited},
		{ID: "y1", Name: "y", State: pod.ContainerExited},
		{ID: "y0", Name: "y", State: pod.ContainerExited},
	}}
	for goesOn, want := range map[bool]string{true: "x1 y1! y0", false: "x1 y1 y0"} {
		var got []string
		for _, d := range plan.DeadOf(p, goesOn) {
			if d.Needed {
				d.ID += "!"
			}
			got = append(got, d.ID)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("of a pod that goes on (%t): %q, want %q", goesOn, got, want)
		}
	}
}
