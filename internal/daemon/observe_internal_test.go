package daemon

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/podplane/podplane/internal/telemetry"
)

// TestMetricsInBothFormats have the same names, and the newer one has exemplars.
func TestMetricsInBothFormats(t *testing.T) {
	r := prometheus.NewRegistry()
	odd := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_evictions", Help: "x"}, []string{"signal"})
	even := prometheus.NewCounter(prometheus.CounterOpts{Name: "x_total", Help: "x"})
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "x_seconds", Help: "x", Buckets: []float64{1}})
	r.MustRegister(odd, even, h)
	odd.WithLabelValues("memory").Add(2)
	even.Inc()
	telemetry.Observe(telemetry.ContextWithTraceparent(t.Context(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), h, 0)
	get := func(accept string) string {
		w := httptest.NewRecorder()
		q := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
		q.Header.Set("Accept", accept)
		opsHandler(&Health{}, r, false).ServeHTTP(w, q)
		return w.Body.String()
	}
	for accept, bucket := range map[string]string{
		"text/plain":                   "x_seconds_bucket{le=\"1\"} 1\n",
		"application/openmetrics-text": "x_seconds_bucket{le=\"1.0\"} 1 # {",
	} {
		body := get(accept)
		for _, want := range []string{"\nkubelet_evictions{signal=\"memory\"} 2", "\nx_total 1", bucket} {
			if !strings.Contains(body, want) {
				t.Errorf("%s lacks %q:\n%s", accept, want, body)
			}
		}
		if strings.Contains(body, "kubelet_evictions_total") {
			t.Errorf("%s has another name:\n%s", accept, body)
		}
	}
	if !strings.Contains(get("application/openmetrics-text"), `trace_id="0af7651916cd43dd8448eb211c80319c"`) {
		t.Error("the exemplar does not name its trace")
	}
	if strings.Contains(get("text/plain"), "trace_id") {
		t.Error("the older format has no exemplars")
	}
}

// TestLibrariesLogAsTheServiceDoes: what gRPC says is a line of JSON like others.
func TestLibrariesLogAsTheServiceDoes(t *testing.T) {
	var buf bytes.Buffer
	log, err := telemetry.NewLogger(&buf, telemetry.Identity{Service: "syncd"}, "debug", "json")
	if err != nil {
		t.Fatal(err)
	}
	l := grpcLog{log}
	l.Info("not of interest")
	l.Warningf("%s\n", "one")
	l.Errorln("two")
	lines := strings.Split(strings.TrimSpace(buf.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("%q", lines)
	}
	for i, want := range []string{"grpc: one", "grpc: two"} {
		var line map[string]string
		if err := json.Unmarshal([]byte(lines[i]), &line); err != nil || line["msg"] != want || line["service"] != "syncd" {
			t.Errorf("%v %v", line, err)
		}
	}
}
