package rpc_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/rpc"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// probes is a service whose behaviour each test chooses.
type probes struct {
	podplanev1.UnimplementedProbeServiceServer
	podplanev1.UnimplementedLifecycleServiceServer
	list   func(context.Context, *podplanev1.ListProbesRequest) (*podplanev1.ListProbesResponse, error)
	follow func(grpc.ServerStreamingServer[podplanev1.ListLifecycleResponse]) error
}

func (p *probes) ListProbes(ctx context.Context, r *podplanev1.ListProbesRequest) (*podplanev1.ListProbesResponse, error) {
	return p.list(ctx, r)
}

func (p *probes) ListLifecycle(_ *podplanev1.ListLifecycleRequest, s grpc.ServerStreamingServer[podplanev1.ListLifecycleResponse]) error {
	return p.follow(s)
}

func answers(context.Context, *podplanev1.ListProbesRequest) (*podplanev1.ListProbesResponse, error) {
	return &podplanev1.ListProbesResponse{}, nil
}

// serve runs a server and returns its address and what stops it.
func serve(t *testing.T, p *probes) (string, func()) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return lis.Addr().String(), serveOn(t, lis, p)
}

func serveOn(t *testing.T, lis net.Listener, p *probes) func() {
	t.Helper()
	s := rpc.NewServer(slog.New(slog.DiscardHandler))
	podplanev1.RegisterProbeServiceServer(s, p)
	podplanev1.RegisterLifecycleServiceServer(s, p)
	s.Identify("prober", "n1")
	s.SetReady(true)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, lis, 2*time.Second) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// directory is the bus' registrations.
type directory struct {
	mu      sync.Mutex
	records []*podplanev1.ServiceRecord
	notify  []func([]*podplanev1.ServiceRecord)
}

func (d *directory) set(records ...*podplanev1.ServiceRecord) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.records = records
	for _, f := range d.notify {
		f(records)
	}
}

func (d *directory) WatchServices(ctx context.Context, _ string, f func([]*podplanev1.ServiceRecord)) error {
	d.mu.Lock()
	d.notify = append(d.notify, f)
	f(d.records)
	d.mu.Unlock()
	<-ctx.Done()
	return nil
}

func replica(address, node string, age time.Duration) *podplanev1.ServiceRecord {
	return &podplanev1.ServiceRecord{
		Service: "prober", Node: node, Instance: address, GrpcAddress: address,
		StartedAt: timestamppb.New(time.Unix(1e9, 0).Add(-age)),
	}
}

func dial(t *testing.T, d *directory, wait time.Duration) *grpc.ClientConn {
	t.Helper()
	cc, err := rpc.DialWith(t.Context(), d, "prober", "n1", rpc.Options{WaitForReady: wait})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	return cc
}

func list(t *testing.T, cc *grpc.ClientConn) error {
	t.Helper()
	_, err := podplanev1.NewProbeServiceClient(cc).ListProbes(t.Context(), &podplanev1.ListProbesRequest{})
	return err
}

func deadAddress(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lis.Close() }()
	return lis.Addr().String()
}

func TestStaleRegistrationsDoNotDelayCalls(t *testing.T) {
	alive, _ := serve(t, &probes{list: answers})
	d := &directory{records: []*podplanev1.ServiceRecord{replica(deadAddress(t), "n1", time.Minute), replica(alive, "n1", time.Hour)}}
	cc := dial(t, d, 0)
	begin := time.Now()
	for range 20 {
		if err := list(t, cc); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("20 calls took %v", took)
	}
}

func TestOtherNodesAreNotCalled(t *testing.T) {
	alive, _ := serve(t, &probes{list: answers})
	cc := dial(t, &directory{records: []*podplanev1.ServiceRecord{replica(alive, "n2", 0)}}, 50*time.Millisecond)
	if err := list(t, cc); !fault.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
}

func TestNobodyThereSaysWhoAndWhenToComeBack(t *testing.T) {
	cc := dial(t, &directory{}, 50*time.Millisecond)
	for _, err := range []error{list(t, cc), follow(t, cc)} {
		if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "prober is not reachable") || fault.RetryAfter(err) <= 0 {
			t.Errorf("got %v", err)
		}
	}
}

func follow(t *testing.T, cc *grpc.ClientConn) error {
	t.Helper()
	s, err := podplanev1.NewLifecycleServiceClient(cc).ListLifecycle(t.Context(), &podplanev1.ListLifecycleRequest{Follow: true})
	if err != nil {
		return err
	}
	_, err = s.Recv()
	return err
}

func TestCallsDuringARestartSucceed(t *testing.T) {
	d := &directory{}
	first, stop := serve(t, &probes{list: answers})
	d.set(replica(first, "n1", time.Minute))
	cc := dial(t, d, 0)
	if err := list(t, cc); err != nil {
		t.Fatal(err)
	}
	stop()
	calls := make(chan error, 8)
	for range cap(calls) {
		go func() { calls <- list(t, cc) }()
	}
	second, _ := serve(t, &probes{list: answers})
	d.set(replica(first, "n1", time.Minute), replica(second, "n1", 0))
	for range cap(calls) {
		if err := <-calls; err != nil {
			t.Error(err)
		}
	}
}

func TestFaultsSurviveTheWire(t *testing.T) {
	bad := fault.Invalidate(fault.Object{Resource: "Pod", Name: "a"}, field.ErrorList{field.Required(field.NewPath("spec"), "")})
	p := &probes{
		list: func(context.Context, *podplanev1.ListProbesRequest) (*podplanev1.ListProbesResponse, error) {
			return nil, bad
		},
		follow: func(grpc.ServerStreamingServer[podplanev1.ListLifecycleResponse]) error { return bad },
	}
	address, _ := serve(t, p)
	cc := dial(t, &directory{records: []*podplanev1.ServiceRecord{replica(address, "n1", 0)}}, 0)
	for _, err := range []error{list(t, cc), follow(t, cc)} {
		if !fault.Is(err, fault.Invalid) || len(fault.Fields(err)) != 1 || err.Error() != bad.Error() {
			t.Errorf("got %v", err)
		}
	}
}

func TestPanicsAreInternalErrors(t *testing.T) {
	p := &probes{
		list: func(context.Context, *podplanev1.ListProbesRequest) (*podplanev1.ListProbesResponse, error) {
			panic("secret")
		},
		follow: func(grpc.ServerStreamingServer[podplanev1.ListLifecycleResponse]) error { panic("secret") },
	}
	address, _ := serve(t, p)
	cc := dial(t, &directory{records: []*podplanev1.ServiceRecord{replica(address, "n1", 0)}}, 0)
	for _, err := range []error{list(t, cc), follow(t, cc)} {
		if !fault.Is(err, fault.Internal) || strings.Contains(err.Error(), "secret") {
			t.Errorf("got %v", err)
		}
	}
}

func TestStoppingEndsStreams(t *testing.T) {
	following := make(chan struct{})
	p := &probes{follow: func(s grpc.ServerStreamingServer[podplanev1.ListLifecycleResponse]) error {
		close(following)
		<-s.Context().Done()
		return s.Context().Err()
	}}
	address, stop := serve(t, p)
	cc := dial(t, &directory{records: []*podplanev1.ServiceRecord{replica(address, "n1", 0)}}, 0)
	ended := make(chan error, 1)
	go func() { ended <- follow(t, cc) }()
	<-following
	begin := time.Now()
	stop()
	if took := time.Since(begin); took > time.Second {
		t.Errorf("stopping took %v", took)
	}
	if err := <-ended; !fault.Is(err, fault.Unavailable) {
		t.Errorf("the stream ended with %v", err)
	}
}

func TestRequestsAreBounded(t *testing.T) {
	address, _ := serve(t, &probes{list: answers})
	cc, err := rpc.DialAddress("prober", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	client := podplanev1.NewProbeServiceClient(cc)
	if _, err := client.ListProbes(t.Context(), &podplanev1.ListProbesRequest{Uid: strings.Repeat("x", 3<<20)}); err != nil {
		t.Errorf("3 MiB: %v", err)
	}
	if _, err := client.ListProbes(t.Context(), &podplanev1.ListProbesRequest{Uid: strings.Repeat("x", 5<<20)}); !fault.Is(err, fault.ResourceExhausted) {
		t.Errorf("5 MiB: %v", err)
	}
}

func TestOnlyReadingIsRepeated(t *testing.T) {
	var mu sync.Mutex
	calls := 0
	p := &probes{list: func(context.Context, *podplanev1.ListProbesRequest) (*podplanev1.ListProbesResponse, error) {
		mu.Lock()
		defer mu.Unlock()
		if calls++; calls < 3 {
			return nil, fault.New(fault.Unavailable, "not now")
		}
		return &podplanev1.ListProbesResponse{}, nil
	}}
	address, _ := serve(t, p)
	cc := dial(t, &directory{records: []*podplanev1.ServiceRecord{replica(address, "n1", 0)}}, 0)
	if err := list(t, cc); err != nil || calls != 3 {
		t.Errorf("%d calls, %v", calls, err)
	}
}

type pods struct {
	podplanev1.UnimplementedPodServiceServer
	create func(context.Context) error
}

func (p *pods) CreatePod(ctx context.Context, _ *podplanev1.CreateRequest) (*httpbody.HttpBody, error) {
	return nil, p.create(ctx)
}

// TestWritingIsNotRepeated cuts a connection under a call: only the caller can find out whether the call happened.
func TestWritingIsNotRepeated(t *testing.T) {
	var calls atomic.Int32
	called, release := make(chan struct{}, 8), make(chan struct{})
	s := rpc.NewServer(slog.New(slog.DiscardHandler))
	podplanev1.RegisterPodServiceServer(s, &pods{create: func(context.Context) error {
		calls.Add(1)
		called <- struct{}{}
		<-release
		return nil
	}})
	s.Identify("prober", "n1")
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cut, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(cut, lis, time.Millisecond) }()
	cc := dial(t, &directory{records: []*podplanev1.ServiceRecord{replica(lis.Addr().String(), "n1", 0)}}, 0)
	answered := make(chan error, 1)
	go func() {
		_, err := podplanev1.NewPodServiceClient(cc).CreatePod(t.Context(), &podplanev1.CreateRequest{})
		answered <- err
	}()
	<-called
	stop()
	if err := <-answered; !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "prober is not reachable") || calls.Load() != 1 {
		t.Errorf("%d calls, %v", calls.Load(), err)
	}
	close(release)
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestHealth(t *testing.T) {
	address, _ := serve(t, &probes{})
	cc, err := rpc.DialAddress("prober", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	got, err := grpc_health_v1.NewHealthClient(cc).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || got.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("%v %v", got, err)
	}
}

// TestReflection asks a server for its services, as grpcurl does.
func TestReflection(t *testing.T) {
	address, _ := serve(t, &probes{list: answers})
	cc, err := rpc.DialAddress("prober", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cc.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s, err := reflectionpb.NewServerReflectionClient(cc).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	answer, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, service := range answer.GetListServicesResponse().GetService() {
		names = append(names, service.GetName())
	}
	for _, want := range []string{"podplane.v1.ProbeService", "grpc.health.v1.Health"} {
		if !slices.Contains(names, want) {
			t.Errorf("services %v lack %s", names, want)
		}
	}
}

func TestCallerWhoGoesAwayIsCanceled(t *testing.T) {
	cc := dial(t, &directory{}, time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := podplanev1.NewProbeServiceClient(cc).ListProbes(ctx, &podplanev1.ListProbesRequest{})
	if !fault.Is(err, fault.Canceled) || errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
}

// TestStrangerIsNotCalled has another service at the address of a replica that died: its port was free.
func TestStrangerIsNotCalled(t *testing.T) {
	for _, as := range [][2]string{{"volumed", "n1"}, {"prober", "n2"}} {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := rpc.NewServer(slog.New(slog.DiscardHandler))
		s.Identify(as[0], as[1])
		podplanev1.RegisterProbeServiceServer(s, &probes{list: func(context.Context, *podplanev1.ListProbesRequest) (*podplanev1.ListProbesResponse, error) {
			t.Errorf("%v was called for prober on n1", as)
			return &podplanev1.ListProbesResponse{}, nil
		}})
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx, lis, time.Second) }()
		d := &directory{records: []*podplanev1.ServiceRecord{replica(lis.Addr().String(), "n1", 0)}}
		cc, err := rpc.DialWith(t.Context(), d, "prober", "n1", rpc.Options{WaitForReady: 200 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := podplanev1.NewProbeServiceClient(cc).ListProbes(t.Context(), &podplanev1.ListProbesRequest{}); !fault.Is(err, fault.Unavailable) {
			t.Errorf("%v at the address of prober on n1: %v, want kind Unavailable", as, err)
		}
		// The replica itself comes back, elsewhere.
		address, _ := serve(t, &probes{list: answers})
		d.set(replica(address, "n1", 0))
		retry, stop := context.WithTimeout(t.Context(), 10*time.Second)
		for {
			if _, err = podplanev1.NewProbeServiceClient(cc).ListProbes(retry, &podplanev1.ListProbesRequest{}); err == nil || retry.Err() != nil {
				break
			}
			select {
			case <-retry.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
		if err != nil {
			t.Errorf("the replica that came back: %v", err)
		}
		stop()
		_ = cc.Close()
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}
