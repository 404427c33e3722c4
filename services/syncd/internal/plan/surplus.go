package plan

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/podplane/podplane/internal/pod"
)

// Dead is a container that has ended and was not removed yet.
type Dead struct {
	ID        string
	CreatedAt time.Time
	// Needed: a decision still depends on it, as nothing came after it in a pod that goes on.
	Needed bool
}

// Surplus picks the dead containers that are to go so that no more than most are left, the oldest first. What is needed stays, even if more are left then.
// A negative most means any number.
func Surplus(dead []Dead, most int) []string {
	excess := len(dead) - most
	if most < 0 || excess <= 0 {
		return nil
	}
	dead = slices.Clone(dead)
	slices.SortFunc(dead, func(a, b Dead) int { return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID)) })
	var ids []string
	for i := range dead {
		if len(ids) == excess {
			break
		}
		if !dead[i].Needed {
			ids = append(ids, dead[i].ID)
		}
	}
	return ids
}

// DeadOf are the dead containers of a pod, newest first as they are in it. Of one that goes on the last instance of each container is needed.
func DeadOf(p *pod.RuntimePod, goesOn bool) []Dead {
	var list []Dead
	seen := make(map[string]bool)
	for i := range p.Containers {
		c := &p.Containers[i]
		if c.State == pod.ContainerExited {
			list = append(list, Dead{ID: c.ID, CreatedAt: c.CreatedAt, Needed: goesOn && !seen[c.Name]})
		}
		seen[c.Name] = true
	}
	return list
}

// discard removes the dead containers of a pod that has ended when the node has too many: what became of them is in its status.
func (p *Plan) discard(in *Input) {
	for i := range in.Runtime.Containers {
		c := &in.Runtime.Containers[i]
		if in.Surplus[c.ID] && c.State == pod.ContainerExited && !in.Busy.Removals[c.ID] && !in.failedLately(c.ID) {
			p.do(Action{Kind: RemoveContainer, Container: c.Name, ID: c.ID})
		}
	}
}
