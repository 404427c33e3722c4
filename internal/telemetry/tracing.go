package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/time/rate"

	"github.com/podplane/podplane/internal/fault"
)

// scheduleDelay is how long a finished span waits for company before it is sent, unless OTEL_BSP_SCHEDULE_DELAY says otherwise.
const scheduleDelay = 500 * time.Millisecond

// Identity says who the telemetry is from.
type Identity struct {
	// Service is the short name, as in syncd; in telemetry it is podplane-syncd.
	Service, Version, Instance, Node string
}

// Options tune tracing beyond what OpenTelemetry has variables for. The zero value is right.
type Options struct {
	// KeepSpans is how many finished spans of traces that were not sampled wait for an error: 0 is [KeepSpans], less is none.
	KeepSpans int
}

// Tracing owns the process' tracer provider.
type Tracing struct {
	provider *sdktrace.TracerProvider // nil while tracing is off
	keeper   *keeper                  // nil when all traces are sampled, or those that are not are of no interest
}

// StartTracing reads the OTEL_* variables and installs the global tracer provider and propagator. Off is not an error; variables that
// make no sense are. The collector need not be reachable.
func StartTracing(ctx context.Context, id Identity, o Options, log *slog.Logger) (*Tracing, error) {
	s, err := ReadEnv(os.Getenv)
	if err != nil {
		return nil, err
	}
	otel.SetTextMapPropagator(s.Propagator)
	if !s.Export {
		otel.SetTracerProvider(noop.NewTracerProvider())
		return &Tracing{}, nil
	}
	otel.SetErrorHandler(newErrorHandler(log))
	exporter, err := newExporter(ctx, s.Protocol)
	if err != nil {
		return nil, fmt.Errorf("set up the %s trace exporter: %w", s.Protocol, err)
	}
	res, err := newResource(ctx, id)
	if err != nil {
		return nil, err
	}
	var batch []sdktrace.BatchSpanProcessorOption
	if s.OwnDelay {
		batch = append(batch, sdktrace.WithBatchTimeout(scheduleDelay))
	}
	t := &Tracing{}
	sender := sdktrace.NewBatchSpanProcessor(exporter, batch...)
	if o.KeepSpans == 0 {
		o.KeepSpans = KeepSpans
	}
	if s.KeepErrors && o.KeepSpans > 0 {
		t.keeper = newKeeper(sender, o.KeepSpans)
		sender, s.Sampler = t.keeper, keptSampler{s.Sampler}
	}
	t.provider = sdktrace.NewTracerProvider(sdktrace.WithResource(res), sdktrace.WithSampler(s.Sampler),
		sdktrace.WithSpanProcessor(aboutProcessor{}), sdktrace.WithSpanProcessor(sender))
	otel.SetTracerProvider(t.provider)
	return t, nil
}

// KeepsErrors says whether traces that were not sampled are sent when they have an error: then the services tell each other which.
func (t *Tracing) KeepsErrors() bool { return t.keeper != nil }

// OnError calls tell with the id of each trace that was not sampled and has an error in this process, when that is news. It must not block.
func (t *Tracing) OnError(tell func(traceID string)) {
	if t.keeper == nil {
		return
	}
	t.keeper.mu.Lock()
	defer t.keeper.mu.Unlock()
	t.keeper.tell = func(id trace.TraceID) { tell(id.String()) }
}

// Keep sends what this process has of a trace in which another one met an error. What is no trace id is ignored.
func (t *Tracing) Keep(traceID string) {
	if id, err := trace.TraceIDFromHex(traceID); err == nil && t.keeper != nil {
		t.keeper.Keep(id)
	}
}

// Enabled says whether spans are exported.
func (t *Tracing) Enabled() bool { return t.provider != nil }

// Flush sends what is queued, bounded by ctx.
func (t *Tracing) Flush(ctx context.Context) error {
	if t.provider == nil {
		return nil
	}
	if err := t.provider.ForceFlush(ctx); err != nil {
		return fmt.Errorf("flush spans: %w", err)
	}
	return nil
}

// Stop sends what is queued, bounded by ctx, and ends the exporter.
func (t *Tracing) Stop(ctx context.Context) error {
	if t.provider == nil {
		return nil
	}
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("stop tracing: %w", err)
	}
	return nil
}

func newExporter(ctx context.Context, protocol string) (sdktrace.SpanExporter, error) {
	if protocol == protocolGRPC {
		return otlptracegrpc.New(ctx)
	}
	return otlptracehttp.New(ctx)
}

// newResource says who the spans are from; the variables have the last word.
func newResource(ctx context.Context, id Identity) (*resource.Resource, error) {
	res, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		ServiceName.String("podplane-"+id.Service), ServiceVersion.String(id.Version), ServiceInstanceID.String(id.Instance),
		NodeName.String(id.Node)), resource.WithFromEnv())
	if err != nil {
		return nil, fault.New(fault.Invalid, "read OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return res, nil
}

// newErrorHandler logs what the SDK complains about, at most once in ten seconds: a collector that is away is said, not repeated.
func newErrorHandler(log *slog.Logger) otel.ErrorHandlerFunc {
	say := rate.Sometimes{Interval: 10 * time.Second}
	return func(err error) {
		say.Do(func() { log.Warn("exporting telemetry failed", "error", err) })
	}
}

// Tracer gives the tracer of one of our packages, by a short name such as "syncd/worker".
func Tracer(name string) trace.Tracer {
	return otel.Tracer("github.com/podplane/podplane/" + name)
}
