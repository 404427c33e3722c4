package journal

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/pleg/internal/diff"
)

// Headers of an event: CloudEvents' binary mode over NATS.
const (
	headerID          = "ce-id"
	headerSource      = "ce-source"
	headerType        = "ce-type"
	headerSpecVersion = "ce-specversion"
	headerTime        = "ce-time"
	headerSubject     = "ce-subject"
	headerContentType = "content-type"

	specVersion = "1.0"
	contentType = "application/json"

	// TypePrefix precedes the type of an event in ce-type.
	TypePrefix = "podplane.pleg.v1."

	maxMessage    = 4 << 10
	maxContainers = 256
)

var wireTypes = map[diff.Type]podplanev1.LifecycleType{
	diff.ContainerCreated: podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_CREATED,
	diff.ContainerStarted: podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_STARTED,
	diff.ContainerDied:    podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_DIED,
	diff.ContainerRemoved: podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_REMOVED,
	diff.ContainerChanged: podplanev1.LifecycleType_LIFECYCLE_TYPE_CONTAINER_CHANGED,
	diff.SandboxStarted:   podplanev1.LifecycleType_LIFECYCLE_TYPE_SANDBOX_STARTED,
	diff.SandboxStopped:   podplanev1.LifecycleType_LIFECYCLE_TYPE_SANDBOX_STOPPED,
	diff.SandboxRemoved:   podplanev1.LifecycleType_LIFECYCLE_TYPE_SANDBOX_REMOVED,
}

// encode makes the message of an event. The context's trace is the one that the event belongs to.
func encode(ctx context.Context, node string, e *diff.Event) (bus.Message, error) {
	data, err := protojson.Marshal(toProto(ctx, node, e))
	if err != nil {
		return bus.Message{}, fmt.Errorf("encode event %s of %s: %w", e.Type, e.Object.ID, err)
	}
	return bus.Message{
		Subject: bus.LifecycleSubject(node, e.Pod.UID, e.Type.String()),
		ID:      e.ID,
		Data:    data,
		Header: map[string]string{
			headerID:          e.ID,
			headerSource:      "/nodes/" + node + "/pleg",
			headerType:        TypePrefix + e.Type.String(),
			headerSpecVersion: specVersion,
			headerTime:        e.OccurredAt.UTC().Format(time.RFC3339Nano),
			headerSubject:     e.Object.ID,
			headerContentType: contentType,
		},
	}, nil
}

func toProto(ctx context.Context, node string, e *diff.Event) *podplanev1.LifecycleEvent {
	traceparent, tracestate := telemetry.TraceContext(ctx)
	if traceparent == "" {
		traceparent = e.Object.Traceparent
	}
	p := &podplanev1.LifecycleEvent{
		Node: node, Uid: e.Pod.UID, Namespace: e.Pod.Namespace, Name: e.Pod.Name,
		Type:       wireTypes[e.Type],
		SandboxId:  e.Object.SandboxID,
		Reason:     e.Reason,
		Message:    strings.ToValidUTF8(e.Message[:min(len(e.Message), maxMessage)], ""),
		OccurredAt: timestamppb.New(e.OccurredAt),
		ObservedAt: timestamppb.New(e.ObservedAt),
		Via:        string(e.Via),
		Attempt:    e.Object.Attempt,
		Trace:      &podplanev1.TraceContext{Traceparent: traceparent, Tracestate: tracestate},
		Id:         e.ID,
	}
	if !e.Object.IsSandbox() {
		p.Container, p.ContainerId = e.Object.Name, e.Object.ID
	}
	if e.ExitKnown {
		p.ExitCode = &e.Object.ExitCode
	}
	newest := e.Containers[max(0, len(e.Containers)-maxContainers):]
	for i := range newest {
		c := &newest[i]
		s := &podplanev1.ContainerSnapshot{Name: c.Name, Id: c.ID, State: c.Phase.String(), ExitCode: c.ExitCode, Attempt: c.Attempt}
		if c.Lost && c.Phase < diff.PhaseExited {
			s.State = "unknown"
		}
		p.Containers = append(p.Containers, s)
	}
	return p
}

// Decode reads the data of a message of the journal.
func Decode(m bus.Message) (*podplanev1.LifecycleEvent, error) {
	p := new(podplanev1.LifecycleEvent)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(m.Data, p); err != nil {
		return nil, fmt.Errorf("decode lifecycle event %d: %w", m.Sequence, err)
	}
	p.Sequence = m.Sequence
	return p, nil
}
