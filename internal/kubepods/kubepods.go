// Package kubepods names the cgroups of pods as Kubernetes does, for both drivers: with cgroupfs a cgroup is a path below the hierarchy's
// top, with systemd a slice, whose name says in which slices it is.
//
// It only makes names: no cgroup is looked at.
package kubepods

import (
	"path"
	"strings"
)

// Name is the cgroup that all pods are below.
const Name = "kubepods"

// The classes of pods that have a cgroup of their own; those of the Guaranteed class are directly in the one of all pods.
const (
	Burstable  = "burstable"
	BestEffort = "besteffort"
)

// Tree says where the pods' cgroups are.
type Tree struct {
	// Systemd: cgroups are slices of systemd.
	Systemd bool
	// Root is the cgroup that the one of all pods is in: a path with either driver (/a/b is a-b.slice with systemd), or a slice. Empty or /: the top.
	Root string
}

// All is the cgroup of all pods, as the driver names it.
func (t Tree) All() string { return t.name("", "") }

// Class is the cgroup of a class of pods.
func (t Tree) Class(class string) string { return t.name(class, "") }

// Pod is the cgroup of a pod of a class; "" is the Guaranteed one.
func (t Tree) Pod(class, uid string) string { return t.name(class, "pod"+uid) }

// Dir is where a cgroup that the driver names so is below the top of a hierarchy.
func (t Tree) Dir(name string) string {
	if !t.Systemd {
		return name
	}
	parts := strings.Split(strings.TrimSuffix(name, ".slice"), "-")
	var dir string
	for i := range parts {
		dir = path.Join(dir, strings.Join(parts[:i+1], "-")+".slice")
	}
	return dir
}

func (t Tree) name(class, pod string) string {
	if !t.Systemd {
		return path.Join("/", t.Root, Name, class, pod)
	}
	var parts []string
	for _, component := range strings.Split(t.Root, "/") {
		slice, is := strings.CutSuffix(component, ".slice")
		if !is {
			slice = escape(component)
		}
		if slice != "" && slice != "-" {
			parts = append(parts, slice)
		}
	}
	parts = append(parts, Name)
	for _, part := range []string{class, pod} {
		if part != "" {
			parts = append(parts, escape(part))
		}
	}
	return strings.Join(parts, "-") + ".slice"
}

// escape replaces what separates the slices in a slice's name.
func escape(component string) string { return strings.ReplaceAll(component, "-", "_") }
