package telemetry

import (
	"context"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// Record is what the bus' records about pods have in common.
type Record interface {
	GetUid() string
	GetNamespace() string
	GetName() string
	GetTrace() *podplanev1.TraceContext
}

// ContextWithRecord gives ctx with the pod that a record is about, and its trace.
func ContextWithRecord(ctx context.Context, r Record) context.Context {
	return ContextWithAbout(ContextWithTrace(ctx, r.GetTrace().GetTraceparent(), r.GetTrace().GetTracestate()),
		About{PodUID: r.GetUid(), Namespace: r.GetNamespace(), PodName: r.GetName()})
}
