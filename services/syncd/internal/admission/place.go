package admission

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podplane/podplane/internal/fault"
)

// Place decides which node a new pod is for: the one that it names, or that the request names, or the only one. There is no scheduler, so
// that among several somebody has to choose. nodes are the names of all there are.
func Place(pod *v1.Pod, asked string, nodes []string) (string, error) {
	path := field.NewPath("spec", "nodeName")
	node := pod.Spec.NodeName
	switch {
	case node != "" && asked != "" && node != asked:
		return "", fault.Invalidate(about(pod), field.ErrorList{field.Invalid(path, node, "must be the node of the request, "+quote(asked)+", or empty")})
	case node == "":
		node = asked
	}
	switch {
	case node == "" && len(nodes) == 1:
		return nodes[0], nil
	case node == "":
		return "", fault.Invalidate(about(pod), field.ErrorList{field.Required(path,
			"there are several nodes and no scheduler: name one here or as ?node= of the request, of "+strings.Join(nodes, ", "))})
	case !slices.Contains(nodes, node):
		return "", fault.Invalidate(about(pod), field.ErrorList{field.Invalid(path, node, "there is no such node; there are "+strings.Join(nodes, ", "))})
	}
	return node, nil
}
