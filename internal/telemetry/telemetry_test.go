package telemetry_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/telemetry"
)

var who = telemetry.Identity{Service: "syncd", Version: "v1", Instance: "i1", Node: "n1"}

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestOffWithoutEndpoint(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"nothing set": {},
		"disabled":    {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
		"none":        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range env {
				t.Setenv(k, v)
			}
			tr, err := telemetry.StartTracing(t.Context(), who, telemetry.Options{}, slog.New(slog.DiscardHandler))
			if err != nil || tr.Enabled() {
				t.Fatalf("enabled %v, error %v", tr.Enabled(), err)
			}
			ctx, span := telemetry.Tracer("x").Start(telemetry.ContextWithTraceparent(t.Context(), traceparent), "a.b.c")
			defer span.End()
			if span.IsRecording() || telemetry.Traceparent(ctx) != traceparent {
				t.Errorf("recording %v, passed on %q", span.IsRecording(), telemetry.Traceparent(ctx))
			}
		})
	}
}

func TestUnknownProtocolIsRefused(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "smoke")
	if _, err := telemetry.StartTracing(t.Context(), who, telemetry.Options{}, slog.New(slog.DiscardHandler)); !fault.Is(err, fault.Invalid) {
		t.Errorf("got %v", err)
	}
}

func TestSpansArriveWithinASecondAndAreNamed(t *testing.T) {
	got := make(chan *coltracepb.ExportTraceServiceRequest, 4)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		req := &coltracepb.ExportTraceServiceRequest{}
		if err != nil || proto.Unmarshal(body, req) != nil {
			http.Error(w, "bad", http.StatusBadRequest)
			return
		}
		got <- req
	}))
	defer srv.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", srv.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
	t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
	tr, err := telemetry.StartTracing(t.Context(), who, telemetry.Options{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tr.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	_, span := telemetry.Start(telemetry.ContextWithTraceparent(t.Context(), traceparent), telemetry.Tracer("x"), "pod.worker.sync")
	span.End()
	begin := time.Now()
	req := <-got
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("span left after %v", d)
	}
	attrs := map[string]string{}
	for _, a := range req.ResourceSpans[0].Resource.Attributes {
		attrs[a.Key] = a.Value.GetStringValue()
	}
	for k, v := range map[string]string{"service.name": "podplane-syncd", "service.instance.id": "i1", "k8s.node.name": "n1", "service.version": "v1"} {
		if attrs[k] != v {
			t.Errorf("%s is %q, want %q", k, attrs[k], v)
		}
	}
	if name := req.ResourceSpans[0].ScopeSpans[0].Spans[0].Name; name != "pod.worker.sync" {
		t.Errorf("span %q", name)
	}
}

type collector struct {
	coltracepb.UnimplementedTraceServiceServer
	got chan *coltracepb.ExportTraceServiceRequest
}

func (c *collector) Export(_ context.Context, r *coltracepb.ExportTraceServiceRequest) (*coltracepb.ExportTraceServiceResponse, error) {
	c.got <- r
	return &coltracepb.ExportTraceServiceResponse{}, nil
}

func TestSpansOverGRPC(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{got: make(chan *coltracepb.ExportTraceServiceRequest, 4)}
	srv := grpc.NewServer()
	coltracepb.RegisterTraceServiceServer(srv, c)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+lis.Addr().String())
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	tr, err := telemetry.StartTracing(t.Context(), who, telemetry.Options{}, slog.New(slog.DiscardHandler))
	if err != nil || !tr.Enabled() {
		t.Fatalf("enabled %v, %v", tr.Enabled(), err)
	}
	_, span := telemetry.Tracer("x").Start(t.Context(), "pod.worker.sync")
	span.End()
	if err := tr.Stop(t.Context()); err != nil {
		t.Errorf("stop: %v", err)
	}
	if name := (<-c.got).ResourceSpans[0].ScopeSpans[0].Spans[0].Name; name != "pod.worker.sync" {
		t.Errorf("span %q", name)
	}
	srv.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestCollectorThatIsAwayHoldsNobodyUp(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	var log bytes.Buffer
	tr, err := telemetry.StartTracing(t.Context(), who, telemetry.Options{}, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatalf("an absent collector is no reason not to start: %v", err)
	}
	_, span := telemetry.Tracer("x").Start(t.Context(), "pod.worker.sync")
	span.End()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if err := tr.Stop(ctx); time.Since(begin) > 5*time.Second {
		t.Errorf("stopping took %v: %v", time.Since(begin), err)
	}
	if !strings.Contains(log.String(), "exporting telemetry failed") {
		t.Errorf("nobody said so: %q", log.String())
	}
}

func TestStartMakesNoRootSpans(t *testing.T) {
	rec := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec)).Tracer("x")
	_, span := telemetry.Start(t.Context(), tracer, "a.b.c")
	telemetry.End(span, errors.New("x"))
	if n := len(rec.Started()); n != 0 {
		t.Errorf("%d spans", n)
	}
	ctx := telemetry.ContextWithTraceparent(t.Context(), traceparent)
	_, span = telemetry.Start(ctx, tracer, "a.b.c", telemetry.PodUID.String("u"))
	telemetry.End(span, fault.New(fault.NotFound, "no"))
	done := rec.Ended()
	if len(done) != 1 || done[0].Status().Code != codes.Error || done[0].SpanContext().TraceID().String() != traceparent[3:35] {
		t.Errorf("%+v", done)
	}
	_, span = telemetry.Start(ctx, tracer, "a.b.c")
	telemetry.End(span, context.Canceled)
	if got := rec.Ended()[1].Status().Code; got == codes.Error {
		t.Error("a cancellation is not a failure")
	}
}

func TestLogCarriesTrace(t *testing.T) {
	var buf bytes.Buffer
	log, err := telemetry.NewLogger(&buf, who, "info", "json")
	if err != nil {
		t.Fatal(err)
	}
	log.With("a", 1).DebugContext(t.Context(), "hidden")
	log.With("a", 1).WithGroup("g").InfoContext(telemetry.ContextWithTraceparent(t.Context(), traceparent), "hello")
	if s := buf.String(); strings.Contains(s, "hidden") || !strings.Contains(s, traceparent[3:35]) || !strings.Contains(s, `"service":"syncd"`) {
		t.Error(s)
	}
	for _, bad := range [][2]string{{"loud", "json"}, {"info", "xml"}} {
		if _, err := telemetry.NewLogger(&buf, who, bad[0], bad[1]); !fault.Is(err, fault.Invalid) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestBrokenTraceparentChangesNothing(t *testing.T) {
	for _, tp := range []string{"", "x", "00-zz-zz-01", strings.Repeat("0", 55)} {
		ctx := telemetry.ContextWithTraceparent(t.Context(), tp)
		if trace.SpanContextFromContext(ctx).IsValid() || telemetry.TraceID(ctx) != "" {
			t.Errorf("%q was taken", tp)
		}
	}
}

func TestRegistryHasTheUsualMetrics(t *testing.T) {
	families, err := telemetry.NewRegistry(who).Gather()
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, f := range families {
		have[f.GetName()] = true
	}
	for _, want := range []string{"go_goroutines", "process_resident_memory_bytes", "podplane_build_info"} {
		if !have[want] {
			t.Errorf("%s is missing", want)
		}
	}
}
