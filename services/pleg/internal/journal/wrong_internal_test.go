package journal

import (
	"testing"

	"github.com/podplane/podplane/services/pleg/internal/diff"
)

// TestWentWrong: a container that ends by an error of its own is one of its trace, one that was told to end is none.
func TestWentWrong(t *testing.T) {
	for name, c := range map[string]struct {
		event diff.Event
		wrong bool
	}{
		"success":           {diff.Event{Type: diff.ContainerDied, ExitKnown: true}, false},
		"an exit code":      {diff.Event{Type: diff.ContainerDied, ExitKnown: true, Reason: "Error", Object: diff.Object{ExitCode: 3}}, true},
		"killed":            {diff.Event{Type: diff.ContainerDied, ExitKnown: true, Reason: "Error", Object: diff.Object{ExitCode: 137}}, false},
		"terminated":        {diff.Event{Type: diff.ContainerDied, ExitKnown: true, Reason: "Error", Object: diff.Object{ExitCode: 143}}, false},
		"out of memory":     {diff.Event{Type: diff.ContainerDied, ExitKnown: true, Reason: "OOMKilled", Object: diff.Object{ExitCode: 137}}, true},
		"nobody knows how":  {diff.Event{Type: diff.ContainerDied, Object: diff.Object{ExitCode: 3}}, false},
		"removed afterward": {diff.Event{Type: diff.ContainerRemoved, ExitKnown: true, Object: diff.Object{ExitCode: 3}}, false},
	} {
		if got := wentWrong(&c.event); (got != "") != c.wrong {
			t.Errorf("%s: %q", name, got)
		}
	}
}
