// Package api serves VolumeService.
package api

import (
	"context"
	"fmt"
	"slices"
	"strings"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// Source knows the state of every pod's volumes.
type Source interface {
	// Records gives those of a node, or of every node ("").
	Records(ctx context.Context, node string, match func(namespace, name, uid string) bool) ([]*podplanev1.VolumesRecord, error)
}

// Server implements podplane.v1.VolumeService.
type Server struct {
	podplanev1.UnimplementedVolumeServiceServer
	source Source
}

// New makes a server.
func New(s Source) *Server { return &Server{source: s} }

// ListVolumes answers what is set up, sorted by namespace, name and UID.
func (s *Server) ListVolumes(ctx context.Context, r *podplanev1.ListVolumesRequest) (*podplanev1.ListVolumesResponse, error) {
	list, err := s.source.Records(ctx, r.GetNode(), func(namespace, name, uid string) bool {
		return is(r.GetNamespace(), namespace) && is(r.GetName(), name) && is(r.GetUid(), uid)
	})
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	slices.SortFunc(list, func(a, b *podplanev1.VolumesRecord) int {
		return strings.Compare(order(a), order(b))
	})
	return &podplanev1.ListVolumesResponse{Volumes: list}, nil
}

func is(wanted, got string) bool { return wanted == "" || wanted == got }

func order(r *podplanev1.VolumesRecord) string {
	return r.GetNamespace() + "/" + r.GetName() + "/" + r.GetUid()
}
