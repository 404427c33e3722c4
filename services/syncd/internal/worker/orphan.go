package worker

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podplane/podplane/internal/pod"
	"github.com/podplane/podplane/internal/telemetry"
	"github.com/podplane/podplane/services/syncd/internal/plan"
)

// endOrphan ends a pod of the runtime that nobody wants: its containers get the shortest grace. mu is held.
func (m *Manager) endOrphan(ctx context.Context, seen *pod.RuntimePod) {
	m.ending[seen.UID] = true
	m.deps.Metrics.orphaned()
	ctx = telemetry.ContextWithAbout(ctx, telemetry.About{PodUID: seen.UID, Namespace: seen.Namespace, PodName: seen.Name})
	m.log.InfoContext(ctx, "ending a pod of the runtime that is not wanted any more")
	if m.deps.Decisions != nil {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: seen.Namespace, Name: seen.Name, UID: types.UID(seen.UID)}}
		m.deps.Decisions.Decided(p, "", m.deps.Now(), []plan.Decision{plan.Unwanted()})
	}
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		defer func() {
			m.mu.Lock()
			delete(m.ending, seen.UID)
			m.mu.Unlock()
		}()
		if err := m.removeOrphan(ctx, seen); err != nil && ctx.Err() == nil {
			m.log.WarnContext(ctx, "an unwanted pod could not be ended and is tried again", slog.Any("error", err))
		}
	}()
}

func (m *Manager) removeOrphan(ctx context.Context, seen *pod.RuntimePod) error {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: seen.Namespace, Name: seen.Name, UID: types.UID(seen.UID)}}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, c := range seen.Running() {
		r := KillRequest{Pod: p, Container: c.Name, ID: c.ID, Grace: plan.MinGrace, NoHook: true}
		if err := m.deps.Ender.KillContainer(ctx, r); err != nil {
			return fmt.Errorf("stop container %s: %w", c.ID, err)
		}
	}
	for _, s := range seen.Sandboxes {
		if err := m.deps.Ender.StopSandbox(ctx, s.ID); err != nil {
			return fmt.Errorf("stop sandbox %s: %w", s.ID, err)
		}
		if err := m.deps.Ender.RemoveSandbox(ctx, s.ID); err != nil {
			return fmt.Errorf("remove sandbox %s: %w", s.ID, err)
		}
	}
	return m.deps.Files.Cleanup(ctx, p)
}
