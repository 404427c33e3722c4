package front_test

import (
	"context"
	"net/http"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/genproto/googleapis/api/httpbody"

	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// TestOneTraceFromTheRequestToTheHandler changes OpenTelemetry's globals: it must not run beside others.
func TestOneTraceFromTheRequestToTheHandler(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider, propagator := otel.GetTracerProvider(), otel.GetTextMapPropagator()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)))
	otel.SetTextMapPropagator(propagation.TraceContext{})
	defer func() {
		otel.SetTracerProvider(provider)
		otel.SetTextMapPropagator(propagator)
	}()
	var inHandler string
	h := newFront(t, &backend{create: func(ctx context.Context, _ *podplanev1.CreateRequest) (*httpbody.HttpBody, error) {
		inHandler = telemetry.TraceID(ctx)
		return &httpbody.HttpBody{Data: []byte("{}")}, nil
	}})
	w := do(t, h, http.MethodPost, pods, "{}")
	if id := w.Header().Get("Trace-Id"); w.Code != 201 || len(id) != 32 || id != inHandler {
		t.Errorf("%d, trace %q in the answer, %q in the handler", w.Code, id, inHandler)
	}
	var root sdktrace.ReadOnlySpan
	for _, s := range recorder.Ended() {
		if !s.Parent().IsValid() {
			root = s
		}
		if s.SpanContext().TraceID().String() != inHandler {
			t.Errorf("%s is in another trace", s.Name())
		}
	}
	if root == nil || root.Name() != "POST /api/v1/namespaces/{namespace}/pods" {
		t.Errorf("root span %v", root)
	}
	d := newDoor(t, nil)
	w = do(t, d, http.MethodGet, "/api/v1/namespaces/team/pods", "", "Authorization", d.alice)
	if e := d.entries(t); len(e) != 1 || len(e[0].TraceID) != 32 || e[0].TraceID != w.Header().Get("Trace-Id") {
		t.Errorf("the audit log says %+v of trace %q", e, w.Header().Get("Trace-Id"))
	}
	before := len(recorder.Started())
	do(t, h, http.MethodGet, "/docs", "")
	if len(recorder.Started()) != before {
		t.Error("pages make no traces")
	}
}
