package daemon_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/internal/rpc"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

func startBus(t *testing.T, dir string, port int) *embedded.Server {
	t.Helper()
	o := embedded.Options{InMemory: dir == "", StoreDir: dir, Port: port}
	s, err := embedded.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopBus(t, s) })
	return s
}

func stopBus(t *testing.T, s *embedded.Server) {
	t.Helper()
	if err := s.Shutdown(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

type probes struct {
	podplanev1.UnimplementedProbeServiceServer
}

func (probes) ListProbes(context.Context, *podplanev1.ListProbesRequest) (*podplanev1.ListProbesResponse, error) {
	return &podplanev1.ListProbesResponse{}, nil
}

type running struct {
	grpc, http string
	deps       daemon.Deps
	cancel     context.CancelFunc
	done       chan error
}

// start runs a service that serves probes, on a bus at url.
func start(t *testing.T, url string, more func(daemon.Deps)) *running {
	t.Helper()
	r := &running{done: make(chan error, 1)}
	ready := make(chan struct{})
	s := service(func(ctx context.Context, _ config, deps daemon.Deps) error {
		r.deps = deps
		podplanev1.RegisterProbeServiceServer(deps.GRPC, probes{})
		if more != nil {
			more(deps)
		}
		deps.Serve()
		<-ctx.Done()
		return nil
	})
	s.Name = bus.ServiceProber
	cfg := s.Defaults()
	cfg.NATSURL, cfg.Node = url, "n1"
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r.cancel = cancel
	go func() {
		r.done <- daemon.Run(ctx, s, cfg, daemon.Options{Log: quiet, Addresses: func(g, h string) {
			r.grpc, r.http = g, h
			close(ready)
		}})
	}()
	select {
	case <-ready:
	case err := <-r.done:
		t.Fatalf("ended: %v", err)
	}
	return r
}

func (r *running) stop(t *testing.T) error {
	t.Helper()
	r.cancel()
	return <-r.done
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

// eventually asks until ok, at most ten seconds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		<-tick.C
	}
}

func TestServiceIsRegisteredServedAndTakenDown(t *testing.T) {
	nats := startBus(t, "", embedded.RandomPort)
	r := start(t, nats.ClientURL(), nil)
	eventually(t, "ready", func() bool { code, _ := get(t, "http://"+r.http+"/readyz"); return code == 200 })
	if code, body := get(t, "http://"+r.http+"/metrics"); code != 200 || !strings.Contains(body, `podplane_build_info{node="n1",service="prober"`) {
		t.Errorf("metrics: %d %s", code, body)
	}
	if _, body := get(t, "http://"+r.http+"/metrics"); !strings.Contains(body, `podplane_events_total{result="dropped"} 0`) {
		t.Errorf("no count of events that were dropped in %s", body)
	}
	if code, _ := get(t, "http://"+r.http+"/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("pprof is on by default: %d", code)
	}
	peer, err := bus.Connect(t.Context(), bus.Config{URL: nats.ClientURL(), Node: "n1", Service: bus.ServiceGateway, Instance: "peer"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = peer.Close(context.WithoutCancel(t.Context())) }()
	cc, err := rpc.Dial(t.Context(), peer, bus.ServiceProber, "n1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cc.Close() }()
	if _, err := podplanev1.NewProbeServiceClient(cc).ListProbes(t.Context(), &podplanev1.ListProbesRequest{}); err != nil {
		t.Errorf("call by name: %v", err)
	}
	eventually(t, "healthy over grpc", func() bool { return healthy(t, cc) })
	if err := r.stop(t); err != nil {
		t.Errorf("graceful stop: %v", err)
	}
	services, err := bus.Open(t.Context(), peer, bus.Services)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := services.List(t.Context(), ">"); err != nil || len(left) != 0 {
		t.Errorf("registrations left: %v %v", left, err)
	}
}

func healthy(t *testing.T, cc *grpc.ClientConn) bool {
	t.Helper()
	resp, err := grpc_health_v1.NewHealthClient(cc).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	return err == nil && resp.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING
}

func TestBusThatIsAwayIsWaitedForAndNamed(t *testing.T) {
	first := startBus(t, t.TempDir(), embedded.RandomPort)
	port := first.Port()
	r := start(t, first.ClientURL(), nil)
	ready := func() bool { code, _ := get(t, "http://"+r.http+"/readyz"); return code == 200 }
	eventually(t, "ready", ready)
	stopBus(t, first)
	eventually(t, "not ready without the bus", func() bool {
		code, body := get(t, "http://"+r.http+"/readyz")
		return code == 503 && strings.Contains(body, "[-]bus: ")
	})
	if code, _ := get(t, "http://"+r.http+"/healthz"); code != 200 {
		t.Errorf("a service without its bus is alive; got %d", code)
	}
	startBus(t, t.TempDir(), port)
	eventually(t, "ready again", ready)
	if err := r.stop(t); err != nil {
		t.Error(err)
	}
}

func TestStopBeforeTheBusWasEverThere(t *testing.T) {
	s := service(func(context.Context, config, daemon.Deps) error {
		t.Error("the service ran without a bus")
		return nil
	})
	cfg := s.Defaults()
	cfg.NATSURL = "nats://127.0.0.1:1"
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := daemon.Run(ctx, s, cfg, daemon.Options{Log: quiet}); err != nil {
		t.Errorf("a stop that was asked for is no error: %v", err)
	}
}

func TestComponentThatEndsEndsTheService(t *testing.T) {
	nats := startBus(t, "", embedded.RandomPort)
	boom := errors.New("boom")
	fail := make(chan struct{})
	r := start(t, nats.ClientURL(), func(deps daemon.Deps) {
		deps.AddCheck("never", func(context.Context) error { return boom })
		deps.Go("worker", func(context.Context) error {
			<-fail
			return boom
		})
	})
	if code, body := get(t, "http://"+r.http+"/readyz?verbose"); code != 503 || !strings.Contains(body, "[-]never: boom") || !strings.Contains(body, "[+]serving ok") {
		t.Errorf("%d %s", code, body)
	}
	close(fail)
	if err := <-r.done; !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
	r.cancel()
}
