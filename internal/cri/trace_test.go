package cri_test

import (
	"context"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/telemetry"
)

// Not parallel: the propagator is a global.
func TestSpansCarryThePodAndReachTheRuntime(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	before := otel.GetTextMapPropagator()
	otel.SetTextMapPropagator(propagation.TraceContext{})
	defer otel.SetTextMapPropagator(before)
	seen := make(chan string, 1)
	client := dial(t, &server{
		runSandbox: func(ctx context.Context, _ *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			seen <- strings.Join(md.Get("traceparent"), ",")
			return &runtimeapi.RunPodSandboxResponse{PodSandboxId: "s1"}, nil
		},
		stopContainer: func(context.Context, *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
			return &runtimeapi.StopContainerResponse{}, nil
		},
	}, cri.Options{TracerProvider: provider})

	if err := client.StopContainer(t.Context(), "c1", 0); err != nil {
		t.Fatalf("stop: %v", err)
	}
	if spans := exporter.GetSpans(); len(spans) != 0 {
		t.Fatalf("a call outside of a trace made spans: %v", spans)
	}
	ctx, root := provider.Tracer("test").Start(t.Context(), "root")
	if _, err := client.RunSandbox(ctx, &cri.SandboxConfig{UID: "u1"}); err != nil {
		t.Fatalf("run: %v", err)
	}
	if err := client.StopContainer(telemetry.ContextWithAbout(ctx, telemetry.About{PodUID: "u2"}), "c1", 0); err != nil {
		t.Fatalf("stop: %v", err)
	}
	root.End()
	if got := <-seen; !strings.Contains(got, root.SpanContext().TraceID().String()) {
		t.Errorf("the runtime got traceparent %q", got)
	}
	uids := map[string]string{}
	for _, s := range exporter.GetSpans() {
		for _, a := range s.Attributes {
			if a.Key == "k8s.pod.uid" {
				uids[s.Name] = a.Value.AsString()
			}
		}
	}
	if uids["runtime.v1.RuntimeService/RunPodSandbox"] != "u1" || uids["runtime.v1.RuntimeService/StopContainer"] != "u2" {
		t.Errorf("pod UIDs by span are %v", uids)
	}
}
