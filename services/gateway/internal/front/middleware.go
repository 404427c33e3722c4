package front

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/telemetry"
)

const (
	// MaxBodyBytes is the largest body of a request.
	MaxBodyBytes = 3 << 20

	// bodyTimeout bounds the reading of a body.
	bodyTimeout = 30 * time.Second
	// maxInFlight and maxStreams bound what is served at once.
	maxInFlight = 256
	maxStreams  = 512

	requestIDHeader = "X-Request-Id"
	traceIDHeader   = "Trace-Id"
	maxRequestID    = 64

	routeKey = attribute.Key("http.route")
)

// requestID keeps the client's request id, or makes one, and says it in the answer.
func requestID(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(requestIDHeader)
		if !goodID(id) {
			raw := make([]byte, 8)
			_, _ = rand.Read(raw) // never fails
			id = hex.EncodeToString(raw)
			r.Header.Set(requestIDHeader, id)
		}
		w.Header().Set(requestIDHeader, id)
		next.ServeHTTP(w, r)
	})
}

func goodID(id string) bool {
	if id == "" || len(id) > maxRequestID {
		return false
	}
	return strings.Trim(id, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.") == ""
}

// recoverer turns a panic into a Status, where nothing has been sent yet.
func recoverer(log *slog.Logger) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			sent := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
			defer func() {
				p := recover()
				if p == nil {
					return
				}
				if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
					panic(http.ErrAbortHandler)
				}
				log.ErrorContext(r.Context(), "request panicked", "panic", p, "stack", string(debug.Stack()), "request.id", r.Header.Get(requestIDHeader))
				if sent.Status() != 0 {
					panic(http.ErrAbortHandler)
				}
				writeStatus(w, fault.ToStatus(fault.New(fault.Internal, "the request failed by a defect; the gateway's log has the details under request id %s", r.Header.Get(requestIDHeader))))
			}()
			next.ServeHTTP(sent, r)
		})
	}
}

// traced starts the root span of an API request and says its trace id in the answer.
func traced(next http.Handler) http.Handler {
	inner := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if id := telemetry.TraceID(r.Context()); id != "" {
			w.Header().Set(traceIDHeader, id)
		}
		next.ServeHTTP(w, r)
	})
	return otelhttp.NewHandler(inner, "gateway",
		otelhttp.WithSpanNameFormatter(spanName), otelhttp.WithFilter(isAPI))
}

// spanName is asked for when the request comes in and again after it: then the route is known.
func spanName(_ string, r *http.Request) string {
	return strings.TrimSpace(r.Method + " " + routeOf(r))
}

// routeOf gives the pattern that chi found; empty before that and for no route.
func routeOf(r *http.Request) string {
	rc := chi.RouteContext(r.Context())
	if rc == nil || rc.RoutePattern() == "/*" {
		return ""
	}
	return rc.RoutePattern()
}

func isAPI(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/api/") || strings.HasPrefix(r.URL.Path, "/podplane/")
}

// routed says on the root span which route it is and for which namespace.
func routed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if span := trace.SpanFromContext(r.Context()); span.IsRecording() {
			route := routeOf(r)
			span.SetAttributes(routeKey.String(route))
			a := telemetry.About{Namespace: chi.URLParam(r, "namespace")}
			if strings.Contains(route, "/pods/{name}") {
				a.PodName = chi.URLParam(r, "name")
			}
			telemetry.Tell(r.Context(), a)
		}
		next.ServeHTTP(w, r)
	})
}

// observed writes the access log and counts: what changes something or fails is logged at level info, the rest at debug.
func observed(log *slog.Logger, m *metrics) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			sent := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
			begin := time.Now()
			defer func() {
				route := "none"
				if known := routeOf(r); known != "" {
					route = known
				}
				took := time.Since(begin)
				m.observe(r, route, sent.Status(), took)
				level := slog.LevelDebug
				if isAPI(r) && (r.Method != http.MethodGet || sent.Status() >= http.StatusBadRequest) {
					level = slog.LevelInfo
				}
				log.LogAttrs(r.Context(), level, "request", slog.String("method", r.Method), slog.String("path", r.URL.EscapedPath()),
					slog.String("route", route), slog.Int("status", sent.Status()), slog.Int("bytes", sent.BytesWritten()),
					slog.Duration("took", took), slog.String("request.id", r.Header.Get(requestIDHeader)), slog.String("client", r.RemoteAddr))
			}()
			next.ServeHTTP(sent, r)
		})
	}
}

type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "podplane_gateway_requests_total", Help: "Requests answered, by method, route and code.",
		}, []string{"method", "route", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "podplane_gateway_request_duration_seconds", Help: "How long requests took, streams included.", Buckets: telemetry.LatencyBuckets,
		}, []string{"method", "route"}),
	}
	r.MustRegister(m.requests, m.duration)
	return m
}

func (m *metrics) observe(r *http.Request, route string, code int, took time.Duration) {
	method := r.Method
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
	default:
		method = "other" // a client must not be able to make series
	}
	m.requests.WithLabelValues(method, route, fmt.Sprint(code)).Inc()
	telemetry.Observe(r.Context(), m.duration.WithLabelValues(method, route), took)
}

// bounded reads the whole body before anybody works on it, at most MaxBodyBytes and for at most bodyTimeout.
func bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > MaxBodyBytes {
			refuseBody(w)
			return
		}
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // a server in a test has none
		body, err := io.ReadAll(io.LimitReader(r.Body, MaxBodyBytes+1))
		if err != nil {
			w.Header().Set("Connection", "close")
			writeStatus(w, fault.ToStatus(fault.New(fault.BadRequest, "reading the body failed: %w", err)))
			return
		}
		if len(body) > MaxBodyBytes {
			refuseBody(w)
			return
		}
		_ = control.SetReadDeadline(time.Time{})
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		next.ServeHTTP(w, r)
	})
}

func refuseBody(w http.ResponseWriter) {
	w.Header().Set("Connection", "close") // the rest of the body is not read
	writeStatus(w, fault.ToStatus(fault.New(fault.TooLarge, "the body is larger than %d bytes, the most that is taken", MaxBodyBytes)))
}

// limited bounds how many requests and streams of the API are served at once. Health, metrics and pages are answered beyond that too.
func limited(next http.Handler) http.Handler {
	inFlight, streams := make(chan struct{}, maxInFlight), make(chan struct{}, maxStreams)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isAPI(r) {
			next.ServeHTTP(w, r)
			return
		}
		slots := inFlight
		if isTrue(r, "watch") || isTrue(r, "follow") {
			slots = streams
		}
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			next.ServeHTTP(w, r)
		default:
			writeStatus(w, fault.ToStatus(fault.WithRetryAfter(fault.New(fault.ResourceExhausted, "%d requests are being served, which is the most", cap(slots)), time.Second)))
		}
	})
}

// secured sets the headers that keep a browser from making anything of an answer but what it is.
func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Cache-Control", "no-cache, private")
		next.ServeHTTP(w, r)
	})
}

// sameSite refuses what a web page of another site makes a browser on this host send: nobody is authenticated here, so that being asked by
// this host is all that a caller has to show. localOnly also refuses names that are not this host's own, which such a page could have
// pointed here.
func sameSite(localOnly bool) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if reason := foreign(r, localOnly); reason != "" {
				writeStatus(w, routingStatus(http.StatusForbidden, metav1.StatusReasonForbidden, reason))
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

func foreign(r *http.Request, localOnly bool) string {
	if localOnly && !isLocalHost(r.Host) {
		return fmt.Sprintf("the Host header names %q: the gateway listens for this host only and answers to its loopback names", r.Host)
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || u.Host != r.Host {
			return fmt.Sprintf("requests from pages of %q are refused", origin)
		}
	}
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "", "same-origin", "none":
		return ""
	default:
		if r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" {
			return "" // somebody followed a link
		}
		return fmt.Sprintf("%s requests of a browser are refused", site)
	}
}

func isLocalHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	ip := net.ParseIP(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || (ip != nil && ip.IsLoopback())
}
