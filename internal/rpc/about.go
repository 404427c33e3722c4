package rpc

import (
	"context"
	"net/url"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"

	"github.com/podplane/podplane/internal/telemetry"
)

// aboutTrailer tells the caller which pod its call turned out to be about, for its spans.
const aboutTrailer = "podplane-about"

// Tell says, within a handler, which pod the call turned out to be about: on the span of ctx, on the call's own on both sides, and on the span
// that the caller made the call in.
func Tell(ctx context.Context, a telemetry.About) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return
	}
	telemetry.Tell(ctx, a)
	v := url.Values{"uid": {a.PodUID}, "namespace": {a.Namespace}, "name": {a.PodName}}
	_ = grpc.SetTrailer(ctx, metadata.Pairs(aboutTrailer, v.Encode())) // outside of a call there is nobody to tell
}

// aboutHandler puts what Tell said on spans, around OpenTelemetry's own handler that makes them.
type aboutHandler struct{ stats.Handler }

type callerKey struct{}

// TagRPC keeps the span that the call was made in.
func (h aboutHandler) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	caller := trace.SpanFromContext(ctx)
	ctx = h.Handler.TagRPC(ctx, info)
	if caller.IsRecording() {
		ctx = context.WithValue(ctx, callerKey{}, caller)
	}
	return ctx
}

// HandleRPC reads the trailer as it goes out or comes in, while the spans are open.
func (h aboutHandler) HandleRPC(ctx context.Context, s stats.RPCStats) {
	switch s := s.(type) {
	case *stats.OutTrailer:
		tellAbout(ctx, s.Trailer)
	case *stats.InTrailer:
		tellAbout(ctx, s.Trailer)
	}
	h.Handler.HandleRPC(ctx, s)
}

func tellAbout(ctx context.Context, trailer metadata.MD) {
	said := trailer.Get(aboutTrailer)
	if len(said) == 0 {
		return
	}
	v, err := url.ParseQuery(said[0])
	if err != nil {
		return // another version's
	}
	a := telemetry.About{PodUID: v.Get("uid"), Namespace: v.Get("namespace"), PodName: v.Get("name")}
	telemetry.Tell(ctx, a)
	if caller, ok := ctx.Value(callerKey{}).(trace.Span); ok {
		telemetry.Tell(trace.ContextWithSpan(ctx, caller), a)
	}
}
