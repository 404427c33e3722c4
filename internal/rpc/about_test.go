package rpc_test

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/podplane/podplane/internal/rpc"
	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// TestWhatACallTurnedOutToBeAbout is on the spans of both sides and on the one that the call was made in. It changes OpenTelemetry's globals.
func TestWhatACallTurnedOutToBeAbout(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider, propagator := otel.GetTracerProvider(), otel.GetTextMapPropagator()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)))
	otel.SetTextMapPropagator(propagation.TraceContext{})
	defer func() {
		otel.SetTracerProvider(provider)
		otel.SetTextMapPropagator(propagator)
	}()
	web := telemetry.About{PodUID: "u", Namespace: "a b&c", PodName: "web"}
	tell := true
	address, stop := serve(t, &probes{list: func(ctx context.Context, _ *podplanev1.ListProbesRequest) (*podplanev1.ListProbesResponse, error) {
		if tell {
			rpc.Tell(ctx, web)
		}
		return &podplanev1.ListProbesResponse{}, nil
	}})
	conn, err := rpc.DialAddress("prober", address)
	if err != nil {
		t.Fatal(err)
	}
	call := func() {
		ctx, span := otel.Tracer("test").Start(t.Context(), "caller")
		defer span.End()
		if _, err := podplanev1.NewProbeServiceClient(conn).ListProbes(ctx, &podplanev1.ListProbesRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	call()
	tell = false
	call()
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	stop() // the server's spans have ended then
	said := map[string]int{}
	for _, s := range recorder.Ended() {
		attrs := map[string]string{}
		for _, a := range s.Attributes() {
			attrs[string(a.Key)] = a.Value.String()
		}
		key := s.Name() + " " + s.SpanKind().String()
		switch {
		case attrs["k8s.pod.uid"] == "u" && attrs["k8s.namespace.name"] == "a b&c" && attrs["k8s.pod.name"] == "web":
			said[key]++
		case attrs["k8s.pod.uid"] != "" || attrs["k8s.pod.name"] != "":
			t.Errorf("%s is about %v", key, attrs)
		default:
			said[key] += 10
		}
	}
	const method = "podplane.v1.ProbeService/ListProbes"
	for _, key := range []string{"caller internal", method + " client", method + " server"} {
		if said[key] != 11 {
			t.Errorf("%s: %d, want one span that says it and one that does not; all: %v", key, said[key], said)
		}
	}
}
