package front_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/tokens"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/gateway/internal/access"
	"github.com/podplane/podplane/services/gateway/internal/audit"
	"github.com/podplane/podplane/services/gateway/internal/front"
	"github.com/podplane/podplane/services/gateway/internal/limit"
)

const roles = `
bindings:
- {role: edit, users: [alice], namespaces: [team]}
- {role: view, users: [watcher], namespaces: ["*"]}
`

// calls plays every service: it answers whatever it is asked, and counts whose namespaces it was asked about.
type calls struct {
	n       atomic.Int64
	foreign atomic.Pointer[string]
	streams chan struct{} // closed streams end when it is closed; nil: at once
}

func (c *calls) saw(method string, args any) {
	c.n.Add(1)
	if x, ok := args.(interface{ GetNamespace() string }); ok && x.GetNamespace() != "team" {
		s := method + " in " + x.GetNamespace()
		c.foreign.Store(&s)
	}
}

func (c *calls) Invoke(_ context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	c.saw(method, args)
	if b, ok := reply.(*httpbody.HttpBody); ok {
		b.ContentType, b.Data = "application/json", []byte("{}")
	}
	return nil
}

func (c *calls) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return &callStream{calls: c, ctx: ctx, method: method}, nil
}

type callStream struct {
	calls  *calls
	ctx    context.Context
	method string
	sent   bool
}

func (s *callStream) Header() (metadata.MD, error) { return metadata.MD{}, nil }
func (s *callStream) Trailer() metadata.MD         { return nil }
func (s *callStream) CloseSend() error             { return nil }
func (s *callStream) Context() context.Context     { return s.ctx }

func (s *callStream) SendMsg(m any) error {
	s.calls.saw(s.method, m)
	return nil
}

func (s *callStream) RecvMsg(m any) error {
	if !s.sent {
		s.sent = true
		if b, ok := m.(*httpbody.HttpBody); ok {
			b.ContentType, b.Data = "application/json", []byte("{}\n")
		}
		return nil
	}
	if s.calls.streams == nil {
		return io.EOF
	}
	select {
	case <-s.calls.streams:
		return io.EOF
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// door is a front door with users.
type door struct {
	http.Handler
	calls          *calls
	alice, watcher string // Authorization headers
	tokens         string
	audit          string
}

func newDoor(t testing.TB, rate *limit.Limiter) *door {
	t.Helper()
	dir := t.TempDir()
	d := &door{calls: &calls{}, tokens: filepath.Join(dir, "tokens"), audit: filepath.Join(dir, "audit")}
	for user, header := range map[string]*string{"alice": &d.alice, "watcher": &d.watcher} {
		secret, _, err := tokens.Create(d.tokens, user, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		*header = "Bearer " + secret
	}
	bindings := filepath.Join(dir, "bindings")
	if err := os.WriteFile(bindings, []byte(roles), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := access.Open(access.Files{Tokens: d.tokens, Bindings: bindings}, nil)
	if err != nil {
		t.Fatal(err)
	}
	log, err := audit.Open(d.audit, audit.Options{Failed: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	ops := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	if d.Handler, err = front.New(t.Context(), front.Options{
		Conn: func(string) grpc.ClientConnInterface { return d.calls }, Services: &backend{}, Version: "v1", Ops: ops,
		Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Guard: front.Guard{Access: a, Audit: log, Rate: rate},
	}); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *door) entries(t testing.TB) (out []audit.Entry) {
	t.Helper()
	f, err := os.Open(d.audit)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for s := bufio.NewScanner(f); s.Scan(); {
		var e audit.Entry
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			t.Fatalf("%q: %v", s.Text(), err)
		}
		out = append(out, e)
	}
	return out
}

var everything = []string{
	"/", "/docs", "/docs/docs.js", "/openapi.json", "/version", "/api", "/apis", "/api/v1", "/metrics", "/readyz", "/nothing", "/healthz/", "//healthz",
	"/api/v1/pods", pods, pods + "/a", pods + "/a/log", "/api/v1/nodes", "/podplane/v1/services", "/podplane/v1/lifecycle", "/%68ealthz",
}

func TestNobodyGetsInUnknown(t *testing.T) {
	d := newDoor(t, nil)
	if w := do(t, d, http.MethodGet, "/healthz", ""); w.Code != http.StatusOK {
		t.Errorf("/healthz: %d", w.Code)
	}
	n := 0
	for _, path := range everything {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"} {
			r := httptest.NewRequestWithContext(t.Context(), method, "http://gateway.example"+path, strings.NewReader("{}"))
			r.RemoteAddr = "192.0.2." + string(rune('0'+n%10)) + ":1"
			n++
			w := httptest.NewRecorder()
			d.ServeHTTP(w, r)
			if w.Code != http.StatusUnauthorized && w.Code != http.StatusTooManyRequests {
				t.Errorf("%s %s: %d %s", method, path, w.Code, w.Body)
			}
		}
	}
	w := do(t, d, http.MethodGet, "/api/v1/pods", "", "Authorization", "Bearer nonsense", "X-Forwarded-For", "127.0.0.1")
	if s := status(t, w); s.Reason != "Unauthorized" || !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Bearer") || strings.Contains(w.Body.String(), "nonsense") {
		t.Errorf("%+v %v", s, w.Header())
	}
	if d.calls.n.Load() != 0 {
		t.Errorf("%d calls reached a service", d.calls.n.Load())
	}
}

func TestRolesAtTheDoor(t *testing.T) {
	d := newDoor(t, nil)
	for _, c := range []struct {
		user, method, path, body string
		code                     int
	}{
		{d.alice, "GET", "/api/v1/namespaces/team/pods", "", 200},
		{d.alice, "GET", "/api/v1/namespaces/team/pods?watch=true", "", 200},
		{d.alice, "POST", "/api/v1/namespaces/team/pods", "{}", 201},
		{d.alice, "PUT", "/api/v1/namespaces/team/secrets/s", "{}", 200},
		{d.alice, "DELETE", "/api/v1/namespaces/team/pods", "", 200},
		{d.alice, "GET", "/api/v1/namespaces/team/pods/a/log?follow=true", "", 200},
		{d.alice, "GET", "/podplane/v1/probes?namespace=team", "", 200},
		{d.alice, "GET", "/version", "", 200},
		{d.alice, "GET", "/api/v1/pods", "", 403},
		{d.alice, "GET", "/api/v1/pods?namespace=team", "", 403},
		{d.alice, "GET", "/api/v1/namespaces/other/pods", "", 403},
		{d.alice, "GET", "/api/v1/namespaces/other/pods?namespace=team", "", 403},
		{d.alice, "GET", "/api/v1/namespaces/team%2F..%2Fother/pods", "", 403},
		{d.alice, "GET", "/podplane/v1/probes", "", 403},
		{d.alice, "GET", "/podplane/v1/probes?namespace=other", "", 403},
		{d.alice, "GET", "/podplane/v1/probes?namespace=team&namespace=other", "", 403},
		{d.alice, "GET", "/podplane/v1/services?namespace=team", "", 403},
		{d.alice, "GET", "/metrics", "", 403},
		{d.alice, "GET", "/nothing", "", 404},
		{d.watcher, "GET", "/metrics", "", 200},
		{d.watcher, "GET", "/podplane/v1/services", "", 200},
		{d.watcher, "GET", "/api/v1/namespaces/other/secrets", "", 403},
		{d.watcher, "DELETE", "/api/v1/namespaces/team/pods/a", "", 403},
		{d.watcher, "POST", "/api/v1/namespaces/team/pods", "{}", 403},
	} {
		w := do(t, d, c.method, c.path, c.body, "Authorization", c.user)
		if w.Code != c.code {
			t.Errorf("%s %s: %d, want %d: %s", c.method, c.path, w.Code, c.code, w.Body)
		}
		if c.code == 403 {
			if s := status(t, w); s.Reason != "Forbidden" || !strings.Contains(s.Message, " cannot ") {
				t.Errorf("%s %s: %+v", c.method, c.path, s)
			}
		}
	}
	w := do(t, d, "DELETE", "/api/v1/namespaces/team/pods/a", "", "Authorization", d.watcher)
	if s := status(t, w); s.Message != `pods "a" is forbidden: user "watcher" cannot delete resource "pods" in API group "" in the namespace "team"` || s.Details.Name != "a" || s.Details.Kind != "pods" {
		t.Errorf("%+v", s)
	}
}

func TestWhoDidWhatIsWrittenDown(t *testing.T) {
	d := newDoor(t, nil)
	const secretBody = `{"data":{"password":"aHVudGVyMg=="}}`
	do(t, d, "POST", "/api/v1/namespaces/team/secrets?dryRun=quiet-query", secretBody, "Authorization", d.alice, "User-Agent", "agent/1", "X-Request-Id", "req-1")
	do(t, d, "GET", "/api/v1/namespaces/other/pods/p/log", "", "Authorization", d.alice)
	do(t, d, "GET", "/metrics", "", "Authorization", "Bearer wrong-token")
	do(t, d, "GET", "/api/v1/namespaces/team/pods?watch=1", "", "Authorization", d.alice)
	do(t, d, "GET", "/healthz", "")
	got := d.entries(t)
	if len(got) != 5 {
		t.Fatalf("%d lines: %+v", len(got), got)
	}
	c, l, m := got[0], got[1], got[2]
	if c.User != "alice" || !strings.HasPrefix(c.Via, "token:") || c.Verb != "create" || c.Resource != "secrets" || c.Namespace != "team" || c.Code != 201 || c.Source == "" || c.RequestID != "req-1" || c.UserAgent != "agent/1" || c.Stage != "answered" {
		t.Errorf("%+v", c)
	}
	if l.User != "alice" || l.Verb != "get" || l.Resource != "pods" || l.Subresource != "log" || l.Namespace != "other" || l.Name != "p" || l.Code != 403 || l.Reason == "" {
		t.Errorf("%+v", l)
	}
	if m.User != "" || m.Path != "/metrics" || m.Code != 401 || m.Reason == "" {
		t.Errorf("%+v", m)
	}
	if got[3].Stage != "started" || got[4].Stage != "answered" || got[4].Verb != "watch" || got[4].Code != 200 {
		t.Errorf("%+v %+v", got[3], got[4])
	}
	text, err := os.ReadFile(d.audit)
	if err != nil {
		t.Fatal(err)
	}
	for _, never := range []string{"aHVudGVyMg", "wrong-token", strings.TrimPrefix(d.alice, "Bearer "), "quiet-query"} {
		if strings.Contains(string(text), never) {
			t.Errorf("the audit log holds %q", never)
		}
	}
}

func TestRateOfEachUser(t *testing.T) {
	d := newDoor(t, limit.New(0.001, 3))
	for i := range 3 {
		if w := do(t, d, "GET", "/version", "", "Authorization", d.alice); w.Code != 200 {
			t.Fatalf("%d: %d", i, w.Code)
		}
	}
	w := do(t, d, "GET", "/version", "", "Authorization", d.alice)
	if s := status(t, w); s.Code != 429 || s.Reason != "TooManyRequests" || w.Header().Get("Retry-After") == "" || !strings.Contains(s.Message, "alice") {
		t.Errorf("%+v %v", s, w.Header())
	}
	if w := do(t, d, "GET", "/version", "", "Authorization", d.watcher); w.Code != 200 {
		t.Errorf("another user: %d", w.Code)
	}
	if w := do(t, d, "GET", "/healthz", ""); w.Code != 200 {
		t.Errorf("/healthz: %d", w.Code)
	}
}

func TestStrangersAreSlowedAndLockNobodyOut(t *testing.T) {
	d := newDoor(t, nil)
	codes := map[int]int{}
	for range 200 {
		w := do(t, d, "GET", "/version", "", "Authorization", "Bearer ppt_x_y")
		codes[w.Code]++
		if w.Code == 429 && w.Header().Get("Retry-After") == "" {
			t.Error("without Retry-After")
		}
	}
	if codes[401] < 40 || codes[429] < 50 || codes[401]+codes[429] != 200 {
		t.Errorf("%v", codes)
	}
	if w := do(t, d, "GET", "/version", "", "Authorization", d.alice); w.Code != 200 {
		t.Errorf("alice at the same address: %d", w.Code)
	}
	if n := len(d.entries(t)); n != codes[401]+1 {
		t.Errorf("%d lines in the audit log of %d failures and alice", n, codes[401])
	}
}

// TestStreamEndsWithTheToken follows pods with a token that is revoked meanwhile.
func TestStreamEndsWithTheToken(t *testing.T) {
	d := newDoor(t, nil)
	d.calls.streams = make(chan struct{})
	srv := httptest.NewServer(d)
	defer srv.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/api/v1/namespaces/team/pods?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", d.alice)
	resp, err := srv.Client().Do(req)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	defer func() { _ = resp.Body.Close() }()
	list, err := tokens.List(d.tokens)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range list {
		if entry.User == "alice" {
			if err := tokens.Revoke(d.tokens, entry.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	begin := time.Now()
	body, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(body), `"type":"ERROR"`) || !strings.Contains(string(body), `"code":401`) {
		t.Errorf("%s %v", body, err)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("it went on for %v", took)
	}
}

// TestOnlyWhatWasAuthorisedIsCalled calls a service past the routes.
func TestOnlyWhatWasAuthorisedIsCalled(t *testing.T) {
	conn := front.Guarded(&calls{})
	err := conn.Invoke(t.Context(), podplanev1.PodService_GetPod_FullMethodName, &podplanev1.GetRequest{Namespace: "team", Name: "a"}, &httpbody.HttpBody{})
	if !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("nobody asked: %v", err)
	}
	for _, c := range []struct {
		method  string
		request any
		ok      bool
	}{
		{podplanev1.PodService_GetPod_FullMethodName, &podplanev1.GetRequest{Namespace: "team", Name: "a"}, true},
		{podplanev1.PodService_GetPod_FullMethodName, &podplanev1.GetRequest{Namespace: "other", Name: "a"}, false},
		{podplanev1.PodService_GetPod_FullMethodName, &podplanev1.GetRequest{Namespace: "team", Name: "b"}, false},
		{podplanev1.SecretService_GetSecret_FullMethodName, &podplanev1.GetRequest{Namespace: "team", Name: "a"}, false},
	} {
		ctx := front.Authorised(t.Context(), access.Attributes{Verb: "get", Resource: "pods", Namespace: "team", Name: "a"}, "podplane.v1.PodService/GetPod")
		if err := conn.Invoke(ctx, c.method, c.request, &httpbody.HttpBody{}); (err == nil) != c.ok {
			t.Errorf("%s %v: %v", c.method, c.request, err)
		}
		s, err := conn.NewStream(ctx, &grpc.StreamDesc{}, c.method)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SendMsg(c.request); (err == nil) != c.ok {
			t.Errorf("stream %s %v: %v", c.method, c.request, err)
		}
	}
}

// FuzzDoor sends requests of any form: nobody unknown gets past the door, nobody past his namespace, nothing panics, every refusal is a Status.
func FuzzDoor(f *testing.F) {
	d := newDoor(f, nil)
	for _, path := range everything {
		f.Add("GET", path, "", "Accept", "*/*", true)
	}
	f.Add("POST", "/api/v1/namespaces/team/pods", "{}", "Content-Type", "application/yaml", true)
	f.Add("GET", "/api/v1/namespaces/other/pods?namespace=team&watch=true", "", "X-Request-Id", strings.Repeat("a", 100), true)
	f.Add("PUT", "/api/v1/namespaces/team%2f..%2Fother/pods/a%20b?namespace=other", "{}", "Authorization", "Bearer x", true)
	f.Add("GET", "/api/v1/namespaces/team/../other/pods", "", "X-HTTP-Method-Override", "DELETE", true)
	f.Add("GET", "/podplane/v1/volumes?namespace=team&namespace=other&name=%00", "", "Origin", "http://evil.example", false)
	f.Add("GET", "/podplane/v1/lifecycle?namespace=team&watch=maybe", "", "Traceparent", "00-zz-01", true)
	f.Fuzz(func(t *testing.T, method, path, body, header, value string, known bool) {
		u, err := url.ParseRequestURI(path)
		if err != nil || u.Host != "" || !token(method) || !token(header) || strings.ContainsAny(value, "\r\n\x00") {
			return // net/http refuses these before any handler
		}
		r := httptest.NewRequestWithContext(t.Context(), "GET", "http://gateway.example/", strings.NewReader(body))
		r.Method, r.URL, r.RequestURI = method, u, path
		r.Header.Set(header, value)
		if known {
			r.Header.Set("Authorization", d.alice)
		}
		before := d.calls.n.Load()
		w := httptest.NewRecorder()
		d.ServeHTTP(w, r)
		if foreign := d.calls.foreign.Load(); foreign != nil {
			t.Fatalf("%s %s called %s", method, path, *foreign)
		}
		open := method == http.MethodGet && u.Path == "/healthz"
		if !known && !open && (w.Code < 400 || d.calls.n.Load() != before) {
			t.Fatalf("%s %s: %d without a token", method, path, w.Code)
		}
		if w.Code >= 500 && w.Code != http.StatusNotImplemented {
			t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
		if w.Code >= 400 && method != http.MethodHead {
			status(t, w)
		}
	})
}

// token says whether a text may be a method or the name of a header.
func token(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`()<>@,;:\"/[]?={}`, r) })
}
