package access

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/podplane/podplane/internal/fault"
)

// Group is the API group of Podplane's own resources; that of Kubernetes' core is empty.
const Group = "podplane.io"

// Attributes are what a caller wants to do.
type Attributes struct {
	// Verb is Kubernetes' word: get, list, watch, create, update, patch, delete, deletecollection.
	Verb string
	// Group, Resource and Subresource say of what; empty for a path that is no resource.
	Group, Resource, Subresource string
	// Namespace and Name say of which; an empty Namespace means all of them or that there are none.
	Namespace, Name string
	// Path is set for what is no resource.
	Path string
}

// Qualified is the resource with its subresource, as in pods/log.
func (a Attributes) Qualified() string {
	if a.Subresource == "" {
		return a.Resource
	}
	return a.Resource + "/" + a.Subresource
}

// ForPath gives the attributes of a request for something that is no resource.
func ForPath(method, path string) Attributes {
	return Attributes{Verb: strings.ToLower(method), Path: path}
}

// Params are what the route of a request to the API has found out.
type Params struct {
	Method, Pattern string
	// Namespace and Name are those in the path, decoded.
	Namespace, Name string
	// Filter are the values of the query's namespace.
	Filter []string
	// Watch says that changes are followed.
	Watch bool
}

// ForRoute gives the attributes of a request to the API.
func ForRoute(p Params) Attributes {
	a := Attributes{Namespace: p.Namespace, Name: p.Name, Verb: verb(p)}
	if rest, ok := strings.CutPrefix(p.Pattern, "/podplane/v1/"); ok {
		a.Group = Group
		a.Resource, a.Subresource, _ = strings.Cut(rest, "/")
		if len(p.Filter) == 1 && !clusterWide[a.Qualified()] {
			a.Namespace = p.Filter[0]
		}
		return a
	}
	rest := strings.TrimPrefix(p.Pattern, "/api/v1/")
	rest = strings.TrimPrefix(rest, "namespaces/{namespace}/")
	a.Resource, rest, _ = strings.Cut(rest, "/")
	_, a.Subresource, _ = strings.Cut(rest, "/")
	return a
}

func verb(p Params) string {
	one := strings.Contains(p.Pattern, "{name}")
	switch p.Method {
	case http.MethodGet, http.MethodHead:
		switch {
		case one:
			return "get"
		case p.Watch:
			return "watch"
		}
		return "list"
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		if one {
			return "delete"
		}
		return "deletecollection"
	}
	return strings.ToLower(p.Method)
}

// discovery are the paths by which clients find out what there is: everybody who is known may read them.
func discovery(path string) bool {
	switch path {
	case "/", "/version", "/api", "/apis", "/api/v1", "/openapi.json", "/docs", "/docs/docs.js", "/docs/docs.css":
		return true
	}
	return false
}

func (a Attributes) forbidden(user string) error {
	if a.Resource == "" {
		return fault.For(fault.PermissionDenied, fault.Object{}, "forbidden: user %q cannot %s path %q", user, a.Verb, a.Path)
	}
	o := fault.Object{Group: a.Group, Resource: a.Resource, Name: a.Name}
	where := "at the cluster scope"
	if a.Namespace != "" {
		where = fmt.Sprintf("in the namespace %q", a.Namespace)
	}
	what := a.Resource
	if a.Group != "" {
		what += "." + a.Group
	}
	if a.Name != "" {
		what += fmt.Sprintf(" %q", a.Name)
	}
	return fault.For(fault.PermissionDenied, o, "%s is forbidden: user %q cannot %s resource %q in API group %q %s",
		what, user, a.Verb, a.Qualified(), a.Group, where)
}
