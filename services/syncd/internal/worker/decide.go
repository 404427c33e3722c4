package worker

import (
	"time"

	v1 "k8s.io/api/core/v1"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// Decisions keeps what the workers decided. It never blocks.
type Decisions interface {
	Decided(p *v1.Pod, trace string, at time.Time, list []plan.Decision)
}

// explain tells why the plan does what it does.
func (w *worker) explain(in *plan.Input, p *plan.Plan) {
	if len(p.Actions) == 0 && p.Stop == nil {
		return
	}
	w.tell(in.Now, plan.Explain(in, p))
}

// explainStatus tells what was decided without an action, now that a status shows it.
func (w *worker) explainStatus(in *plan.Input, p *plan.Plan) {
	var list []plan.Decision
	if !w.stale {
		list = plan.Standing(in)
	}
	told := make(map[string]time.Time)
	for i := range p.Waits {
		x := &p.Waits[i]
		d, ok := plan.Postponed(in, x)
		if !ok {
			continue
		}
		key := waitKey(x.Step, x.Resource)
		told[key] = x.Since
		if since, before := w.told[key]; !before || !since.Equal(x.Since) {
			list = append(list, d)
		}
	}
	w.told = told
	w.tell(in.Now, list)
}

func (w *worker) tell(now time.Time, list []plan.Decision) {
	if len(list) > 0 && w.m.deps.Decisions != nil {
		w.m.deps.Decisions.Decided(w.pod, w.trace, now, list)
	}
}

func waitKey(step, resource string) string { return step + "/" + resource }

// toldBefore are the waits that an earlier process told of.
func toldBefore(list []*podplanev1.Waiting) map[string]time.Time {
	told := make(map[string]time.Time, len(list))
	for _, x := range list {
		told[waitKey(x.GetStep(), x.GetResource())] = x.GetSince().AsTime()
	}
	return told
}
