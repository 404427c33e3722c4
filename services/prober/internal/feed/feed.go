// Package feed connects the manager with the bus. It decides nothing.
//
// It reads pods and status, each by one watch in the order of the revisions, and writes probes through a coalescing
// writer. While the bus is away nothing arrives and probing goes on; verdicts are kept and stored on return, and what
// happened meanwhile is applied from the present state.
package feed

import (
	"context"
	"log/slog"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/prober/internal/manager"
)

// Pods watches the node's pods until ctx ends.
func Pods(ctx context.Context, pods *bus.Watched[*podplanev1.PodRecord], m *manager.Manager, log *slog.Logger) error {
	return pods.Watch(ctx, bus.Handler[*podplanev1.PodRecord]{
		Apply: func(e bus.Entry[*podplanev1.PodRecord]) {
			if e.Deleted {
				if uid, ok := uidOf(e.Key); ok {
					m.PodGone(uid)
				}
				return
			}
			p, err := decodePod(e.Value)
			if err != nil { // syncd stores none like that
				log.ErrorContext(telemetry.ContextWithRecord(ctx, e.Value), "pod's record can't be read", "error", err)
				return
			}
			m.PodSeen(p)
		},
		Synced: m.Synced,
	})
}

// Status watches what became of the node's pods until ctx ends.
func Status(ctx context.Context, status *bus.Watched[*podplanev1.StatusRecord], m *manager.Manager, log *slog.Logger) error {
	return status.Watch(ctx, bus.Handler[*podplanev1.StatusRecord]{
		Apply: func(e bus.Entry[*podplanev1.StatusRecord]) {
			uid, ok := uidOf(e.Key)
			if !ok {
				return
			}
			if e.Deleted {
				m.StatusGone(uid)
				return
			}
			s, err := decodeStatus(e.Value)
			if err != nil {
				log.ErrorContext(telemetry.ContextWithRecord(ctx, e.Value), "pod's status can't be read", "error", err)
				return
			}
			m.StatusSeen(uid, s)
		},
	})
}

func uidOf(key string) (string, bool) {
	parts, err := bus.SplitKey(key)
	if err != nil || len(parts) != 2 {
		return "", false
	}
	return parts[1], true
}
