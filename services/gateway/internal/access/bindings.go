package access

import (
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/podplane/podplane/internal/fault"
)

// The roles.
const (
	// View reads everything but Secrets.
	View = "view"
	// Edit is View, and reads and writes Pods, ConfigMaps and Secrets.
	Edit = "edit"
	// Exec reads one Pod at a time, and runs commands, attaches and forwards ports in them; it does not read lists or logs.
	Exec = "exec"
	// Admin does everything, in all namespaces also what is in none.
	Admin = "admin"
)

// everywhere as a namespace of a binding means all of them, and what is in none.
const everywhere = "*"

// Bindings say who has which role where.
type Bindings struct {
	Bindings []Binding `json:"bindings"`
}

// Binding gives a role to users and groups in namespaces.
type Binding struct {
	Role       string   `json:"role"`
	Users      []string `json:"users,omitempty"`
	Groups     []string `json:"groups,omitempty"`
	Namespaces []string `json:"namespaces"`
}

// ParseBindings reads the file of bindings. Unknown keys and roles are errors, and so is a binding of nobody or nowhere.
func ParseBindings(data []byte) (*Bindings, error) {
	var b Bindings
	if err := yaml.UnmarshalStrict(data, &b); err != nil {
		return nil, fault.New(fault.Invalid, "not a file of bindings: %w", err)
	}
	for i, x := range b.Bindings {
		switch {
		case rules[x.Role] == nil:
			return nil, fault.New(fault.Invalid, "bindings[%d].role: %q must be view, edit, exec or admin", i, x.Role)
		case len(x.Users)+len(x.Groups) == 0:
			return nil, fault.New(fault.Invalid, "bindings[%d]: names neither users nor groups", i)
		case len(x.Namespaces) == 0:
			return nil, fault.New(fault.Invalid, "bindings[%d].namespaces: must name namespaces, or \"*\" for all of them", i)
		case slices.Contains(x.Namespaces, ""), slices.Contains(x.Users, ""), slices.Contains(x.Groups, ""):
			return nil, fault.New(fault.Invalid, "bindings[%d]: has an empty name", i)
		case slices.Contains(x.Users, everywhere), slices.Contains(x.Groups, everywhere):
			return nil, fault.New(fault.Invalid, "bindings[%d]: %q names nobody; the group %s is everybody who is known", i, everywhere, Authenticated)
		case len(x.Namespaces) > 1 && slices.Contains(x.Namespaces, everywhere):
			return nil, fault.New(fault.Invalid, "bindings[%d].namespaces: %q means all of them and stands alone", i, everywhere)
		}
	}
	return &b, nil
}

// Allow says whether a binding allows this.
func (b *Bindings) Allow(id Identity, what Attributes) bool {
	return slices.ContainsFunc(b.Bindings, func(x Binding) bool { return x.of(id) && x.at(what.Namespace) && rules[x.Role](what) })
}

func (x Binding) of(id Identity) bool {
	return slices.Contains(x.Users, id.User) || slices.ContainsFunc(id.Groups, func(g string) bool { return slices.Contains(x.Groups, g) })
}

// at says whether the binding is for a namespace; for all of them at once, and for what is in none, only one for everywhere is.
func (x Binding) at(namespace string) bool {
	return slices.Contains(x.Namespaces, everywhere) || (namespace != "" && slices.Contains(x.Namespaces, namespace))
}

var (
	reading = []string{"get", "list", "watch"}
	writing = []string{"create", "update", "patch", "delete", "deletecollection"}

	visible = []string{
		"pods", "pods/log", "pods/status", "pods/resize", "pods/ephemeralcontainers", "configmaps", "events", "nodes",
		"lifecycle", "why", "probes", "volumes", "evictions", "evictions/rank", "conditions", "services",
	}
	// Who may add ephemeral containers may run anything in a pod, with any privileges: that is more than to execute something in one of its containers.
	editable   = []string{"pods", "pods/resize", "pods/ephemeralcontainers", "configmaps", "secrets"}
	executable = []string{"pods/exec", "pods/attach", "pods/portforward"}
	// clusterWide are Podplane's resources that are in no namespace.
	clusterWide = map[string]bool{"evictions/rank": true, "conditions": true, "services": true}
	// operational are paths that tell of the whole node.
	operational = []string{"/metrics", "/readyz"}
)

// rules say what each role may do, wherever it is bound.
var rules = map[string]func(Attributes) bool{
	View: mayView,
	Edit: func(a Attributes) bool {
		return mayView(a) || (slices.Contains(editable, a.Qualified()) && (slices.Contains(reading, a.Verb) || slices.Contains(writing, a.Verb)))
	},
	Exec: func(a Attributes) bool {
		if a.Qualified() == "pods" {
			return a.Verb == "get"
		}
		return slices.Contains(executable, a.Qualified()) && (a.Verb == "get" || a.Verb == "create")
	},
	Admin: func(Attributes) bool { return true },
}

func mayView(a Attributes) bool {
	if a.Resource == "" {
		return a.Verb == "get" && slices.Contains(operational, a.Path)
	}
	return slices.Contains(reading, a.Verb) && slices.Contains(visible, a.Qualified())
}
