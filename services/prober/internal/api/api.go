// Package api serves ProbeService.
package api

import (
	"context"
	"fmt"
	"slices"
	"strings"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// Source knows the verdict of every probe.
type Source interface {
	// Records gives those of a node, or of every node ("").
	Records(ctx context.Context, node string, match func(namespace, name, uid string) bool) ([]*podplanev1.ProbeRecord, error)
}

// Server implements podplane.v1.ProbeService.
type Server struct {
	podplanev1.UnimplementedProbeServiceServer
	source Source
}

// New makes a server.
func New(s Source) *Server { return &Server{source: s} }

// ListProbes answers the verdicts, sorted by namespace, name, UID, container and kind.
func (s *Server) ListProbes(ctx context.Context, r *podplanev1.ListProbesRequest) (*podplanev1.ListProbesResponse, error) {
	list, err := s.source.Records(ctx, r.GetNode(), func(namespace, name, uid string) bool {
		return is(r.GetNamespace(), namespace) && is(r.GetName(), name) && is(r.GetUid(), uid)
	})
	if err != nil {
		return nil, fmt.Errorf("list probes: %w", err)
	}
	slices.SortFunc(list, func(a, b *podplanev1.ProbeRecord) int {
		return strings.Compare(order(a), order(b))
	})
	return &podplanev1.ListProbesResponse{Probes: list}, nil
}

func is(wanted, got string) bool { return wanted == "" || wanted == got }

func order(r *podplanev1.ProbeRecord) string {
	return fmt.Sprintf("%s/%s/%s/%s/%d", r.GetNamespace(), r.GetName(), r.GetUid(), r.GetContainer(), r.GetKind())
}
