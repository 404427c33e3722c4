package manifest

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// wish is a pod that a source asks for, or what is wrong with something there.
type wish struct {
	from Origin
	// place is where it stands, for messages.
	place string
	// pod is nil when err says why there is none.
	pod *v1.Pod
	err error
	// broken is the name of the pod that it was meant to be, where pod is nil and that much can be read.
	broken string
}

func (w *wish) name() string { return w.pod.Namespace + "/" + w.pod.Name }

// standing is a pod of this node that is stored.
type standing struct {
	uid, name string // namespace/name
	from      Origin
	deleting  bool
}

// static says whether the pod is one of ours to end.
func (s *standing) static() bool {
	return s.from.Source == podplanev1.Source_SOURCE_FILE || s.from.Source == podplanev1.Source_SOURCE_HTTP
}

// survey is all that a decision depends on.
type survey struct {
	// wishes in the order of their precedence.
	wishes []wish
	// unknown are sources that have not said yet what they ask for: what they asked for before stays.
	unknown map[podplanev1.Source]bool
	// pods by name, each with at most one.
	pods map[string]standing
	// heirs say, of names that are free, whose pod had it last: its successor comes first.
	heirs map[string]Origin
}

// surplus are the static pods that nobody asks for any more. What can't be read ends no pod: a broken file keeps the pod that it made, a broken item
// of a list the pod of that name, and one without a name all pods of that list.
func (s *survey) surplus() []standing {
	type part struct {
		from Origin
		name string
	}
	wanted, good, broken := make(map[string]bool), make(map[part]bool), make(map[part]bool)
	for i := range s.wishes {
		w := &s.wishes[i]
		switch {
		case w.err == nil:
			wanted[string(w.pod.UID)], good[part{w.from, w.name()}] = true, true
		case w.from.Source == podplanev1.Source_SOURCE_HTTP:
			broken[part{w.from, w.broken}] = true
		default:
			broken[part{from: w.from}] = true
		}
	}
	var list []standing
	for _, p := range s.pods {
		kept := s.unknown[p.from.Source] || (broken[part{from: p.from}] || broken[part{p.from, p.name}]) && !good[part{p.from, p.name}]
		if p.static() && !p.deleting && !wanted[p.uid] && !kept {
			list = append(list, p)
		}
	}
	return list
}

// answer is what becomes of a wish.
type answer uint8

const (
	// stands: the pod is stored.
	stands answer = iota
	// create: the pod is to be stored.
	create
	// hold: the pod's own predecessor has to go first.
	hold
	// refuse: another pod has its name. When that one goes it is asked again.
	refuse
)

// judge says what is to become of a wish without an error, and why.
func (s *survey) judge(w *wish) (a answer, why string) {
	p, taken := s.pods[w.name()]
	switch {
	case taken && p.uid == string(w.pod.UID) && p.deleting:
		return hold, "waiting until the pod that is being deleted is gone"
	case taken && p.uid == string(w.pod.UID):
		return stands, ""
	case taken && p.from == w.from && !s.wants(p.uid):
		return hold, "the manifest changed: waiting until the pod of its former content is gone"
	case taken:
		return refuse, fmt.Sprintf("the name of pod %s is taken by one from %s (UID %s); this one takes its place when that one is gone", w.name(), p.from, p.uid)
	}
	heir, kept := s.heirs[w.name()]
	if kept && heir != w.from && s.asksFor(heir, w.name()) {
		return refuse, fmt.Sprintf("the name of pod %s is taken by one from %s; this one takes its place when that one is gone", w.name(), heir)
	}
	return create, ""
}

func (s *survey) wants(uid string) bool {
	for i := range s.wishes {
		if w := &s.wishes[i]; w.err == nil && string(w.pod.UID) == uid {
			return true
		}
	}
	return false
}

func (s *survey) asksFor(from Origin, name string) bool {
	for i := range s.wishes {
		if w := &s.wishes[i]; w.err == nil && w.from == from && w.name() == name {
			return true
		}
	}
	return false
}

// String says where a pod is from in a message.
func (o Origin) String() string {
	if o.Source == podplanev1.Source_SOURCE_API {
		return "the API"
	}
	return o.Path
}
