package worker

import (
	"context"
	"errors"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
)

const (
	inspectPauseMin = 500 * time.Millisecond
	inspectPauseMax = 5 * time.Second
)

func metaTime(t time.Time) metav1.Time { return metav1.NewTime(t) }

func asCallError(err error) (*cri.CallError, bool) { return errors.AsType[*cri.CallError](err) }

// observe starts an inspection when one is due and returns when to come back for one.
func (w *worker) observe(ctx context.Context) time.Time {
	w.sortHints(ctx)
	if !w.stale && !w.inspectAgain {
		return time.Time{}
	}
	if w.inspecting {
		return time.Time{}
	}
	if w.m.deps.Now().Before(w.inspectAt) {
		return w.inspectAt
	}
	if w.stale && w.uncertain() {
		return time.Time{} // an action is still under way: what it does would be missing
	}
	w.inspect(ctx)
	return time.Time{}
}

// uncertain says whether something is being made right now, so that an inspection could not settle what is there.
func (w *worker) uncertain() bool { return w.busy.Sandbox || len(w.busy.Containers) > 0 }

// sortHints drops hints about what is known, keeps those about what an action of ours is about to report, and follows the others.
func (w *worker) sortHints(ctx context.Context) {
	var keep []Hint
	for _, h := range w.hints {
		switch {
		case h.Type != HintLook && w.view.knows(h):
		case h.Container != "" && w.busy.Containers[h.Container], h.Container == "" && w.busy.Sandbox:
			keep = append(keep, h)
		case h.Type == HintContainerDied && w.view.runtime.Container(h.ID) != nil:
			w.inspectContainer(ctx, h.ID)
		default:
			w.inspectAgain = true
		}
	}
	w.hints = keep
}

// inspect asks the runtime for everything about the pod.
func (w *worker) inspect(ctx context.Context) {
	w.inspecting, w.inspectAgain = true, false
	w.spawn(ctx, func(ctx context.Context) func(*worker) {
		seen, err := w.m.deps.Observer.PodStatus(ctx, w.uid)
		return func(w *worker) {
			w.inspecting = false
			w.inspected(seen, err)
		}
	})
}

func (w *worker) inspected(seen pod.RuntimePod, err error) {
	partial, isPartial := errors.AsType[*cri.InspectError](err)
	switch {
	case err == nil:
		w.stale, w.inspectFails, w.away = false, 0, ""
		w.awaySince = time.Time{}
		if w.unrecorded && w.logged == nil {
			w.logged = w.m.deps.Files.Logged(w.pod)
		}
		w.view.merge(seen, nil)
		w.readMessages()
		return
	case fault.Is(err, fault.Canceled):
		return
	case isPartial:
		w.view.merge(seen, failedTargets(partial))
	}
	now := w.m.deps.Now()
	w.inspectFails++
	w.inspectAgain = true
	w.inspectAt = now.Add(min(inspectPauseMax, inspectPauseMin<<min(w.inspectFails-1, 8)))
	w.away = err.Error()
	if w.awaySince.IsZero() {
		w.awaySince = now
	}
}

// inspectContainer asks for one container: its exit is what is waited for.
func (w *worker) inspectContainer(ctx context.Context, id string) {
	w.spawn(ctx, func(ctx context.Context) func(*worker) {
		c, err := w.m.deps.Observer.ContainerStatus(ctx, id)
		now := w.m.deps.Now()
		return func(w *worker) {
			if err != nil {
				w.inspectAgain = true
				return
			}
			w.view.sawContainer(c, now)
			w.readMessages()
		}
	})
}

// unsure makes the next step inspect before anything is started.
func (w *worker) unsure() {
	w.stale = true
}

// readMessages fetches what ended containers left to say, once for each, and forgets those of containers that are gone.
func (w *worker) readMessages() {
	for i := range w.view.runtime.Containers {
		c := &w.view.runtime.Containers[i]
		if _, read := w.messages[c.ID]; read || c.State != pod.ContainerExited {
			continue
		}
		w.messages[c.ID] = w.m.deps.Files.TerminationMessage(w.pod, c)
	}
	for id := range w.messages {
		if w.view.runtime.Container(id) == nil {
			delete(w.messages, id)
		}
	}
	gone := func(id string, _ bool) bool { return w.view.runtime.Container(id) == nil }
	maps.DeleteFunc(w.killed, gone)
	maps.DeleteFunc(w.hookFailed, gone)
	maps.DeleteFunc(w.startFails, gone)
}

// spawn runs something outside the loop and posts what it returns. ctx is the worker's.
func (w *worker) spawn(ctx context.Context, f func(context.Context) func(*worker)) {
	w.ops.Add(1)
	w.flying++
	go func() {
		defer w.ops.Done()
		result := f(ctx)
		w.post(func(n *news) {
			n.results = append(n.results, func(w *worker) {
				w.flying--
				result(w)
			})
		})
	}()
}
