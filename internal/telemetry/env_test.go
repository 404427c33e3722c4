package telemetry_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/telemetry"
)

// TestReadEnv is what the OTEL_* variables mean, one by one.
func TestReadEnv(t *testing.T) {
	const on, onByDefault, parented = "AlwaysOnSampler", "ParentBased{root:AlwaysOnSampler", "ParentBased{root:"
	for name, c := range map[string]struct {
		env        string // NAME=value, separated by blanks
		off        bool
		protocol   string
		sampler    string // how its description begins
		dropErrors bool
		fields     string // of the propagator, sorted
		wrong      string // the variable that the error names
	}{
		"nothing":                              {off: true},
		"an endpoint":                          {env: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318"},
		"an endpoint for traces":               {env: "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://c:4318/v1/traces"},
		"an empty endpoint is none":            {env: "OTEL_EXPORTER_OTLP_ENDPOINT=", off: true},
		"the exporter alone means its default": {env: "OTEL_TRACES_EXPORTER=otlp"},
		"no exporter":                          {env: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c OTEL_TRACES_EXPORTER=none", off: true},
		"another exporter":                     {env: "OTEL_TRACES_EXPORTER=zipkin", wrong: "OTEL_TRACES_EXPORTER"},
		"disabled":                             {env: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c OTEL_SDK_DISABLED=TRUE", off: true},
		"only true disables":                   {env: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c OTEL_SDK_DISABLED=1"},
		"grpc":                                 {env: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c OTEL_EXPORTER_OTLP_PROTOCOL=grpc", protocol: "grpc"},
		"the protocol of traces counts more": {
			env: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c OTEL_EXPORTER_OTLP_PROTOCOL=grpc OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf",
		},
		"another protocol":        {env: "OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=http/json", wrong: "OTEL_EXPORTER_OTLP_PROTOCOL"},
		"always on":               {env: "OTEL_TRACES_EXPORTER=otlp OTEL_TRACES_SAMPLER=always_on", sampler: on},
		"always off":              {env: "OTEL_TRACES_EXPORTER=otlp OTEL_TRACES_SAMPLER=always_off", sampler: "AlwaysOffSampler", dropErrors: true},
		"a ratio":                 {env: "OTEL_TRACES_EXPORTER=otlp OTEL_TRACES_SAMPLER=traceidratio OTEL_TRACES_SAMPLER_ARG=0.25", sampler: "TraceIDRatioBased{0.25}"},
		"a ratio without a value": {env: "OTEL_TRACES_EXPORTER=otlp OTEL_TRACES_SAMPLER=traceidratio", sampler: "TraceIDRatioBased{1}"},
		"parent, always on":       {env: "OTEL_TRACES_EXPORTER=otlp OTEL_TRACES_SAMPLER=ParentBased_Always_On"},
		"parent, always off": {
			env: "OTEL_TRACES_EXPORTER=otlp OTEL_TRACES_SAMPLER=parentbased_always_off", sampler: parented + "AlwaysOff", dropErrors: true,
		},
		"parent, a ratio": {
			env: "OTEL_TRACES_EXPORTER=otlp OTEL_TRACES_SAMPLER=parentbased_traceidratio OTEL_TRACES_SAMPLER_ARG=.5", sampler: parented + "TraceIDRatioBased{0.5}",
		},
		"another sampler":            {env: "OTEL_TRACES_EXPORTER=otlp OTEL_TRACES_SAMPLER=xray", wrong: "OTEL_TRACES_SAMPLER"},
		"an argument for no ratio":   {env: "OTEL_TRACES_EXPORTER=otlp OTEL_TRACES_SAMPLER=always_on OTEL_TRACES_SAMPLER_ARG=x", sampler: on},
		"a ratio above 1":            {env: "OTEL_TRACES_EXPORTER=otlp OTEL_TRACES_SAMPLER=traceidratio OTEL_TRACES_SAMPLER_ARG=2", wrong: "OTEL_TRACES_SAMPLER_ARG"},
		"a ratio that is no number":  {env: "OTEL_TRACES_EXPORTER=otlp OTEL_TRACES_SAMPLER=traceidratio OTEL_TRACES_SAMPLER_ARG=NaN", wrong: "OTEL_TRACES_SAMPLER_ARG"},
		"propagators":                {env: "OTEL_PROPAGATORS=b3,tracecontext,b3", off: true, fields: "b3 traceparent tracestate"},
		"no propagator":              {env: "OTEL_PROPAGATORS=none", off: true, fields: "-"},
		"a propagator nobody knows":  {env: "OTEL_PROPAGATORS=tracecontext,smoke", off: true, wrong: "OTEL_PROPAGATORS"},
		"a sampler while it is off":  {env: "OTEL_TRACES_SAMPLER=xray", off: true},
		"jaeger's and B3's own form": {env: "OTEL_PROPAGATORS=jaeger,b3multi", off: true, fields: "uber-trace-id x-b3-flags x-b3-sampled x-b3-spanid x-b3-traceid"},
	} {
		t.Run(name, func(t *testing.T) {
			env := map[string]string{}
			for pair := range strings.FieldsSeq(c.env) {
				k, v, _ := strings.Cut(pair, "=")
				env[k] = v
			}
			s, err := telemetry.ReadEnv(func(name string) string { return env[name] })
			if c.wrong != "" {
				if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.wrong+" is ") {
					t.Errorf("got %v, want an error about %s", err, c.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			fields := s.Propagator.Fields()
			slices.Sort(fields)
			if want := or(c.fields, "baggage traceparent tracestate"); strings.Join(fields, " ") != strings.Trim(want, "-") {
				t.Errorf("propagates %v, want %s", fields, want)
			}
			if s.Export == c.off {
				t.Fatalf("exports: %v", s.Export)
			}
			if c.off {
				return
			}
			if want := or(c.protocol, "http/protobuf"); s.Protocol != want {
				t.Errorf("protocol %s, want %s", s.Protocol, want)
			}
			if want := or(c.sampler, onByDefault); !strings.HasPrefix(s.Sampler.Description(), want) {
				t.Errorf("sampler %s, want %s", s.Sampler.Description(), want)
			}
			if s.KeepErrors == c.dropErrors {
				t.Errorf("keeps errors: %v", s.KeepErrors)
			}
		})
	}
}

func or(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

// sent is one request that a collector got.
type sent struct {
	header http.Header
	*coltracepb.ExportTraceServiceRequest
}

// newCollector takes spans over HTTP and points the OTEL_* variables at itself.
func newCollector(t *testing.T) <-chan sent {
	t.Helper()
	got := make(chan sent, 64)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		req := &coltracepb.ExportTraceServiceRequest{}
		if err != nil || proto.Unmarshal(body, req) != nil || r.URL.Path != "/v1/traces" {
			http.Error(w, "bad", http.StatusBadRequest)
			return
		}
		got <- sent{r.Header, req}
	}))
	t.Cleanup(srv.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", srv.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
	return got
}

func start(t *testing.T, o telemetry.Options) *telemetry.Tracing {
	t.Helper()
	tr, err := telemetry.StartTracing(t.Context(), who, o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tr.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return tr
}

// TestWhatIsSentHonoursTheVariables looks at what arrives.
func TestWhatIsSentHonoursTheVariables(t *testing.T) {
	got := newCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x,tenant=a")
	t.Setenv("OTEL_SERVICE_NAME", "edge")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab,k8s.node.name=other,service.name=not-this")
	t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000") // nothing is sent but what fills a batch, and the rest at the end
	t.Setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "1")
	t.Setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "4")
	t.Setenv("OTEL_PROPAGATORS", "b3")
	tr := start(t, telemetry.Options{})
	for range 3 {
		_, span := telemetry.Tracer("x").Start(t.Context(), "a.b.c")
		span.SetAttributes(attribute.String("one", "too long"), attribute.String("two", "2"))
		span.End()
	}
	first := <-got
	spans := first.ResourceSpans[0].ScopeSpans[0].Spans
	if len(spans) != 2 {
		t.Errorf("a batch of %d spans, want 2", len(spans))
	}
	if a := spans[0].Attributes; len(a) != 1 || a[0].Value.GetStringValue() != "too " || spans[0].DroppedAttributesCount != 1 {
		t.Errorf("attributes %v", a)
	}
	if first.header.Get("Authorization") != "Bearer x" || first.header.Get("Tenant") != "a" {
		t.Errorf("headers %v", first.header)
	}
	attrs := map[string]string{}
	for _, a := range first.ResourceSpans[0].Resource.Attributes {
		attrs[a.Key] = a.Value.GetStringValue()
	}
	for k, v := range map[string]string{
		"service.name": "edge", "deployment.environment.name": "lab", "k8s.node.name": "other", "service.version": "v1", "telemetry.sdk.language": "go",
	} {
		if attrs[k] != v {
			t.Errorf("%s is %q, want %q", k, attrs[k], v)
		}
	}
	if err := tr.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len((<-got).ResourceSpans[0].ScopeSpans[0].Spans); n != 1 {
		t.Errorf("%d spans are left, want 1", n)
	}
	ctx, span := telemetry.Tracer("x").Start(t.Context(), "a.b.c")
	carrier := propagation.MapCarrier{}
	otel.GetTextMapPropagator().Inject(ctx, carrier)
	span.End()
	if carrier["b3"] == "" || carrier["traceparent"] != "" || telemetry.Traceparent(ctx) == "" {
		t.Errorf("carried %v, recorded %q", carrier, telemetry.Traceparent(ctx))
	}
}

func TestAResourceThatCannotBeReadIsRefused(t *testing.T) {
	newCollector(t)
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "no equals sign")
	if _, err := telemetry.StartTracing(t.Context(), who, telemetry.Options{}, slog.New(slog.DiscardHandler)); !fault.Is(err, fault.Invalid) {
		t.Errorf("got %v", err)
	}
}
