package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/rpc"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/admission"
	"github.com/podplane/podplane/services/syncd/internal/api"
	"github.com/podplane/podplane/services/syncd/internal/store"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

const node = "node-1"

// system is syncd's front on a bus of its own, reached over gRPC.
type system struct {
	t       *testing.T
	bus     *bustest.Bus
	store   *store.Feed
	pods    podplanev1.PodServiceClient
	maps    podplanev1.ConfigMapServiceClient
	secrets podplanev1.SecretServiceClient
}

type noView struct{ table *watchcache.Table }

func (v noView) Table() *watchcache.Table    { return v.table }
func (v noView) Ready(context.Context) error { return nil }
func (v noView) Fields() []string            { return nil }

func start(t *testing.T, limits watchcache.Limits) *system {
	t.Helper()
	return startOn(t, bustest.NewEmpty(t), limits)
}

func startOn(t *testing.T, b *bustest.Bus, limits watchcache.Limits) *system {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	n := admission.Node{Name: node, MaxPods: 5, Labels: map[string]string{"disk": "ssd"}}
	conn := b.Connect(bus.ServiceSyncd, node)
	feed, err := store.Open(ctx, conn, store.Options{Node: node, Admit: n.Fit, Limits: limits, Patience: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	s := &system{t: t, bus: b, store: feed}
	server := rpc.NewServer(slog.New(slog.DiscardHandler))
	empty := noView{watchcache.New(watchcache.Limits{})}
	api.Register(server, api.Backends{Store: feed.Store, Node: n, Events: empty, Nodes: empty})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	go func() { ended <- feed.Run(ctx) }()
	go func() { ended <- server.Serve(ctx, lis, time.Second) }()
	server.SetReady(true)
	cc, err := rpc.DialAddress("syncd", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s.pods, s.maps, s.secrets = podplanev1.NewPodServiceClient(cc), podplanev1.NewConfigMapServiceClient(cc), podplanev1.NewSecretServiceClient(cc)
	t.Cleanup(func() {
		if err := cc.Close(); err != nil {
			t.Error(err)
		}
		cancel()
		for range 2 {
			if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	})
	return s
}

func podJSON(name string, more ...string) *httpbody.HttpBody {
	spec := `"containers":[{"name":"a","image":"example/a:1"}]`
	if len(more) > 0 {
		spec = strings.Join(more, ",")
	}
	return &httpbody.HttpBody{ContentType: "application/json", Data: []byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"` + name + `","labels":{"app":"` + name + `"}},"spec":{` + spec + `}}`)}
}

func (s *system) create(name string, more ...string) (*v1.Pod, error) {
	s.t.Helper()
	b, err := s.pods.CreatePod(s.t.Context(), &podplanev1.CreateRequest{Namespace: "default", Body: podJSON(name, more...)})
	if err != nil {
		return nil, fault.FromGRPC(err)
	}
	return decodeTo[v1.Pod](s.t, b.GetData()), nil
}

func (s *system) mustCreate(name string, more ...string) *v1.Pod {
	s.t.Helper()
	pod, err := s.create(name, more...)
	if err != nil {
		s.t.Fatal(err)
	}
	return pod
}

func (s *system) get(name string) (*v1.Pod, error) {
	s.t.Helper()
	b, err := s.pods.GetPod(s.t.Context(), &podplanev1.GetRequest{Namespace: "default", Name: name})
	if err != nil {
		return nil, fault.FromGRPC(err)
	}
	return decodeTo[v1.Pod](s.t, b.GetData()), nil
}

func (s *system) delete(req *podplanev1.DeleteRequest) (*v1.Pod, error) {
	s.t.Helper()
	req.Namespace = "default"
	b, err := s.pods.DeletePod(s.t.Context(), req)
	if err != nil {
		return nil, fault.FromGRPC(err)
	}
	return decodeTo[v1.Pod](s.t, b.GetData()), nil
}

func (s *system) replace(pod *v1.Pod) (*v1.Pod, error) {
	s.t.Helper()
	data, err := json.Marshal(pod)
	if err != nil {
		s.t.Fatal(err)
	}
	b, err := s.pods.ReplacePod(s.t.Context(), &podplanev1.ReplaceRequest{Namespace: "default", Name: pod.Name, Body: &httpbody.HttpBody{ContentType: "application/json", Data: data}})
	if err != nil {
		return nil, fault.FromGRPC(err)
	}
	return decodeTo[v1.Pod](s.t, b.GetData()), nil
}

func (s *system) list(req *podplanev1.ListRequest) (*v1.PodList, error) {
	s.t.Helper()
	stream, err := s.pods.ListPods(s.t.Context(), req)
	if err != nil {
		return nil, fault.FromGRPC(err)
	}
	var all []byte
	for {
		b, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return decodeTo[v1.PodList](s.t, all), nil
		}
		if err != nil {
			return nil, fault.FromGRPC(err)
		}
		all = append(all, b.GetData()...)
	}
}

// watching is a watch that is read event by event.
type watching struct {
	t      *testing.T
	stream grpc.ServerStreamingClient[httpbody.HttpBody]
}

func (s *system) watch(req *podplanev1.ListRequest) *watching {
	s.t.Helper()
	req.Watch = true
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	s.t.Cleanup(cancel)
	stream, err := s.pods.ListPods(ctx, req)
	if err != nil {
		s.t.Fatal(err)
	}
	return &watching{t: s.t, stream: stream}
}

// standing waits until the server has taken the watch on.
func (w *watching) standing() *watching {
	w.t.Helper()
	if _, err := w.stream.Header(); err != nil {
		w.t.Fatal(err)
	}
	return w
}

type event struct {
	Type   string
	Object json.RawMessage
}

func (w *watching) recv() (event, error) {
	b, err := w.stream.Recv()
	if err != nil {
		return event{}, fault.FromGRPC(err)
	}
	return *decodeTo[event](w.t, b.GetData()), nil
}

// expect reads one event and checks its type and, where given, its pod's name.
func (w *watching) expect(kind, name string) *v1.Pod {
	w.t.Helper()
	e, err := w.recv()
	if err != nil {
		w.t.Fatalf("waiting for %s %s: %v", kind, name, err)
	}
	pod := decodeTo[v1.Pod](w.t, e.Object)
	if e.Type != kind || pod.Name != name {
		w.t.Fatalf("got %s %s, want %s %s (%s)", e.Type, pod.Name, kind, name, e.Object)
	}
	return pod
}

func decodeTo[T any](t *testing.T, data []byte) *T {
	t.Helper()
	v := new(T)
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return v
}
