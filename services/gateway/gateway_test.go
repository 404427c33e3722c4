package gateway_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/api/httpbody"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/internal/fault"
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

func TestAddressesForOthersAreRefused(t *testing.T) {
	cfg := gateway.DefaultConfig()
	cfg.Listen = "0.0.0.0:8080"
	if list := cfg.Validate(nil); len(list) != 1 || list[0].Field != "listen" {
		t.Errorf("got %v", list)
	}
	cfg.InsecureListen = true
	if list := cfg.Validate(nil); len(list) != 0 {
		t.Errorf("got %v", list)
	}
}
