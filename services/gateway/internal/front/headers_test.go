package front_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// headers are those that anything between the wire and a service looks at, ours, the libraries' and a proxy's.
var headers = []string{
	"Accept", "Accept-Encoding", "Authorization", "Baggage", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Cookie", "Expect", "Forwarded",
	"Grpc-Metadata-Authorization", "Grpc-Metadata-Traceparent", "Grpc-Timeout", "Host", "If-Match", "If-None-Match", "Impersonate-Group", "Impersonate-User",
	"Origin", "Range", "Referer", "Sec-Fetch-Mode", "Sec-Fetch-Site", "Te", "Traceparent", "Tracestate", "Trailer", "Transfer-Encoding", "Upgrade", "User-Agent",
	"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Prefix", "X-Forwarded-Proto", "X-Http-Method-Override", "X-Original-Url", "X-Real-Ip", "X-Remote-Group",
	"X-Remote-User", "X-Request-Id", "X-Rewrite-Url",
}

// values are what clients should not send, or not there.
var values = []string{
	"", " ", "*", "*/*", ",;=", "alice", "Bearer", "Bearer ", "Basic YWxpY2U6eA==", "Bearer ppt_x_y", "application/json;charset=\"", "multipart/form-data; boundary=x",
	"http://127.0.0.1", "null", "127.0.0.1", "/healthz", "/api/v1/namespaces/other/pods", "DELETE", "GET", "0", "-1", "99999999999999999999", "1n", "chunked", "100-continue",
	"websocket", "bytes=0-0,-1", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-00000000000000000000000000000000-0000000000000000-ff", "cross-site", "navigate",
	"\xff\xfe", "\u202e\u0000"[:3], strings.Repeat("a", 8<<10), strings.Repeat(",", 4<<10), strings.Repeat("é", 2<<10),
}

// server serves a door over TCP, as gateway does.
func server(t testing.TB, d *door) string {
	t.Helper()
	s := httptest.NewUnstartedServer(d)
	s.Config.MaxHeaderBytes, s.Config.ReadHeaderTimeout = 64<<10, 5*time.Second
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// send writes bytes as a request and gives the answer; nil when the server only closed.
func send(t testing.TB, address string, raw []byte) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatalf("the door does not take connections any more: %v", err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = conn.Write(raw) // the server may have had enough before the end
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return nil
	}
	if resp.StatusCode == http.StatusContinue {
		if resp, err = http.ReadResponse(in, nil); err != nil {
			return nil
		}
	}
	_ = resp.Body.Close()
	return resp
}

// judge says what no request may bring about.
func (d *door) judge(t testing.TB, what string, resp *http.Response, known, open bool, before int64) {
	t.Helper()
	if foreign := d.calls.foreign.Load(); foreign != nil {
		t.Fatalf("%s called %s", what, *foreign)
	}
	if !known && d.calls.n.Load() != before {
		t.Fatalf("%s reached a service without a token", what)
	}
	if resp == nil {
		return
	}
	if !known && !open && resp.StatusCode < 400 {
		t.Fatalf("%s: %d without a token", what, resp.StatusCode)
	}
	if resp.StatusCode >= 500 && resp.StatusCode != http.StatusNotImplemented && resp.StatusCode != http.StatusHTTPVersionNotSupported {
		t.Fatalf("%s: %d", what, resp.StatusCode)
	}
}

// TestEveryHeaderOnEveryPath sends every header with every odd value to every path, over TCP, with a token and without: nobody gets past the door or
// his namespace by a header, and nothing breaks.
func TestEveryHeaderOnEveryPath(t *testing.T) {
	d := newDoor(t, nil)
	address := server(t, d)
	n := 0
	for i, path := range everything {
		for j, header := range headers {
			// Each header meets each value on some path, and each path meets each header.
			for k := (i + j) % 4; k < len(values); k += 4 {
				known := n%2 == 0
				n++
				var raw bytes.Buffer
				fmt.Fprintf(&raw, "GET %s HTTP/1.1\r\nHost: gateway.example\r\nConnection: close\r\n", path)
				if known && header != "Authorization" {
					fmt.Fprintf(&raw, "Authorization: %s\r\n", d.alice)
				}
				fmt.Fprintf(&raw, "%s: %s\r\n\r\n", header, values[k])
				before := d.calls.n.Load()
				resp := send(t, address, raw.Bytes())
				d.judge(t, fmt.Sprintf("GET %s with %s: %.40q (token %v)", path, header, values[k], known), resp, known && header != "Authorization", path == "/healthz", before)
			}
		}
	}
	t.Logf("%d requests", n)
	if w := do(t, d, http.MethodGet, "/healthz", ""); w.Code != http.StatusOK {
		t.Errorf("/healthz: %d", w.Code)
	}
}

// FuzzWire sends any bytes after any request line: what the library lets through meets the door as on the wire, several headers at once, repeated,
// folded, or a second request smuggled behind the first.
func FuzzWire(f *testing.F) {
	d := newDoor(f, nil)
	address := server(f, d)
	for i, h := range headers {
		f.Add("GET", everything[i%len(everything)], h+": "+values[i%len(values)]+"\r\n", "", i%2 == 0)
	}
	f.Add("POST", "/api/v1/namespaces/team/pods", "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", "0\r\n\r\nGET /api/v1/namespaces/other/pods HTTP/1.1\r\nHost: x\r\n\r\n", true)
	f.Add("PUT", "/api/v1/namespaces/team/pods/a", "Authorization: Bearer x\r\nAuthorization: Bearer y\r\nContent-Length: 2\r\n", "{}", true)
	f.Add("GET", "http://other.example/api/v1/namespaces/other/pods", "Host: one\r\n X-Folded: two\r\n", "", false)
	f.Add("DELETE", "/api/v1/namespaces/team/pods?namespace=other&x=%zz", "Content-Type: application/json\r\nContent-Length: 1\r\n", "{", true)
	f.Fuzz(func(t *testing.T, method, target, head, body string, known bool) {
		if len(method)+len(target)+len(head)+len(body) > 32<<10 {
			return // the library's own bound
		}
		if strings.Contains(head+body+target+method, d.alice) {
			return
		}
		raw := method + " " + target + " HTTP/1.1\r\nHost: gateway.example\r\nConnection: close\r\n"
		if known {
			raw += "Authorization: " + d.alice + "\r\n"
		}
		before := d.calls.n.Load()
		resp := send(t, address, []byte(raw+head+"\r\n"+body))
		// Who is open is told by the path alone, which the library may read in another way than we do: nothing that is open calls a service.
		d.judge(t, fmt.Sprintf("%q", raw+head), resp, known, strings.Contains(target, "healthz") || strings.Contains(method+head+body, "healthz"), before)
	})
}
