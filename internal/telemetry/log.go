package telemetry

import (
	"context"
	"io"
	"log/slog"

	"go.opentelemetry.io/otel/trace"

	"github.com/podplane/podplane/internal/fault"
)

// Log formats.
const (
	FormatText = "text"
	FormatJSON = "json"
)

// NewLogger makes the service's logger: text or json, from a level on (debug, info, warn, error). Every line names the service; lines
// written with a context name its trace.
func NewLogger(w io.Writer, id Identity, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fault.New(fault.Invalid, "log level is %q, must be debug, info, warn or error", level)
	}
	opts := &slog.HandlerOptions{Level: l}
	var h slog.Handler
	switch format {
	case FormatText:
		h = slog.NewTextHandler(w, opts)
	case FormatJSON:
		h = slog.NewJSONHandler(w, opts)
	default:
		return nil, fault.New(fault.Invalid, "log format is %q, must be text or json", format)
	}
	return slog.New(traceHandler{h}).With("service", id.Service), nil
}

// traceHandler adds to each record trace_id and span_id of the context, and which pod it is about.
type traceHandler struct{ slog.Handler }

// Handle adds the ids and passes the record on.
func (h traceHandler) Handle(ctx context.Context, r slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		r.AddAttrs(slog.String("trace_id", sc.TraceID().String()), slog.String("span_id", sc.SpanID().String()))
	}
	if a := AboutFrom(ctx); a != (About{}) {
		r = r.Clone()
		a.addTo(&r)
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs keeps the ids in derived loggers.
func (h traceHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return traceHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup keeps the ids in derived loggers.
func (h traceHandler) WithGroup(name string) slog.Handler {
	return traceHandler{h.Handler.WithGroup(name)}
}
