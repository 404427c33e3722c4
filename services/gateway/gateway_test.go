package gateway_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/api/httpbody"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pki"
	"github.com/podplane/podplane/internal/tokens"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/gateway"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"))
}

// syncd answers one pod.
type syncd struct {
	podplanev1.UnimplementedPodServiceServer
}

func (syncd) GetPod(_ context.Context, r *podplanev1.GetRequest) (*httpbody.HttpBody, error) {
	if r.GetName() != "a" {
		return nil, fault.For(fault.NotFound, fault.Object{Resource: "pods", Name: r.GetName()}, "")
	}
	return &httpbody.HttpBody{ContentType: "application/json", Data: []byte(`{"kind":"Pod"}`)}, nil
}

// run runs a service until what it returns is called.
func run[C any, P interface {
	*C
	daemon.Configuration
}](t *testing.T, s daemon.Service[C], cfg C,
) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	serving, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- daemon.Run[C, P](ctx, s, cfg, daemon.Options{
			Log: slog.New(slog.DiscardHandler), Addresses: func(string, string) { close(serving) },
		})
	}()
	select {
	case <-serving:
	case err := <-done:
		t.Fatalf("%s ended: %v", s.Name, err)
	}
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
	}
}

func fakeSyncd(url string) (daemon.Service[daemon.Config], daemon.Config) {
	cfg := daemon.DefaultConfig()
	cfg.NATSURL, cfg.Node = url, "n1"
	return daemon.Service[daemon.Config]{
		Name: bus.ServiceSyncd, Defaults: daemon.DefaultConfig,
		Run: func(ctx context.Context, _ daemon.Config, deps daemon.Deps) error {
			podplanev1.RegisterPodServiceServer(deps.GRPC, syncd{})
			deps.Serve()
			<-ctx.Done()
			return nil
		},
	}, cfg
}

func freeAddress(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lis.Close() }()
	return lis.Addr().String()
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// TestServiceIsFoundLostAndFoundAgain goes through everything: HTTP, the resolver on a real bus, gRPC, and back.
func TestServiceIsFoundLostAndFoundAgain(t *testing.T) {
	nats, err := embedded.Start(t.Context(), embedded.Options{InMemory: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := nats.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	cfg := gateway.DefaultConfig()
	cfg.NATSURL, cfg.Node, cfg.Listen = nats.ClientURL(), "n1", freeAddress(t)
	defer run(t, gateway.Service(), cfg)()
	service, common := fakeSyncd(nats.ClientURL())
	stop := run(t, service, common)
	base := "http://" + cfg.Listen
	if code, body := get(t, base+"/api/v1/namespaces/default/pods/a"); code != 200 || body != `{"kind":"Pod"}` {
		t.Fatalf("%d %s", code, body)
	}
	if code, body := get(t, base+"/api/v1/namespaces/default/pods/b"); code != 404 || !strings.Contains(body, `pods \"b\" not found`) {
		t.Errorf("%d %s", code, body)
	}
	var list struct {
		Services []struct{ Service, GrpcAddress, LastSeen string }
	}
	code, body := get(t, base+"/podplane/v1/services")
	if err := json.Unmarshal([]byte(body), &list); code != 200 || err != nil || len(list.Services) != 2 || list.Services[1].Service != "syncd" || list.Services[1].GrpcAddress == "" || list.Services[1].LastSeen == "" {
		t.Errorf("%d %s %v", code, body, err)
	}
	stop()
	again := make(chan func())
	go func() { again <- run(t, service, common) }()
	begin := time.Now()
	if code, body := get(t, base+"/api/v1/namespaces/default/pods/a"); code != 200 {
		t.Errorf("while syncd restarts: %d %s after %v", code, body, time.Since(begin))
	}
	(<-again)()
	for _, path := range []string{"/healthz", "/metrics", "/docs"} {
		if code, body := get(t, base+path); code != 200 {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}

// secured is a gateway with TLS, tokens and client certificates.
type secured struct {
	dir, base, token string
	roots            *x509.CertPool
}

func newSecured(t *testing.T) *secured {
	t.Helper()
	nats, err := embedded.Start(t.Context(), embedded.Options{InMemory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nats.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	s := &secured{dir: t.TempDir(), roots: x509.NewCertPool()}
	if _, err := pki.Ensure(s.dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := pki.NewClient(s.dir, "carol", []string{"ops"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	cfg := gateway.DefaultConfig()
	cfg.NATSURL, cfg.Node, cfg.Root, cfg.Listen = nats.ClientURL(), "n1", s.dir, freeAddress(t)
	cfg.TLSCert, cfg.TLSKey, cfg.ClientCA = pki.CertFile(s.dir, pki.HTTPS), pki.KeyFile(s.dir, pki.HTTPS), pki.CertFile(s.dir, pki.ClientCA)
	cfg.Tokens, cfg.Bindings = filepath.Join(s.dir, "tokens.yaml"), filepath.Join(s.dir, "bindings.yaml")
	if s.token, _, err = tokens.Create(cfg.Tokens, "alice", nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cfg.Bindings, []byte("bindings: [{role: view, users: [alice], groups: [ops], namespaces: [default]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(pki.CertFile(s.dir, pki.CA))
	if err != nil || !s.roots.AppendCertsFromPEM(ca) {
		t.Fatal(err)
	}
	t.Cleanup(run(t, gateway.Service(), cfg))
	service, common := fakeSyncd(nats.ClientURL())
	t.Cleanup(run(t, service, common))
	s.base = "https://" + cfg.Listen
	return s
}

func (s *secured) client(t *testing.T, c *tls.Config) *http.Client {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func (s *secured) get(t *testing.T, c *http.Client, path, token string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// TestTLSAndUsers goes through the door with everything that may be shown, and without.
func TestTLSAndUsers(t *testing.T) {
	s := newSecured(t)
	const pod = "/api/v1/namespaces/default/pods/a"
	plain := s.client(t, &tls.Config{RootCAs: s.roots})
	for path, code := range map[string]int{"/healthz": 200, "/readyz": 401, "/metrics": 401, "/openapi.json": 401, "/docs": 401, pod: 401} {
		if got, body := s.get(t, plain, path, ""); got != code {
			t.Errorf("unknown at %s: %d %s", path, got, body)
		}
	}
	if code, body := s.get(t, plain, pod, s.token); code != 200 || body != `{"kind":"Pod"}` {
		t.Errorf("with a token: %d %s", code, body)
	}
	if code, body := s.get(t, plain, "/api/v1/nodes", s.token); code != 403 || !strings.Contains(body, `user \"alice\" cannot list`) {
		t.Errorf("beyond the role: %d %s", code, body)
	}
	carol, err := tls.LoadX509KeyPair(pki.CertFile(s.dir, "carol"), pki.KeyFile(s.dir, "carol"))
	if err != nil {
		t.Fatal(err)
	}
	shown := s.client(t, &tls.Config{RootCAs: s.roots, Certificates: []tls.Certificate{carol}})
	if code, body := s.get(t, shown, pod, ""); code != 200 {
		t.Errorf("with a certificate: %d %s", code, body)
	}
	if _, err := pki.Ensure(s.dir, pki.Options{Processes: []string{"syncd"}}); err != nil {
		t.Fatal(err)
	}
	process, err := tls.LoadX509KeyPair(pki.CertFile(s.dir, "syncd"), pki.KeyFile(s.dir, "syncd"))
	if err != nil {
		t.Fatal(err)
	}
	if code, body := s.get(t, s.client(t, &tls.Config{RootCAs: s.roots, Certificates: []tls.Certificate{process}}), pod, ""); code != 401 {
		t.Errorf("with a service's certificate: %d %s", code, body)
	}
	if code, _ := get(t, "http"+strings.TrimPrefix(s.base, "https")+"/healthz"); code != 400 {
		t.Errorf("without TLS: %d", code)
	}
	old := s.client(t, &tls.Config{RootCAs: s.roots, MaxVersion: tls.VersionTLS11})
	if resp, err := old.Get(s.base + "/healthz"); err == nil {
		_ = resp.Body.Close()
		t.Error("TLS 1.1 is spoken")
	}
}

// TestCertificateIsRenewedWithoutRestart finds the new certificate on a new connection.
func TestCertificateIsRenewedWithoutRestart(t *testing.T) {
	s := newSecured(t)
	serial := func() string {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(s.base, "https://"), &tls.Config{RootCAs: s.roots})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := serial()
	if made, err := pki.Ensure(s.dir, pki.Options{Renew: true}); err != nil || len(made) == 0 {
		t.Fatal(made, err)
	}
	for deadline := time.Now().Add(time.Second); serial() == before; {
		if time.Now().After(deadline) {
			t.Fatal("the old certificate is shown after a second")
		}
	}
}

// TestPeersThatMayNotConnect listens for one network only; loopback is always in it.
func TestPeersThatMayNotConnect(t *testing.T) {
	nats, err := embedded.Start(t.Context(), embedded.Options{InMemory: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nats.Shutdown(context.WithoutCancel(t.Context())) }()
	_, port, err := net.SplitHostPort(freeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg := gateway.DefaultConfig()
	cfg.NATSURL, cfg.Node, cfg.Listen, cfg.AcceptFrom = nats.ClientURL(), "n1", "0.0.0.0:"+port, []string{"198.51.100.7"}
	defer run(t, gateway.Service(), cfg)()
	if code, _ := get(t, "http://127.0.0.1:"+port+"/version"); code != 200 {
		t.Errorf("loopback: %d", code)
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, a := range addresses {
		ip, ok := a.(*net.IPNet)
		if !ok || ip.IP.IsLoopback() || ip.IP.To4() == nil {
			continue
		}
		tried++
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(ip.IP.String(), port), time.Second)
		if err != nil {
			continue
		}
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if answer, _ := io.ReadAll(conn); len(answer) > 0 {
			t.Errorf("from %s: %q", ip.IP, answer)
		}
		_ = conn.Close()
	}
	if tried == 0 {
		t.Log("this host has no other address; TestPeers covers the decision")
	}
}
