package admission_test

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/syncd/internal/admission"
)

func TestPlace(t *testing.T) {
	one, two := []string{"a"}, []string{"a", "b"}
	for name, c := range map[string]struct {
		nodeName, asked string
		nodes           []string
		want, refused   string
	}{
		"the only node":                   {nodes: one, want: "a"},
		"none of several":                 {nodes: two, refused: "spec.nodeName: Required value: there are several nodes and no scheduler: name one here or as ?node= of the request, of a, b"},
		"named by the pod":                {nodeName: "b", nodes: two, want: "b"},
		"named by the request":            {asked: "b", nodes: two, want: "b"},
		"named by both":                   {nodeName: "b", asked: "b", nodes: two, want: "b"},
		"named differently":               {nodeName: "b", asked: "a", nodes: two, refused: `spec.nodeName: Invalid value: must be the node of the request, "a", or empty`},
		"one that there is not":           {nodeName: "c", nodes: two, refused: `spec.nodeName: Invalid value: there is no such node; there are a, b`},
		"one that there is not, asked":    {asked: "c", nodes: two, refused: `spec.nodeName: Invalid value: there is no such node`},
		"one that there is not, only one": {nodeName: "c", nodes: one, refused: `there is no such node; there are a`},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &v1.Pod{Spec: v1.PodSpec{NodeName: c.nodeName}}
			got, err := admission.Place(pod, c.asked, c.nodes)
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if (c.refused == "") != (err == nil) {
				t.Fatalf("got error %v, want %q", err, c.refused)
			}
			if err != nil && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.refused)) {
				t.Errorf("got error %v, want %q", err, c.refused)
			}
		})
	}
}
