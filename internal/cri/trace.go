package cri

import (
	"context"
	"strings"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/stats"

	"github.com/podplane/podplane/internal/telemetry"
)

type operationKey struct{}

func withOperation(ctx context.Context, op operation) context.Context {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	traced := op // a copy, so that calls outside of traces allocate nothing
	return context.WithValue(ctx, operationKey{}, &traced)
}

// traceHandler makes a client span of each call that is part of a trace, and hands the trace on to the runtime, which
// may export spans of its own. Calls outside of traces (relists, health checks) start none.
type traceHandler struct{ stats.Handler }

func newTraceHandler(provider trace.TracerProvider) stats.Handler {
	// The calls are counted by Observer; a second set of metrics would only cost.
	options := []otelgrpc.Option{otelgrpc.WithMeterProvider(metricnoop.NewMeterProvider())}
	if provider != nil {
		options = append(options, otelgrpc.WithTracerProvider(provider))
	}
	return &traceHandler{otelgrpc.NewClientHandler(options...)}
}

// TagRPC starts the span.
func (h *traceHandler) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	op, ok := ctx.Value(operationKey{}).(*operation)
	if !ok {
		return ctx
	}
	ctx = h.Handler.TagRPC(ctx, info)
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		if op.podUID != "" {
			span.SetAttributes(telemetry.PodUID.String(op.podUID))
		}
		switch namespace, name, _ := strings.Cut(op.target, "/"); {
		case op.target == "":
		case op.kind == telemetry.PodName: // errors name a pod with its namespace
			span.SetAttributes(telemetry.NamespaceName.String(namespace), telemetry.PodName.String(name))
		default:
			span.SetAttributes(op.kind.String(op.target))
		}
	}
	return ctx
}

// HandleRPC ends the span.
func (h *traceHandler) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if ctx.Value(operationKey{}) != nil {
		h.Handler.HandleRPC(ctx, s)
	}
}
