package worker

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// overdueAfter is how long after the end of a pod's grace period it is told that something of it still runs.
const overdueAfter = 10 * time.Second

// overdue tells once that the runtime did not end the pod in time. It returns when to look again.
func (w *worker) overdue() time.Time {
	if w.phase != plan.Terminating || w.stop == nil || w.toldOverdue {
		return time.Time{}
	}
	now, at := w.m.deps.Now(), w.stop.Deadline.Add(overdueAfter)
	if now.Before(at) {
		return at
	}
	var names []string
	for _, c := range w.view.runtime.Running() {
		names = append(names, c.Name)
	}
	if len(names) == 0 {
		return time.Time{} // something else takes long, and the pod says what
	}
	w.toldOverdue = true
	w.event("", v1.EventTypeWarning, "ExceededGracePeriod",
		fmt.Sprintf("Container runtime did not kill the pod within specified grace period, which ended %s ago; still running: %s", now.Sub(w.stop.Deadline).Round(time.Second), strings.Join(names, ", ")))
	return time.Time{}
}
