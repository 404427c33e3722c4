package testkit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Jaeger is a real Jaeger that keeps traces in memory.
type Jaeger struct {
	// OTLP is the address that it takes spans at over gRPC, Query that of its query API; both are URLs.
	OTLP  string
	Query string

	client *http.Client
}

// Span is a span as Jaeger's query API tells it.
type Span struct {
	ID, ParentID string
	Name         string
	Service      string
	Start        time.Time
	Duration     time.Duration
	Tags         map[string]string
	// Process are the attributes of the resource that it is from.
	Process map[string]string
}

// StartJaeger starts a Jaeger and ends it when the test ends.
func StartJaeger(t testing.TB) *Jaeger {
	t.Helper()
	local, err := Local()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(local, "bin", "all-in-one")
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("testkit: %v: run `make test-host` first", err)
	}
	otlp, query := FreeAddress(t), FreeAddress(t)
	// Its other servers get ports that nobody asks for.
	cmd := exec.Command(program,
		"--collector.otlp.enabled=true", "--collector.otlp.grpc.host-port="+otlp, "--collector.otlp.http.host-port=127.0.0.1:0",
		"--collector.grpc-server.host-port=127.0.0.1:0", "--collector.http-server.host-port=127.0.0.1:0",
		"--query.http-server.host-port="+query, "--query.grpc-server.host-port=127.0.0.1:0", "--admin.http.host-port=127.0.0.1:0",
		"--memory.max-traces=10000")
	log, err := os.Create(filepath.Join(t.TempDir(), "jaeger.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	// Its own traces would be among those that are looked for.
	cmd.Env = append(os.Environ(), "OTEL_TRACES_SAMPLER=always_off")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start Jaeger: %v", err)
	}
	j := &Jaeger{OTLP: "http://" + otlp, Query: "http://" + query, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	t.Cleanup(func() {
		if err := errors.Join(cmd.Process.Kill(), log.Close()); err != nil {
			t.Errorf("end Jaeger: %v", err)
		}
		// It was killed, which Wait calls an error.
		_ = cmd.Wait()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	Eventually(ctx, t, "Jaeger answers", func(ctx context.Context) error {
		// Jaeger takes spans before it answers questions.
		var services struct{}
		if err := j.get(ctx, "/api/services", &services); err != nil {
			said, readErr := os.ReadFile(log.Name())
			return errors.Join(fmt.Errorf("%w; it says: %s", err, said), readErr)
		}
		return nil
	})
	return j
}

// FreeAddress is a loopback address that was free just now, for programs that do not tell which port they took.
func FreeAddress(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return listener.Addr().String()
}

// Env are the variables that make a process send its spans to this Jaeger soon.
func (j *Jaeger) Env() []string {
	return []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + j.OTLP,
		"OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
		"OTEL_EXPORTER_OTLP_INSECURE=true",
		"OTEL_TRACES_SAMPLER=parentbased_always_on",
		"OTEL_BSP_SCHEDULE_DELAY=200",
	}
}

// Trace returns the spans of a trace that have arrived, none if the trace is not known yet.
func (j *Jaeger) Trace(ctx context.Context, traceID string) ([]Span, error) {
	var answer struct {
		Data []struct {
			Processes map[string]struct {
				ServiceName string
				Tags        []jaegerTag
			}
			Spans []struct {
				SpanID, OperationName, ProcessID string
				References                       []struct{ RefType, SpanID string }
				StartTime, Duration              int64 // microseconds
				Tags                             []jaegerTag
			}
		}
	}
	err := j.get(ctx, "/api/traces/"+url.PathEscape(traceID), &answer)
	var status statusError
	if errors.As(err, &status) && int(status) == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var spans []Span
	for _, trace := range answer.Data {
		for _, s := range trace.Spans {
			span := Span{
				ID: s.SpanID, Name: s.OperationName, Service: trace.Processes[s.ProcessID].ServiceName,
				Start: time.UnixMicro(s.StartTime), Duration: time.Duration(s.Duration) * time.Microsecond,
				Tags: tagMap(s.Tags), Process: tagMap(trace.Processes[s.ProcessID].Tags),
			}
			for _, reference := range s.References {
				if reference.RefType == "CHILD_OF" {
					span.ParentID = reference.SpanID
				}
			}
			spans = append(spans, span)
		}
	}
	return spans, nil
}

type jaegerTag struct {
	Key   string
	Value any
}

func tagMap(tags []jaegerTag) map[string]string {
	m := make(map[string]string, len(tags))
	for _, tag := range tags {
		m[tag.Key] = fmt.Sprint(tag.Value)
	}
	return m
}

type statusError int

func (e statusError) Error() string { return fmt.Sprintf("status %d", int(e)) }

func (j *Jaeger) get(ctx context.Context, path string, answer any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, j.Query+path, nil)
	if err != nil {
		return fmt.Errorf("ask Jaeger: %w", err)
	}
	response, err := j.client.Do(request)
	if err != nil {
		return fmt.Errorf("ask Jaeger: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("ask Jaeger for %s: %w", path, statusError(response.StatusCode))
	}
	if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
		return fmt.Errorf("ask Jaeger for %s: %w", path, err)
	}
	return nil
}
