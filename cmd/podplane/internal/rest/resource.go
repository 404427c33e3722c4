package rest

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// Resource is a kind of object that the API serves.
type Resource struct {
	// Kind as in manifests, such as "Pod".
	Kind string
	// Plural as in paths, such as "pods".
	Plural     string
	Namespaced bool
	// Writable says whether users may create, replace and delete it.
	Writable bool
	aliases  []string
}

// resources are all that the API serves under /api/v1.
var resources = []Resource{
	{Kind: "Pod", Plural: "pods", Namespaced: true, Writable: true, aliases: []string{"pod", "po"}},
	{Kind: "ConfigMap", Plural: "configmaps", Namespaced: true, Writable: true, aliases: []string{"configmap", "cm"}},
	{Kind: "Secret", Plural: "secrets", Namespaced: true, Writable: true, aliases: []string{"secret"}},
	{Kind: "Event", Plural: "events", Namespaced: true, aliases: []string{"event", "ev"}},
	{Kind: "Node", Plural: "nodes", aliases: []string{"node", "no"}},
}

// ResourceByName finds a resource by its plural, singular or short name.
func ResourceByName(name string) (Resource, error) {
	n := strings.ToLower(name)
	for _, r := range resources {
		if r.Plural == n || slices.Contains(r.aliases, n) {
			return r, nil
		}
	}
	known := make([]string, len(resources))
	for i, r := range resources {
		known[i] = r.Plural
	}
	return Resource{}, fmt.Errorf("unknown resource %q; known: %s", name, strings.Join(known, ", "))
}

// ResourceByKind finds a resource by a manifest's kind.
func ResourceByKind(apiVersion, kind string) (Resource, error) {
	var writable []string
	for _, r := range resources {
		if r.Writable && apiVersion == "v1" && r.Kind == kind {
			return r, nil
		}
		if r.Writable {
			writable = append(writable, r.Kind)
		}
	}
	return Resource{}, fmt.Errorf("apiVersion %q, kind %q: want apiVersion v1 and one of %s", apiVersion, kind, strings.Join(writable, ", "))
}

// Path is the resource's collection in a namespace; an empty namespace is all
// of them.
func (r Resource) Path(namespace string) string {
	if !r.Namespaced || namespace == "" {
		return "/api/v1/" + r.Plural
	}
	return "/api/v1/namespaces/" + url.PathEscape(namespace) + "/" + r.Plural
}

// ObjectPath is the path of one object.
func (r Resource) ObjectPath(namespace, name string) string {
	return r.Path(namespace) + "/" + url.PathEscape(name)
}
