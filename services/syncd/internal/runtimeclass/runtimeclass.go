// Package runtimeclass reads the node's runtime classes: manifests of kind RuntimeClass (node.k8s.io/v1) in a directory.
//
// The directory is read each time a class is asked for, which only pods that name one do: what it says holds at once, and nothing is
// remembered or watched.
package runtimeclass

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"sigs.k8s.io/yaml"
)

// maxBytes bounds a manifest.
const maxBytes = 1 << 20

// Dir is a directory of manifests; empty: there are no classes.
type Dir string

// Get finds the class, nil when there is none of the name. A manifest that can't be read is an error only when the class is not found in another one.
func (d Dir) Get(name string) (*nodev1.RuntimeClass, error) {
	if d == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the runtime classes: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() || strings.HasPrefix(e.Name(), ".") || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		class, err := read(filepath.Join(string(d), e.Name()))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if class.Name == name {
			return class, nil
		}
	}
	return nil, errors.Join(errs...)
}

// Handler is the runtime's handler for the pod's class, "" for a pod without one.
func (d Dir) Handler(p *v1.Pod) (string, error) {
	name := p.Spec.RuntimeClassName
	if name == nil {
		return "", nil
	}
	class, err := d.Get(*name)
	if err != nil {
		return "", err
	}
	if class == nil {
		return "", fmt.Errorf("runtime class %q is not known to this node", *name)
	}
	return class.Handler, nil
}

func read(file string) (*nodev1.RuntimeClass, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("read runtime class: %w", err)
	}
	if info.Size() > maxBytes {
		return nil, fmt.Errorf("runtime class %s: larger than %d bytes", file, maxBytes)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read runtime class: %w", err)
	}
	class := new(nodev1.RuntimeClass)
	if err := yaml.UnmarshalStrict(data, class); err != nil {
		return nil, fmt.Errorf("runtime class %s: %w", file, err)
	}
	switch {
	case class.Kind != "RuntimeClass" || class.APIVersion != nodev1.SchemeGroupVersion.String():
		return nil, fmt.Errorf("runtime class %s: must be of kind RuntimeClass and apiVersion %s", file, nodev1.SchemeGroupVersion)
	case class.Name == "" || class.Handler == "":
		return nil, fmt.Errorf("runtime class %s: must have metadata.name and handler", file)
	}
	return class, nil
}
