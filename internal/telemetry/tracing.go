package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
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

// Tracing owns the process' tracer provider.
type Tracing struct {
	provider *sdktrace.TracerProvider // nil while tracing is off
}

// StartTracing reads the OTEL_* variables and installs the global tracer provider and propagator. Off is not an error; variables that
// make no sense are. The collector need not be reachable.
func StartTracing(ctx context.Context, id Identity, log *slog.Logger) (*Tracing, error) {
	otel.SetTextMapPropagator(propagator)
	protocol, on, err := exporterFromEnv()
	if err != nil {
		return nil, err
	}
	if !on {
		otel.SetTracerProvider(noop.NewTracerProvider())
		return &Tracing{}, nil
	}
	exporter, err := newExporter(ctx, protocol)
	if err != nil {
		return nil, fmt.Errorf("set up the %s trace exporter: %w", protocol, err)
	}
	res, err := newResource(ctx, id)
	if err != nil {
		return nil, err
	}
	var batch []sdktrace.BatchSpanProcessorOption
	if os.Getenv("OTEL_BSP_SCHEDULE_DELAY") == "" {
		batch = append(batch, sdktrace.WithBatchTimeout(scheduleDelay))
	}
	otel.SetErrorHandler(newErrorHandler(log))
	t := &Tracing{provider: sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter, batch...), sdktrace.WithResource(res))}
	otel.SetTracerProvider(t.provider)
	return t, nil
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

// exporterFromEnv says whether spans are to be exported and over which protocol.
func exporterFromEnv() (protocol string, on bool, err error) {
	if off, _ := strconv.ParseBool(os.Getenv("OTEL_SDK_DISABLED")); off {
		return "", false, nil
	}
	switch exporter := os.Getenv("OTEL_TRACES_EXPORTER"); exporter {
	case "none":
		return "", false, nil
	case "", "otlp":
	default:
		return "", false, fault.New(fault.Invalid, "OTEL_TRACES_EXPORTER is %q, must be otlp or none", exporter)
	}
	if firstEnv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT") == "" {
		return "", false, nil
	}
	switch protocol = firstEnv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); protocol {
	case "":
		return "http/protobuf", true, nil
	case "grpc", "http/protobuf":
		return protocol, true, nil
	}
	return "", false, fault.New(fault.Invalid, "OTEL_EXPORTER_OTLP_PROTOCOL is %q, must be grpc or http/protobuf", protocol)
}

func newExporter(ctx context.Context, protocol string) (sdktrace.SpanExporter, error) {
	if protocol == "grpc" {
		return otlptracegrpc.New(ctx)
	}
	return otlptracehttp.New(ctx)
}

func newResource(ctx context.Context, id Identity) (*resource.Resource, error) {
	res, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithFromEnv(), resource.WithAttributes(
		ServiceName.String("podplane-"+id.Service), ServiceVersion.String(id.Version), ServiceInstanceID.String(id.Instance),
		NodeName.String(id.Node)))
	if err != nil {
		return nil, fmt.Errorf("read OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return res, nil
}

func firstEnv(names ...string) string {
	for _, n := range names {
		if v := strings.TrimSpace(os.Getenv(n)); v != "" {
			return v
		}
	}
	return ""
}

// newErrorHandler logs what the SDK complains about, at most once in ten seconds: a collector that is away is said, not repeated.
func newErrorHandler(log *slog.Logger) otel.ErrorHandlerFunc {
	say := rate.Sometimes{Interval: 10 * time.Second}
	return func(err error) {
		say.Do(func() { log.Warn("exporting telemetry failed", "error", err) })
	}
}

var propagator = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})

// Tracer gives the tracer of one of our packages, by a short name such as "syncd/worker".
func Tracer(name string) trace.Tracer {
	return otel.Tracer("github.com/podplane/podplane/" + name)
}
