package registry

import (
	"context"
	"slices"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// WatchServices calls f with the replicas of a service, first and after each change of any, until ctx ends: for the connections of this
// process, which so need one watch of the bus together. f must not block.
func (r *Registry) WatchServices(ctx context.Context, service string, f func([]*podplanev1.ServiceRecord)) error {
	changed := make(chan struct{}, 1)
	r.mu.Lock()
	r.followers[changed] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.followers, changed)
	}()
	for {
		if records, seen := r.last(); seen {
			f(slices.DeleteFunc(slices.Clone(records), func(s *podplanev1.ServiceRecord) bool { return s.GetService() != service }))
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Runs says whether a service is registered on a node.
func (r *Registry) Runs(service, node string) bool {
	records, _ := r.last()
	return slices.ContainsFunc(records, func(s *podplanev1.ServiceRecord) bool { return s.GetService() == service && s.GetNode() == node })
}
