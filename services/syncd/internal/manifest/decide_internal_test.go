package manifest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

var (
	fileA = Origin{Source: podplanev1.Source_SOURCE_FILE, Path: "/m/a.yaml"}
	fileB = Origin{Source: podplanev1.Source_SOURCE_FILE, Path: "/m/b.yaml"}
	web   = Origin{Source: podplanev1.Source_SOURCE_HTTP, Path: "http://h/pods"}
	api   = Origin{Source: podplanev1.Source_SOURCE_API}
)

func asks(from Origin, name string, version int) wish {
	uid := fmt.Sprintf("%s %s %d", from.Path, name, version)
	return wish{from: from, place: from.Path, pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(uid)}}}
}

func broken(from Origin, name string) wish {
	w := wish{from: from, place: from.Path, err: errors.New("broken")}
	if name != "" {
		w.broken = "default/" + name
	}
	return w
}

func stored(w wish) standing { return standing{uid: string(w.pod.UID), name: w.name(), from: w.from} }

func leaving(s standing) standing {
	s.deleting = true
	return s
}

func foreign(name string) standing {
	return standing{uid: "api " + name, name: "default/" + name, from: api}
}

func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		wish   wish
		others []wish
		pods   []standing
		heirs  map[string]Origin
		want   answer
		why    string
	}{
		"new":                           {wish: asks(fileA, "x", 1), want: create},
		"stored":                        {wish: asks(fileA, "x", 1), pods: []standing{stored(asks(fileA, "x", 1))}, want: stands},
		"removed and put back":          {wish: asks(fileA, "x", 1), pods: []standing{leaving(stored(asks(fileA, "x", 1)))}, want: hold, why: "being deleted"},
		"changed":                       {wish: asks(fileA, "x", 2), pods: []standing{stored(asks(fileA, "x", 1))}, want: hold, why: "former content"},
		"changed, the former is ending": {wish: asks(fileA, "x", 2), pods: []standing{leaving(stored(asks(fileA, "x", 1)))}, want: hold, why: "former content"},
		"another file's name":           {wish: asks(fileB, "x", 1), others: []wish{asks(fileA, "x", 1)}, pods: []standing{stored(asks(fileA, "x", 1))}, want: refuse, why: "taken by one from /m/a.yaml"},
		"the API's name":                {wish: asks(web, "x", 1), pods: []standing{foreign("x")}, want: refuse, why: "taken by one from the API"},
		"twice in one list":             {wish: asks(web, "x", 2), others: []wish{asks(web, "x", 1)}, pods: []standing{stored(asks(web, "x", 1))}, want: refuse, why: "taken by one from http://h/pods"},
		"the last owner comes first":    {wish: asks(fileB, "x", 1), others: []wish{asks(web, "x", 2)}, heirs: map[string]Origin{"default/x": web}, want: refuse, why: "taken by one from http://h/pods"},
		"the last owner gave it up":     {wish: asks(fileB, "x", 1), others: []wish{asks(web, "y", 2)}, heirs: map[string]Origin{"default/x": web}, want: create},
		"the last owner itself":         {wish: asks(web, "x", 2), others: []wish{asks(fileB, "x", 1)}, heirs: map[string]Origin{"default/x": web}, want: create},
	} {
		t.Run(name, func(t *testing.T) {
			s := survey{wishes: append([]wish{c.wish}, c.others...), heirs: c.heirs, pods: make(map[string]standing)}
			for _, p := range c.pods {
				s.pods[p.name] = p
			}
			got, why := s.judge(&c.wish)
			if got != c.want || !strings.Contains(why, c.why) || (why == "") != (c.why == "") {
				t.Errorf("got %d %q, want %d %q", got, why, c.want, c.why)
			}
		})
	}
}

func TestSurplus(t *testing.T) {
	for name, c := range map[string]struct {
		wishes  []wish
		unknown podplanev1.Source
		pod     standing
		ends    bool
	}{
		"asked for":                                 {wishes: []wish{asks(fileA, "x", 1)}, pod: stored(asks(fileA, "x", 1))},
		"not asked for":                             {pod: stored(asks(fileA, "x", 1)), ends: true},
		"not asked for, of the URL":                 {pod: stored(asks(web, "x", 1)), ends: true},
		"of the API":                                {pod: foreign("x")},
		"ending already":                            {pod: leaving(stored(asks(fileA, "x", 1)))},
		"changed":                                   {wishes: []wish{asks(fileA, "x", 2)}, pod: stored(asks(fileA, "x", 1)), ends: true},
		"its file is broken":                        {wishes: []wish{broken(fileA, "")}, pod: stored(asks(fileA, "x", 1))},
		"another file is broken":                    {wishes: []wish{broken(fileB, "")}, pod: stored(asks(fileA, "x", 1)), ends: true},
		"the URL has not answered":                  {unknown: web.Source, pod: stored(asks(web, "x", 1))},
		"the directory can't be read":               {unknown: fileA.Source, pod: stored(asks(fileA, "x", 1))},
		"the directory can't be read, of the URL":   {unknown: fileA.Source, pod: stored(asks(web, "x", 1)), ends: true},
		"its item is broken":                        {wishes: []wish{broken(web, "x")}, pod: stored(asks(web, "x", 1))},
		"another item is broken":                    {wishes: []wish{broken(web, "y")}, pod: stored(asks(web, "x", 1)), ends: true},
		"an item without a name is broken":          {wishes: []wish{broken(web, "")}, pod: stored(asks(web, "x", 1))},
		"an item without a name, and it is changed": {wishes: []wish{broken(web, ""), asks(web, "x", 2)}, pod: stored(asks(web, "x", 1)), ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := survey{wishes: c.wishes, unknown: map[podplanev1.Source]bool{c.unknown: true}, pods: map[string]standing{c.pod.name: c.pod}}
			if got := s.surplus(); (len(got) == 1) != c.ends {
				t.Errorf("got %v", got)
			}
		})
	}
}

// model applies decisions to a store as it could be.
type model struct {
	t      *testing.T
	seed   uint64
	pods   map[string]standing
	heirs  map[string]Origin
	wishes []wish
}

// pass does what Source.reconcile does. It gives whether anything changed.
func (m *model) pass() (changed bool) {
	s := survey{wishes: m.wishes, pods: maps.Clone(m.pods), heirs: m.heirs, unknown: map[podplanev1.Source]bool{}}
	for name, p := range m.pods {
		m.heirs[name] = p.from
	}
	for _, p := range s.surplus() {
		if p.from == api {
			m.t.Fatalf("seed %d: ends a pod of the API", m.seed)
		}
		m.pods[p.name], changed = leaving(p), true
	}
	for i := range m.wishes {
		w := &m.wishes[i]
		if w.err != nil {
			continue
		}
		if a, _ := s.judge(w); a != create {
			continue
		}
		if p, taken := m.pods[w.name()]; taken {
			m.t.Fatalf("seed %d: %s is stored although %+v has its name", m.seed, w.pod.UID, p)
		}
		m.pods[w.name()], m.heirs[w.name()], s.pods[w.name()], changed = stored(*w), w.from, stored(*w), true
	}
	return changed
}

// TestNamesProperty: whatever is asked for and removed by turns, a name never has two pods, one that is asked for keeps its name, and at rest each
// name that is asked for has a pod that is.
func TestNamesProperty(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for run := range 2_000 {
		m := &model{t: t, seed: seed, pods: map[string]standing{}, heirs: map[string]Origin{}}
		r := rand.New(rand.NewPCG(seed, uint64(run)))
		versions := map[string]int{}
		for range 12 {
			m.disturb(r, versions)
			m.pass()
			m.settle(r)
		}
		m.rest()
	}
}

// disturb changes what is asked for, or what is stored over the API.
func (m *model) disturb(r *rand.Rand, versions map[string]int) {
	name, from := []string{"x", "y"}[r.IntN(2)], []Origin{fileA, fileB, web}[r.IntN(3)]
	key := from.Path + name
	at := slices.IndexFunc(m.wishes, func(w wish) bool { return w.from == from && w.pod.Name == name })
	switch r.IntN(4) {
	case 0:
		if at >= 0 {
			m.wishes = slices.Delete(m.wishes, at, at+1)
		}
	case 1:
		if p, taken := m.pods["default/"+name]; !taken {
			m.pods["default/"+name] = foreign(name)
		} else if p.from == api {
			m.pods["default/"+name] = leaving(p)
		}
	default:
		versions[key]++
		if at >= 0 {
			m.wishes[at] = asks(from, name, versions[key])
		} else {
			m.wishes = append(m.wishes, asks(from, name, versions[key]))
		}
		slices.SortFunc(m.wishes, func(a, b wish) int { return strings.Compare(a.from.Path+a.pod.Name, b.from.Path+b.pod.Name) })
	}
}

// settle lets some of the pods that end be gone, and checks that nobody loses a name that is asked for.
func (m *model) settle(r *rand.Rand) {
	for name, p := range m.pods {
		if p.deleting && r.IntN(2) == 0 {
			delete(m.pods, name)
		}
	}
}

// rest runs until nothing changes.
func (m *model) rest() {
	for step := 0; ; step++ {
		if step > 20 {
			m.t.Fatalf("seed %d: no rest: %+v", m.seed, m.pods)
		}
		changed := m.pass()
		for name, p := range m.pods {
			if p.deleting {
				delete(m.pods, name)
				changed = true
			}
		}
		if !changed {
			break
		}
	}
	for i := range m.wishes {
		w := &m.wishes[i]
		p, ok := m.pods[w.name()]
		if !ok {
			m.t.Fatalf("seed %d: nobody has the name of %s", m.seed, w.pod.UID)
		}
		if p.from == w.from && p.uid != string(w.pod.UID) {
			m.t.Fatalf("seed %d: %s runs in place of %s", m.seed, p.uid, w.pod.UID)
		}
	}
	for name, p := range m.pods {
		asked := slices.ContainsFunc(m.wishes, func(w wish) bool { return string(w.pod.UID) == p.uid })
		if p.from != api && !asked {
			m.t.Fatalf("seed %d: %s (%s) is not asked for", m.seed, name, p.uid)
		}
	}
}

// TestAnUpdateKeepsTheName: a pod that is changed, even again before the old one is gone, keeps its name against one that waited for it.
func TestAnUpdateKeepsTheName(t *testing.T) {
	m := &model{t: t, pods: map[string]standing{}, heirs: map[string]Origin{}, wishes: []wish{asks(web, "x", 1)}}
	m.pass()
	m.wishes = []wish{asks(fileA, "x", 1), asks(web, "x", 2)} // files come first in the order
	m.rest()
	if p := m.pods["default/x"]; p.from != web || p.uid != string(asks(web, "x", 2).pod.UID) {
		t.Errorf("got %+v", p)
	}
	m.wishes = []wish{asks(fileA, "x", 1)}
	m.rest()
	if p := m.pods["default/x"]; p.from != fileA {
		t.Errorf("got %+v", p)
	}
}
