package store

import (
	"encoding/json"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// allocated is the pod with the resources that it has: one that asks for more, and waits for it, takes no room from others. mu is held.
func (s *Store) allocated(uid string, p *v1.Pod) *v1.Pod {
	rec := s.statuses[uid].rec
	if p.Generation <= 1 || rec == nil {
		return p // it never asked for anything else
	}
	var status v1.PodStatus
	if err := json.Unmarshal(rec.GetStatus(), &status); err != nil {
		return p
	}
	return plan.Restore(p, &status).With(p)
}
