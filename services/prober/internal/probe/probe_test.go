package probe_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/prober/internal/probe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	ok      = podplanev1.ProbeResult_PROBE_RESULT_SUCCESS
	bad     = podplanev1.ProbeResult_PROBE_RESULT_FAILURE
	unknown = podplanev1.ProbeResult_PROBE_RESULT_UNKNOWN
)

func ipPort(t *testing.T, raw string) (string, int) {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return u.Hostname(), port
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	seen := make(chan *http.Request, 100)
	block := make(chan struct{})
	mux := http.NewServeMux()
	for _, code := range []int{200, 204, 302, 399, 400, 404, 500} {
		mux.HandleFunc(fmt.Sprintf("/%d", code), func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			if code != 204 {
				fmt.Fprint(w, "the secret body")
			}
		})
	}
	mux.HandleFunc("/seen", func(_ http.ResponseWriter, r *http.Request) { seen <- r })
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-block:
		}
	})
	mux.HandleFunc("/slowbody", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "x")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/big", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", 1<<20)) })
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
	})
	mux.HandleFunc("/here", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/500", http.StatusFound) })
	mux.HandleFunc("/loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/loop", http.StatusFound) })
	for scheme, start := range map[string]func(http.Handler) *httptest.Server{"HTTP": httptest.NewServer, "HTTPS": httptest.NewTLSServer} {
		srv := start(mux)
		defer srv.Close()
		ip, port := ipPort(t, srv.URL)
		p := probe.New(nil)
		for _, c := range []struct {
			path    string
			want    podplanev1.ProbeResult
			output  string
			warning bool
			late    bool
		}{
			{"/200", ok, "", false, false},
			{"/204", ok, "", false, false},
			{"/302", ok, "redirects", true, false},
			{"/399", ok, "redirects", true, false},
			{"/400", bad, "statuscode: 400", false, false},
			{"/404", bad, "statuscode: 404", false, false},
			{"/500", bad, "statuscode: 500", false, false},
			{"/big", ok, "", false, false},
			{"/away", ok, "redirects", true, false},
			{"/here", bad, "statuscode: 500", false, false},
			{"/loop", bad, "10 redirects", false, false},
			{"/slow", bad, "deadline exceeded", false, true},
			{"/slowbody", bad, "deadline exceeded", false, true},
			{"404", bad, "statuscode: 404", false, false},
		} {
			s := &probe.Spec{HTTP: &probe.HTTP{Scheme: scheme, Path: c.path, Port: port}, Timeout: time.Minute}
			if c.late {
				s.Timeout = 50 * time.Millisecond
			}
			r := p.Probe(t.Context(), s, probe.Target{PodIP: ip})
			if r.Outcome != c.want || !strings.Contains(r.Output, c.output) || r.Warning != c.warning || r.TimedOut != c.late || r.Err != nil {
				t.Errorf("%s %s: got %+v", scheme, c.path, r)
			}
			if strings.Contains(r.Output, "secret") {
				t.Errorf("%s: the output has the body: %q", c.path, r.Output)
			}
		}
	}
	close(block)
	srv := httptest.NewServer(mux)
	defer srv.Close()
	ip, port := ipPort(t, srv.URL)
	p := probe.New(nil)
	for _, c := range []struct{ in, want http.Header }{
		{nil, http.Header{"User-Agent": {"kube-probe/1.36"}, "Accept": {"*/*"}, "Connection": {"close"}}},
		{
			http.Header{"Host": {"example.org"}, "User-Agent": {"mine"}, "X": {"1", "2"}, "Accept": {""}},
			http.Header{"User-Agent": {"mine"}, "X": {"1", "2"}, "Connection": {"close"}},
		},
	} {
		s := &probe.Spec{HTTP: &probe.HTTP{Scheme: "HTTP", Path: "/seen?a=b", Port: port, Header: c.in}, Timeout: time.Minute}
		if r := p.Probe(t.Context(), s, probe.Target{PodIP: ip}); r.Outcome != ok {
			t.Fatalf("got %+v", r)
		}
		got := <-seen
		if fmt.Sprint(got.Header) != fmt.Sprint(c.want) || got.URL.RawQuery != "a=b" || got.Method != http.MethodGet {
			t.Errorf("got %v %v", got.URL, got.Header)
		}
		if c.in != nil && got.Host != "example.org" {
			t.Errorf("host %q", got.Host)
		}
	}
}

func TestTCP(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	p := probe.New(nil)
	s := &probe.Spec{TCP: &probe.TCP{Port: port}, Timeout: time.Minute}
	if r := p.Probe(t.Context(), s, probe.Target{PodIP: "127.0.0.1"}); r.Outcome != ok {
		t.Errorf("open port: %+v", r)
	}
	l.Close()
	if r := p.Probe(t.Context(), s, probe.Target{PodIP: "127.0.0.1"}); r.Outcome != bad || !strings.Contains(r.Output, "refused") || r.TimedOut {
		t.Errorf("closed port: %+v", r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := p.Probe(ctx, s, probe.Target{PodIP: "127.0.0.1"}); r.Outcome != unknown || !errors.Is(r.Err, context.Canceled) {
		t.Errorf("a probe that was called off: %+v", r)
	}
}

func TestGRPC(t *testing.T) {
	t.Parallel()
	serve := func(register func(*grpc.Server)) int {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		srv := grpc.NewServer()
		register(srv)
		done := make(chan struct{})
		go func() { defer close(done); _ = srv.Serve(l) }()
		t.Cleanup(func() { srv.Stop(); <-done })
		return l.Addr().(*net.TCPAddr).Port
	}
	h := health.NewServer()
	h.SetServingStatus("up", healthpb.HealthCheckResponse_SERVING)
	h.SetServingStatus("down", healthpb.HealthCheckResponse_NOT_SERVING)
	port := serve(func(s *grpc.Server) { healthpb.RegisterHealthServer(s, h) })
	bare := serve(func(*grpc.Server) {})
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	p := probe.New(nil)
	for _, c := range []struct {
		service string
		port    int
		timeout time.Duration
		want    podplanev1.ProbeResult
		output  string
	}{
		{"", port, time.Minute, ok, ""},
		{"up", port, time.Minute, ok, ""},
		{"down", port, time.Minute, bad, "NOT_SERVING"},
		{"unknown", port, time.Minute, bad, "unknown service"},
		{"", bare, time.Minute, bad, "does not implement"},
		{"", mute.Addr().(*net.TCPAddr).Port, 50 * time.Millisecond, bad, "timeout"},
	} {
		s := &probe.Spec{GRPC: &probe.GRPC{Port: c.port, Service: c.service}, Timeout: c.timeout}
		r := p.Probe(t.Context(), s, probe.Target{PodIP: "127.0.0.1"})
		if r.Outcome != c.want || !strings.Contains(r.Output, c.output) {
			t.Errorf("%+v: got %+v", c, r)
		}
	}
}

// execer answers commands.
type execer struct {
	calls  int
	result cri.ExecResult
	err    error
}

func (e *execer) ExecSync(context.Context, string, []string, time.Duration) (cri.ExecResult, error) {
	e.calls++
	return e.result, e.err
}

func TestExec(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err   error
		want  podplanev1.ProbeResult
		late  bool
		calls int
	}{
		{nil, ok, false, 1},
		{&cri.ExitError{Code: 3}, bad, false, 1},
		{&cri.ExecTimeoutError{Timeout: time.Second}, bad, true, 1},
		{fault.New(fault.Unavailable, "runtime away"), unknown, false, 3},
		{fault.New(fault.NotFound, "no such container"), unknown, false, 3},
	} {
		e := &execer{result: cri.ExecResult{Stdout: []byte("out"), Stderr: []byte(strings.Repeat("e", 20<<10))}, err: c.err}
		r := probe.New(e).Probe(t.Context(), &probe.Spec{Exec: []string{"x"}, Timeout: time.Second}, probe.Target{ContainerID: "c"})
		if r.Outcome != c.want || r.TimedOut != c.late || e.calls != c.calls || (r.Err != nil) != (c.want == unknown) {
			t.Errorf("%v: %d calls, got %v %v %v", c.err, e.calls, r.Outcome, r.TimedOut, r.Err)
		}
		if !c.late && c.want != unknown && (len(r.Output) != 10<<10 || !strings.HasPrefix(r.Output, "outee")) {
			t.Errorf("output of %d bytes", len(r.Output))
		}
	}
}

func TestSpec(t *testing.T) {
	t.Parallel()
	c := &corev1.Container{
		Name: "c", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}},
		Env: []corev1.EnvVar{
			{Name: "A", Value: "1"},
			{Name: "B", Value: "$(A)2"},
			{Name: "S", ValueFrom: &corev1.EnvVarSource{}},
		},
	}
	spec := func(h corev1.ProbeHandler) *probe.Spec {
		return probe.NewSpec(&corev1.Probe{ProbeHandler: h, TimeoutSeconds: 3}, c)
	}
	s := spec(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("web")}})
	if s.Err != nil || s.HTTP.Port != 8080 || s.HTTP.Path != "/" || s.HTTP.Scheme != "http" || s.Timeout != 3*time.Second || !s.NeedsIP() {
		t.Errorf("got %+v", s)
	}
	if s = spec(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Host: "h", Port: intstr.FromInt32(9)}}); s.Err != nil || s.TCP.Port != 9 || s.NeedsIP() {
		t.Errorf("got %+v", s)
	}
	if s = spec(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("none")}}); s.Err == nil {
		t.Error("a port that the container does not have")
	}
	if r := probe.New(nil).Probe(t.Context(), s, probe.Target{}); r.Outcome != unknown {
		t.Errorf("got %+v", r)
	}
	if s = spec(corev1.ProbeHandler{}); s.Err == nil {
		t.Error("no handler")
	}
	s = spec(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"$(A)", "x$(B)y", "$(S)", "$$(A)", "$", "$x", "$(A", "$$$$"}}})
	if want := []string{"1", "x12y", "$(S)", "$(A)", "$", "$x", "$(A", "$$"}; !slices.Equal(s.Exec, want) || s.NeedsIP() {
		t.Errorf("got %q, want %q", s.Exec, want)
	}
}
