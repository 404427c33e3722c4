package testkit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/testkit"
)

// The runtime's own spans are in the trace of the call that caused them.
func TestRuntimeContinuesTraces(t *testing.T) {
	// As each service does: the client hands the trace on by the global propagator.
	before := otel.GetTextMapPropagator()
	otel.SetTextMapPropagator(propagation.TraceContext{})
	t.Cleanup(func() { otel.SetTextMapPropagator(before) })
	jaeger := testkit.StartJaeger(t)
	node := testkit.NewNode(t, jaeger.Env()...)
	exporter, err := otlptracegrpc.New(t.Context(), otlptracegrpc.WithEndpointURL(jaeger.OTLP), otlptracegrpc.WithInsecure())
	if err != nil {
		t.Fatal(err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	t.Cleanup(func() {
		if err := provider.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	client, err := cri.Dial(t.Context(), node.Endpoint, cri.Options{TracerProvider: provider})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })

	ctx, root := provider.Tracer("test").Start(t.Context(), "root")
	_, err = client.RunSandbox(ctx, &cri.SandboxConfig{
		Name: "traced", Namespace: "default", UID: "traced", LogDirectory: t.TempDir(), CgroupParent: node.CgroupParent,
	})
	root.End()
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(bounded(t), t, "the trace has the runtime's span", func(ctx context.Context) error {
		spans, err := jaeger.Trace(ctx, root.SpanContext().TraceID().String())
		if err != nil {
			return err
		}
		var names []string
		parents := map[string]string{}
		for _, s := range spans {
			names = append(names, s.Service+": "+s.Name)
			parents[s.ID] = s.ParentID
		}
		for _, s := range spans {
			if s.Service != "containerd" {
				continue
			}
			for id := s.ID; id != ""; id = parents[id] {
				if id == root.SpanContext().SpanID().String() {
					return nil
				}
			}
		}
		return errors.Join(fmt.Errorf("spans are %q", names), ctx.Err())
	})
	if unknown, err := jaeger.Trace(t.Context(), strings.Repeat("1", 32)); err != nil || unknown != nil {
		t.Errorf("a trace that nobody sent: %v, %v", unknown, err)
	}
}
