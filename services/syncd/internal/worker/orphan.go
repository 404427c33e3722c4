package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
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

// recall is what is left of a pod's specification in the runtime: the containers' ports and preStop hooks, which annotations keep.
func recall(seen *pod.RuntimePod) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: seen.Namespace, Name: seen.Name, UID: types.UID(seen.UID)}}
	for _, c := range seen.Running() {
		spec := v1.Container{Name: c.Name}
		hook := new(v1.LifecycleHandler)
		if raw := c.Annotations[pod.AnnotationPreStopHandler]; raw != "" && json.Unmarshal([]byte(raw), hook) == nil {
			spec.Lifecycle = &v1.Lifecycle{PreStop: hook}
		}
		if raw := c.Annotations[pod.AnnotationContainerPorts]; raw != "" && json.Unmarshal([]byte(raw), &spec.Ports) != nil {
			spec.Ports = nil
		}
		p.Spec.Containers = append(p.Spec.Containers, spec)
	}
	return p
}

// addressOf asks for the address of a pod that has a hook which may need it; a list does not tell.
func (m *Manager) addressOf(ctx context.Context, p *v1.Pod) string {
	if !slices.ContainsFunc(p.Spec.Containers, func(c v1.Container) bool { return c.Lifecycle != nil && c.Lifecycle.PreStop.HTTPGet != nil }) {
		return ""
	}
	seen, err := m.deps.Observer.PodStatus(ctx, string(p.UID))
	if ips := seen.IPs(); err == nil && len(ips) > 0 {
		return ips[0]
	}
	return ""
}

func (m *Manager) removeOrphan(ctx context.Context, seen *pod.RuntimePod) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	p := recall(seen)
	podIP := m.addressOf(ctx, p)
	for _, c := range seen.Running() {
		r := KillRequest{Pod: p, Container: c.Name, ID: c.ID, Grace: plan.MinGrace, PodIP: podIP}
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
