package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/podplane/podplane/internal/telemetry"
)

// unsampled starts tracing such that no trace is sampled, and gives what arrives after the work, by trace: the names of the spans.
func unsampled(t *testing.T, o telemetry.Options, work func(*telemetry.Tracing)) map[string][]string {
	t.Helper()
	got := newCollector(t)
	t.Setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
	t.Setenv("OTEL_TRACES_SAMPLER_ARG", "0")
	tr := start(t, o)
	work(tr)
	if err := tr.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	traces := map[string][]string{}
	for {
		select {
		case req := <-got:
			for _, scope := range req.ResourceSpans[0].ScopeSpans {
				for _, s := range scope.Spans {
					id := fmt.Sprintf("%x", s.TraceId)
					traces[id] = append(traces[id], s.Name)
					if !slices.ContainsFunc(s.Attributes, func(a *keyValue) bool { return a.Key == string(telemetry.KeptFor) }) {
						t.Errorf("%s does not say why it was sent", s.Name)
					}
				}
			}
		default:
			return traces
		}
	}
}

func do(ctx context.Context, name string, err error) (context.Context, string) {
	ctx, span := telemetry.Tracer("x").Start(ctx, name)
	telemetry.End(span, err)
	return ctx, telemetry.TraceID(ctx)
}

func TestErrorsAreKept(t *testing.T) {
	var good, bad, foreign, told string
	traces := unsampled(t, telemetry.Options{}, func(tr *telemetry.Tracing) {
		tr.OnError(func(id string) { told += id + " " })
		ctx, id := do(t.Context(), "fine", nil)
		good = id
		do(ctx, "fine.too", nil)

		ctx, bad = do(t.Context(), "before", nil)
		if telemetry.Traceparent(ctx)[53:] != "00" {
			t.Errorf("%s: others are told to send the trace", telemetry.Traceparent(ctx))
		}
		do(ctx, "wrong", errors.New("no"))
		do(ctx, "after", nil)
		do(ctx, "wrong.again", errors.New("no"))

		ctx, foreign = do(t.Context(), "here", nil)
		tr.Keep(foreign)
		do(ctx, "here.after", nil)
		tr.Keep("rubbish")
	})
	want := map[string][]string{bad: {"before", "wrong", "after", "wrong.again"}, foreign: {"here", "here.after"}}
	if !maps.EqualFunc(traces, want, slices.Equal) {
		t.Errorf("sent %v, want %v and nothing of %s", traces, want, good)
	}
	if told != bad+" " {
		t.Errorf("told of %q, want %s once", told, bad)
	}
}

func TestWhoWantsNoErrorsGetsNone(t *testing.T) {
	var told bool
	traces := unsampled(t, telemetry.Options{KeepSpans: -1}, func(tr *telemetry.Tracing) {
		tr.OnError(func(string) { told = true })
		ctx, id := do(t.Context(), "wrong", errors.New("no"))
		tr.Keep(id)
		if tr.KeepsErrors() || trace.SpanFromContext(ctx).IsRecording() {
			t.Error("spans are recorded")
		}
	})
	if len(traces) > 0 || told {
		t.Errorf("sent %v, told %v", traces, told)
	}
}

// TestWhatWaitsIsBounded: the traces without a span for the longest time go first, and no trace takes all the room.
func TestWhatWaitsIsBounded(t *testing.T) {
	const room = 8
	var old, long, young context.Context
	traces := unsampled(t, telemetry.Options{KeepSpans: room}, func(*telemetry.Tracing) {
		old, _ = do(t.Context(), "old", nil)
		long, _ = do(t.Context(), "long", nil)
		for i := range 10 {
			do(long, fmt.Sprint("long.", i), nil)
		}
		young, _ = do(t.Context(), "young", nil)
		do(old, "wrong", errors.New("no")) // the long one did not push it out
		for i := range room {
			do(t.Context(), fmt.Sprint("other.", i), nil)
		}
		do(long, "wrong", errors.New("no"))
		do(young, "wrong", errors.New("no"))
	})
	want := map[string][]string{
		telemetry.TraceID(old): {"old", "wrong"}, telemetry.TraceID(long): {"wrong"}, telemetry.TraceID(young): {"wrong"},
	}
	if !maps.EqualFunc(traces, want, slices.Equal) {
		t.Errorf("sent %v, want %v", traces, want)
	}
}

// TestOneTraceHasItsShare keeps the newest spans of a trace that has too many.
func TestOneTraceHasItsShare(t *testing.T) {
	traces := unsampled(t, telemetry.Options{KeepSpans: 8}, func(*telemetry.Tracing) {
		ctx, _ := do(t.Context(), "first", nil)
		for i := range 5 {
			do(ctx, fmt.Sprint(i), nil)
		}
		do(ctx, "wrong", errors.New("no"))
	})
	for _, names := range traces {
		if got := strings.Join(names, " "); got != "3 4 wrong" {
			t.Errorf("sent %s", got)
		}
	}
	if len(traces) != 1 {
		t.Errorf("%d traces", len(traces))
	}
}

// TestManyErrors are all kept, also when there are more traces with errors than are remembered.
func TestManyErrors(t *testing.T) {
	const n = 1500
	traces := unsampled(t, telemetry.Options{}, func(tr *telemetry.Tracing) {
		for i := range n {
			do(t.Context(), "wrong", errors.New("no"))
			if i%500 == 499 {
				if err := tr.Flush(t.Context()); err != nil { // the batcher's queue has an end too
					t.Fatal(err)
				}
			}
		}
	})
	if len(traces) != n {
		t.Errorf("%d traces with an error of %d arrived", len(traces), n)
	}
}

// TestWhatACallerMayBeAnswered has answers about the request be no errors of a client's span; those about the server are.
func TestWhatACallerMayBeAnswered(t *testing.T) {
	for _, c := range []struct {
		attribute attribute.KeyValue
		kind      trace.SpanKind
		kept      bool
	}{
		{attribute.Int("rpc.grpc.status_code", 5), trace.SpanKindClient, false},
		{attribute.String("rpc.response.status_code", "NOT_FOUND"), trace.SpanKindClient, false},
		{attribute.Int("rpc.grpc.status_code", 14), trace.SpanKindClient, true},
		{attribute.String("rpc.response.status_code", "UNAVAILABLE"), trace.SpanKindClient, true},
		{attribute.String("rpc.response.status_code", "NOT_FOUND"), trace.SpanKindServer, true},
		{attribute.String("http.request.method", "GET"), trace.SpanKindClient, true},
	} {
		traces := unsampled(t, telemetry.Options{}, func(*telemetry.Tracing) {
			_, span := telemetry.Tracer("x").Start(t.Context(), "call", trace.WithSpanKind(c.kind), trace.WithAttributes(c.attribute))
			span.SetStatus(codes.Error, "no")
			span.End()
		})
		if (len(traces) == 1) != c.kept {
			t.Errorf("%v %v: sent %v", c.kind, c.attribute, traces)
		}
	}
}
