package front_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/rpc"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/gateway/internal/front"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type bodyStream = grpc.ServerStreamingServer[httpbody.HttpBody]

// backend plays the services; a test sets what it needs.
type backend struct {
	podplanev1.UnimplementedPodServiceServer
	podplanev1.UnimplementedLifecycleServiceServer
	podplanev1.UnimplementedProbeServiceServer
	podplanev1.UnimplementedServiceServiceServer

	create    func(context.Context, *podplanev1.CreateRequest) (*httpbody.HttpBody, error)
	replace   func(*podplanev1.ReplaceRequest) (*httpbody.HttpBody, error)
	remove    func(*podplanev1.DeleteRequest) (*httpbody.HttpBody, error)
	get       func(*podplanev1.GetRequest) (*httpbody.HttpBody, error)
	list      func(*podplanev1.ListRequest, bodyStream) error
	log       func(*podplanev1.PodLogRequest, bodyStream) error
	lifecycle func(*podplanev1.ListLifecycleRequest, grpc.ServerStreamingServer[podplanev1.ListLifecycleResponse]) error
}

func (b *backend) CreatePod(ctx context.Context, r *podplanev1.CreateRequest) (*httpbody.HttpBody, error) {
	return b.create(ctx, r)
}

func (b *backend) ReplacePod(_ context.Context, r *podplanev1.ReplaceRequest) (*httpbody.HttpBody, error) {
	return b.replace(r)
}

func (b *backend) DeletePod(_ context.Context, r *podplanev1.DeleteRequest) (*httpbody.HttpBody, error) {
	return b.remove(r)
}

func (b *backend) GetPod(_ context.Context, r *podplanev1.GetRequest) (*httpbody.HttpBody, error) {
	return b.get(r)
}

func (b *backend) ListPods(r *podplanev1.ListRequest, s bodyStream) error { return b.list(r, s) }

func (b *backend) GetPodLog(r *podplanev1.PodLogRequest, s bodyStream) error { return b.log(r, s) }

func (b *backend) ListLifecycle(r *podplanev1.ListLifecycleRequest, s grpc.ServerStreamingServer[podplanev1.ListLifecycleResponse]) error {
	return b.lifecycle(r, s)
}

func (b *backend) ListServices(context.Context, *podplanev1.ListServicesRequest) (*podplanev1.ListServicesResponse, error) {
	return &podplanev1.ListServicesResponse{Services: []*podplanev1.ServiceRecord{{Service: "syncd", Ready: true}}}, nil
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return lis
}

// newFront serves b over gRPC and gives the front door before it.
func newFront(t testing.TB, b *backend) http.Handler {
	t.Helper()
	lis := listen(t)
	s := rpc.NewServer(slog.New(slog.DiscardHandler))
	podplanev1.RegisterPodServiceServer(s, b)
	podplanev1.RegisterLifecycleServiceServer(s, b)
	podplanev1.RegisterProbeServiceServer(s, b)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, lis, time.Second) }()
	cc, err := rpc.DialAddress("syncd", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cc.Close()
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return handler(t, cc, b)
}

func handler(t testing.TB, cc grpc.ClientConnInterface, b *backend) http.Handler {
	t.Helper()
	h, err := front.New(t.Context(), front.Options{
		Conn: func(string) grpc.ClientConnInterface { return cc }, Services: b, Version: "v1", LocalOnly: true,
		Ops: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func request(t testing.TB, method, path, body string, header ...string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "http://127.0.0.1:8080"+path, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

func do(t testing.TB, h http.Handler, method, path, body string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, request(t, method, path, body, header...))
	return w
}

// status reads a Status and checks that it is one and agrees with the answer's code.
func status(t testing.TB, w *httptest.ResponseRecorder) metav1.Status {
	t.Helper()
	var s metav1.Status
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
		t.Fatalf("%d %q is no Status: %v", w.Code, w.Body, err)
	}
	if s.Kind != "Status" || s.APIVersion != "v1" || int(s.Code) != w.Code || s.Status != metav1.StatusFailure || s.Message == "" {
		t.Fatalf("%d with Status %+v", w.Code, s)
	}
	if ct := w.Header().Get("Content-Type"); ct != "application/json" {
		t.Errorf("a Status of type %q", ct)
	}
	return s
}

const pods = "/api/v1/namespaces/default/pods"

func TestBodiesPassByteForByte(t *testing.T) {
	var got *podplanev1.CreateRequest
	b := &backend{create: func(_ context.Context, r *podplanev1.CreateRequest) (*httpbody.HttpBody, error) {
		got = r
		return &httpbody.HttpBody{ContentType: "application/json", Data: []byte(`{"kind" : "Pod", "unknown":1.0}`)}, nil
	}}
	h := newFront(t, b)
	for _, c := range []struct{ header, body, want string }{
		{"application/json", "{ \"a\" : 1.0, \"b\":\"\u00e9\" }\n\n", "application/json"},
		{"application/json; charset=utf-8", "{}", "application/json"},
		{"application/yaml", "# a comment\na: 'x'\n", "application/yaml"},
		{"text/yaml", "a: b", "application/yaml"},
		{"", "{\xff}", "application/json"},
	} {
		w := do(t, h, http.MethodPost, pods+"?dryRun=All&pretty=true", c.body, "Content-Type", c.header)
		if w.Code != http.StatusCreated || w.Body.String() != `{"kind" : "Pod", "unknown":1.0}` || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%q: %d %s %v", c.header, w.Code, w.Body, w.Header())
		}
		if string(got.GetBody().GetData()) != c.body || got.GetBody().GetContentType() != c.want || got.GetNamespace() != "default" || got.GetDryRun()[0] != "All" {
			t.Errorf("%q arrived as %v", c.header, got)
		}
	}
}

func TestReplaceAndDeletePassTheirArguments(t *testing.T) {
	var replaced *podplanev1.ReplaceRequest
	var removed *podplanev1.DeleteRequest
	ok := &httpbody.HttpBody{ContentType: "application/json", Data: []byte("{}")}
	h := newFront(t, &backend{
		replace: func(r *podplanev1.ReplaceRequest) (*httpbody.HttpBody, error) { replaced = r; return ok, nil },
		remove:  func(r *podplanev1.DeleteRequest) (*httpbody.HttpBody, error) { removed = r; return ok, nil },
	})
	if w := do(t, h, http.MethodPut, pods+"/a", "{}"); w.Code != 200 || replaced.GetName() != "a" || string(replaced.GetBody().GetData()) != "{}" {
		t.Errorf("%d %v", w.Code, replaced)
	}
	if w := do(t, h, http.MethodDelete, pods+"/a?gracePeriodSeconds=0", ""); w.Code != 200 || removed.GracePeriodSeconds == nil || removed.GetGracePeriodSeconds() != 0 || removed.GetBody() != nil {
		t.Errorf("%d %v", w.Code, removed)
	}
	if w := do(t, h, http.MethodDelete, pods+"/a", `{"gracePeriodSeconds":3}`); w.Code != 200 || string(removed.GetBody().GetData()) != `{"gracePeriodSeconds":3}` || removed.GracePeriodSeconds != nil {
		t.Errorf("%d %v", w.Code, removed)
	}
}

func TestRefusalsAreStatuses(t *testing.T) {
	invalid := fault.Invalidate(fault.Object{Resource: "Pod", Name: "a"}, field.ErrorList{
		field.Required(field.NewPath("spec", "containers"), ""), field.Invalid(field.NewPath("spec", "x"), 1, "must be 2"),
	})
	var fail error
	h := newFront(t, &backend{
		create: func(context.Context, *podplanev1.CreateRequest) (*httpbody.HttpBody, error) { return nil, fail },
		list:   func(*podplanev1.ListRequest, bodyStream) error { return fail },
		get:    func(*podplanev1.GetRequest) (*httpbody.HttpBody, error) { panic("defect") },
	})
	for _, c := range []struct {
		name, method, path, body string
		header                   []string
		fail                     error
		code                     int
		reason                   metav1.StatusReason
		causes                   int
	}{
		{name: "invalid", method: "POST", path: pods, body: "{}", fail: invalid, code: 422, reason: metav1.StatusReasonInvalid, causes: 2},
		{name: "name taken", method: "POST", path: pods, body: "{}", fail: fault.For(fault.AlreadyExists, fault.Object{Resource: "pods", Name: "a"}, ""), code: 409, reason: metav1.StatusReasonAlreadyExists},
		{name: "conflict", method: "POST", path: pods, body: "{}", fail: fault.New(fault.Conflict, "changed"), code: 409, reason: metav1.StatusReasonConflict},
		{name: "bus away", method: "POST", path: pods, body: "{}", fail: fault.WithRetryAfter(fault.New(fault.Unavailable, "the bus is away"), 2*time.Second), code: 503, reason: metav1.StatusReasonServiceUnavailable},
		{name: "list of an old version", method: "GET", path: pods + "?watch=true", fail: fault.New(fault.Expired, "too old"), code: 410, reason: metav1.StatusReasonExpired},
		{name: "invalid selector", method: "GET", path: pods + "?labelSelector=%21%21", fail: fault.New(fault.BadRequest, "no selector"), code: 400, reason: metav1.StatusReasonBadRequest},
		{name: "too large", method: "POST", path: pods, body: strings.Repeat("x", front.MaxBodyBytes+1), code: 413, reason: metav1.StatusReasonRequestEntityTooLarge},
		{name: "empty body", method: "POST", path: pods, code: 400, reason: metav1.StatusReasonBadRequest},
		{name: "form", method: "POST", path: pods, body: "a=b", header: []string{"Content-Type", "application/x-www-form-urlencoded"}, code: 415, reason: metav1.StatusReasonUnsupportedMediaType},
		{name: "no media type at all", method: "POST", path: pods, body: "a=b", header: []string{"Content-Type", ";;"}, code: 415, reason: metav1.StatusReasonUnsupportedMediaType},
		{name: "protobuf only", method: "GET", path: pods, header: []string{"Accept", "application/vnd.kubernetes.protobuf"}, code: 406, reason: metav1.StatusReasonNotAcceptable},
		{name: "text for a list", method: "GET", path: pods, header: []string{"Accept", "text/plain"}, code: 406, reason: metav1.StatusReasonNotAcceptable},
		{name: "unknown path", method: "GET", path: "/api/v1/widgets", code: 404, reason: metav1.StatusReasonNotFound},
		{name: "unknown method", method: "PATCH", path: pods + "/a", body: "{}", code: 405, reason: metav1.StatusReasonMethodNotAllowed},
		{name: "bad number", method: "GET", path: pods + "?limit=many", code: 400, reason: metav1.StatusReasonBadRequest},
		{name: "unimplemented", method: "DELETE", path: "/api/v1/namespaces/default/configmaps/a", code: 501},
		{name: "panic", method: "GET", path: pods + "/a", code: 500, reason: metav1.StatusReasonInternalError},
		{name: "rebound name", method: "GET", path: pods, header: []string{"Host", "evil.example"}, code: 403, reason: metav1.StatusReasonForbidden},
		{name: "foreign page", method: "POST", path: pods, body: "{}", header: []string{"Origin", "http://evil.example"}, code: 403, reason: metav1.StatusReasonForbidden},
		{name: "cross site", method: "POST", path: pods, body: "{}", header: []string{"Sec-Fetch-Site", "cross-site"}, code: 403, reason: metav1.StatusReasonForbidden},
	} {
		t.Run(c.name, func(t *testing.T) {
			fail = c.fail
			r := request(t, c.method, c.path, c.body, c.header...)
			if host := r.Header.Get("Host"); host != "" {
				r.Host = host
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			s := status(t, w)
			if w.Code != c.code || s.Reason != c.reason {
				t.Errorf("got %d %s %q, want %d %s", w.Code, s.Reason, s.Message, c.code, c.reason)
			}
			if c.causes > 0 && (s.Details == nil || len(s.Details.Causes) != c.causes || s.Details.Causes[0].Field != "spec.containers") {
				t.Errorf("details %+v", s.Details)
			}
			if retry := w.Header().Get("Retry-After"); (c.code == 503) != (retry == "2") {
				t.Errorf("Retry-After %q", retry)
			}
			if c.code == 405 && w.Header().Get("Allow") != "GET, PUT, DELETE" {
				t.Errorf("Allow %q", w.Header().Get("Allow"))
			}
			if w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("X-Request-Id") == "" {
				t.Errorf("headers %v", w.Header())
			}
		})
	}
}

func TestChunkedBodyIsBoundedToo(t *testing.T) {
	h := newFront(t, &backend{})
	r := request(t, http.MethodPost, pods, "")
	r.Body, r.ContentLength = io.NopCloser(io.LimitReader(neverEnding('x'), front.MaxBodyBytes+10)), -1
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if s := status(t, w); s.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("got %+v", s)
	}
	r = request(t, http.MethodPost, pods, "")
	r.Body, r.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader("{"), errReader{})), -1
	w = httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if s := status(t, w); s.Code != http.StatusBadRequest {
		t.Errorf("got %+v", s)
	}
}

type neverEnding byte

func (b neverEnding) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b)
	}
	return len(p), nil
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("cut") }

func TestServiceThatIsAwayIsNamed(t *testing.T) {
	cc, err := rpc.DialWith(t.Context(), nowhere{}, "syncd", "", rpc.Options{WaitForReady: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cc.Close() }()
	h := handler(t, cc, &backend{})
	for _, path := range []string{pods, pods + "/a", pods + "?watch=1", pods + "/a/log?follow=true", "/podplane/v1/probes", "/podplane/v1/lifecycle?follow=true"} {
		w := do(t, h, http.MethodGet, path, "")
		if s := status(t, w); s.Code != 503 || !strings.Contains(s.Message, "syncd is not reachable") || w.Header().Get("Retry-After") != "1" {
			t.Errorf("%s: %+v %v", path, s, w.Header())
		}
	}
	if w := do(t, h, http.MethodGet, "/podplane/v1/services", ""); w.Code != 200 || !strings.Contains(w.Body.String(), `"syncd"`) {
		t.Errorf("services must not need syncd: %d %s", w.Code, w.Body)
	}
}

type nowhere struct{}

func (nowhere) WatchServices(ctx context.Context, _ string, f func([]*podplanev1.ServiceRecord)) error {
	f(nil)
	<-ctx.Done()
	return nil
}

// open starts a real HTTP server, because a stream's flushing shows only there, and asks it.
func open(t *testing.T, h http.Handler, path string) *http.Response {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func chunk(contentType, data string) *httpbody.HttpBody {
	return &httpbody.HttpBody{ContentType: contentType, Data: []byte(data)}
}

func TestPagesAndDiscovery(t *testing.T) {
	h := newFront(t, &backend{})
	for path, want := range map[string]string{
		"/": "Podplane", "/docs": "docs.js", "/docs/docs.js": "openapi.json", "/docs/docs.css": "body",
		"/openapi.json": `"/api/v1/namespaces/{namespace}/pods"`, "/version": `"major":"1"`, "/api": `"versions":["v1"]`,
		"/apis": `"groups":[]`, "/api/v1": `"name":"pods"`,
	} {
		w := do(t, h, http.MethodGet, path, "")
		if w.Code != 200 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %.200s", path, w.Code, w.Body)
		}
		if policy := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'") {
			t.Errorf("%s: policy %q", path, policy)
		}
		if strings.Contains(path, "docs") && (strings.Contains(w.Body.String(), "https://") || strings.Contains(w.Body.String(), "//cdn")) {
			t.Errorf("%s refers to another host", path)
		}
	}
}

func TestAcceptHeaders(t *testing.T) {
	h := newFront(t, &backend{list: func(_ *podplanev1.ListRequest, s bodyStream) error {
		return s.Send(chunk("application/json", "{}"))
	}, log: func(_ *podplanev1.PodLogRequest, s bodyStream) error { return s.Send(chunk("text/plain", "x")) }})
	for accept, ok := range map[string]bool{
		"": true, "*/*": true, "application/*": true, "application/json": true, "text/html,*/*;q=0.8": true,
		"application/json;as=Table;v=v1;g=meta.k8s.io,application/json": true,
		"application/json;as=Table;v=v1;g=meta.k8s.io":                  false, "application/json;q=0": false, "image/png": false, ";": false,
	} {
		if w := do(t, h, http.MethodGet, pods, "", "Accept", accept); (w.Code == 200) != ok || (!ok && w.Code != 406) {
			t.Errorf("%q: %d", accept, w.Code)
		}
	}
	if w := do(t, h, http.MethodGet, pods+"/a/log", "", "Accept", "text/plain"); w.Code != 200 || w.Body.String() != "x" {
		t.Errorf("a log as text: %d", w.Code)
	}
}

func TestRequestsAtOnceAreBounded(t *testing.T) {
	release := make(chan struct{})
	var entered sync.WaitGroup
	entered.Add(256)
	h := newFront(t, &backend{list: func(*podplanev1.ListRequest, bodyStream) error {
		entered.Done()
		<-release
		return nil
	}})
	var done sync.WaitGroup
	for range 256 {
		done.Go(func() { do(t, h, http.MethodGet, pods, "") })
	}
	entered.Wait()
	w := do(t, h, http.MethodGet, pods, "")
	if s := status(t, w); s.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" {
		t.Errorf("got %+v", s)
	}
	if w := do(t, h, http.MethodGet, "/version", ""); w.Code != 200 {
		t.Errorf("what costs nothing is still answered: %d", w.Code)
	}
	close(release)
	done.Wait()
}

func FuzzRequests(f *testing.F) {
	f.Add("GET", "/api/v1/namespaces/default/pods", "watch=true&limit=1", "application/json", "application/json", "{}")
	f.Add("POST", "/api/v1/namespaces/%2F%00/pods", "dryRun=All", "application/yaml;;", "*/*;q=", "a: b")
	f.Add("DELETE", "/podplane/v1/%zz", "a=%zz&b;c", "text/plain", "text/plain", "")
	f.Add("PUT", "//api//v1/../pods/", "gracePeriodSeconds=x", "", "", "\x00")
	ok := &httpbody.HttpBody{ContentType: "application/json", Data: []byte("{}")}
	h := newFront(f, &backend{
		create:  func(context.Context, *podplanev1.CreateRequest) (*httpbody.HttpBody, error) { return ok, nil },
		replace: func(*podplanev1.ReplaceRequest) (*httpbody.HttpBody, error) { return ok, nil },
		remove:  func(*podplanev1.DeleteRequest) (*httpbody.HttpBody, error) { return ok, nil },
		get:     func(*podplanev1.GetRequest) (*httpbody.HttpBody, error) { return ok, nil },
		list:    func(_ *podplanev1.ListRequest, s bodyStream) error { return s.Send(ok) },
		log:     func(_ *podplanev1.PodLogRequest, s bodyStream) error { return s.Send(ok) },
		lifecycle: func(*podplanev1.ListLifecycleRequest, grpc.ServerStreamingServer[podplanev1.ListLifecycleResponse]) error {
			return nil
		},
	})
	f.Fuzz(func(t *testing.T, method, path, query, contentType, accept, body string) {
		raw := method + " " + path + "?" + query + " HTTP/1.1\r\nHost: localhost\r\n\r\n"
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
		if err != nil {
			return // the server would not have let it in
		}
		r = r.WithContext(t.Context())
		r.Header.Set("Content-Type", contentType)
		r.Header.Set("Accept", accept)
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code >= 400 && strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") {
			status(t, w)
		}
		if w.Code >= 500 && w.Code != http.StatusNotImplemented && w.Code != http.StatusServiceUnavailable {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}
