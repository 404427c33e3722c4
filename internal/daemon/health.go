package daemon

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// checkTimeout bounds all checks of one look together.
const checkTimeout = 2 * time.Second

// Health holds the named checks that decide whether a service is ready. Checks look at state that is known already: they are cheap and
// are run in their order, one after the other.
type Health struct {
	mu     sync.Mutex
	checks []check
}

type check struct {
	name string
	run  func(context.Context) error
}

// AddCheck adds a check; it passes when it returns nil. One of the same name is replaced.
func (h *Health) AddCheck(name string, run func(context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.checks {
		if h.checks[i].name == name {
			h.checks[i].run = run
			return
		}
	}
	h.checks = append(h.checks, check{name, run})
}

// result is what one check said.
type result struct {
	name string
	err  error
}

func (h *Health) run(ctx context.Context) (results []result, ready bool) {
	h.mu.Lock()
	checks := append([]check(nil), h.checks...)
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	ready = true
	for _, c := range checks {
		err := c.run(ctx)
		ready = ready && err == nil
		results = append(results, result{c.name, err})
	}
	return results, ready
}

// Ready runs the checks. When it is not ready, message says which failed and why.
func (h *Health) Ready(ctx context.Context) (ready bool, message string) {
	results, ready := h.run(ctx)
	var failed []string
	for _, r := range results {
		if r.err != nil {
			failed = append(failed, r.name+": "+r.err.Error())
		}
	}
	return ready, strings.Join(failed, "; ")
}

// ServeHTTP answers /readyz: 200 or 503, and what failed; with ?verbose every check.
func (h *Health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	results, ready := h.run(r.Context())
	var b strings.Builder
	for _, c := range results {
		switch {
		case c.err != nil:
			fmt.Fprintf(&b, "[-]%s: %s\n", c.name, c.err)
		case r.URL.Query().Has("verbose"):
			fmt.Fprintf(&b, "[+]%s ok\n", c.name)
		}
	}
	if ready {
		b.WriteString("ok\n")
	}
	code := http.StatusOK
	if !ready {
		code = http.StatusServiceUnavailable
	}
	writeText(w, code, b.String())
}

func writeText(w http.ResponseWriter, code int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, body) // nobody left to tell
}

// opsHandler serves what every service serves besides its own concern.
func opsHandler(h *Health, g prometheus.Gatherer, withPprof bool) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok\n") })
	mux.Handle("GET /readyz", h)
	mux.Handle("GET /metrics", promhttp.HandlerFor(keepNames{g}, promhttp.HandlerOpts{MaxRequestsInFlight: 4, EnableOpenMetrics: true}))
	if withPprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}
