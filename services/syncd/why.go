package syncd

import (
	"context"
	"fmt"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/daemon"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/decisions"
	"github.com/podplane/podplane/services/syncd/internal/history"
	"github.com/podplane/podplane/services/syncd/internal/store"
)

// startWhy opens the journal of decisions, starts what writes it and serves what reads it.
func startWhy(ctx context.Context, deps daemon.Deps, s *store.Store) (*decisions.Journal, error) {
	stream, err := bus.OpenStream(ctx, deps.Bus, bus.Decisions)
	if err != nil {
		return nil, fmt.Errorf("open the journal of decisions: %w", err)
	}
	journal := decisions.New(stream, deps.Node, deps.Registry, deps.Log)
	deps.Go("decisions", journal.Run)
	h := history.New(pods{s}, deps.Log)
	h.Use(nil, stream, nil)
	podplanev1.RegisterWhyServiceServer(deps.GRPC, h)
	deps.Go("history", ignoreCanceled(func(ctx context.Context) error {
		if err := h.Open(ctx, deps.Bus); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}))
	return journal, nil
}

// pods are the pods that there are.
type pods struct{ *store.Store }

// Find gives the UID of the pod that has the name.
func (p pods) Find(namespace, name string) (string, bool) {
	if o, ok := p.Pods().Get(namespace, name); ok {
		return o.UID, true
	}
	return "", false
}
