package route_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/rpc"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/gateway/internal/route"
)

// syncd is one node's: it has the pods of its node and knows where the others are.
type syncd struct {
	podplanev1.UnimplementedPodServiceServer
	node  string
	where map[string]string // pods to nodes
	calls chan string
}

func (s *syncd) note(ctx context.Context, what string) {
	seen, carried := rpc.Carried(ctx)
	if carried {
		what += " carried " + seen
	}
	s.calls <- s.node + " " + what
}

func pod(name, version string) *httpbody.HttpBody {
	return &httpbody.HttpBody{Data: []byte(`{"metadata":{"namespace":"n","name":"` + name + `","uid":"u-` + name + `","resourceVersion":"` + version + `"}}`)}
}

func (s *syncd) GetPod(ctx context.Context, r *podplanev1.GetRequest) (*httpbody.HttpBody, error) {
	if rpc.After(ctx) == 7 {
		s.note(ctx, "get after 7")
	}
	if r.GetName() == "gone" {
		return nil, fault.New(fault.NotFound, "gone")
	}
	return pod(r.GetName(), "of "+s.node), nil
}

func (s *syncd) ReplacePod(ctx context.Context, r *podplanev1.ReplaceRequest) (*httpbody.HttpBody, error) {
	s.note(ctx, "replace")
	if at := s.where[r.GetName()]; at != s.node {
		rpc.SayElsewhere(ctx, "what was seen", at)
		return nil, fault.WithRetryAfter(fault.New(fault.Unavailable, "it is on %s", at), time.Second)
	}
	rpc.SayRevision(ctx, 7)
	return pod(r.GetName(), "of "+s.node), nil
}

func (s *syncd) DeletePods(ctx context.Context, _ *podplanev1.DeleteCollectionRequest) (*httpbody.HttpBody, error) {
	s.note(ctx, "delete")
	list := struct {
		Kind  string            `json:"kind"`
		Items []json.RawMessage `json:"items"`
	}{Kind: "PodList", Items: []json.RawMessage{}}
	others := map[string]bool{}
	for name, node := range s.where {
		if node == s.node {
			list.Items = append(list.Items, pod(name, "1").GetData())
		} else {
			others[node] = true
		}
	}
	if _, carried := rpc.Carried(ctx); !carried {
		rpc.SayElsewhere(ctx, "", slices.Sorted(maps.Keys(others))...)
	}
	data, err := json.Marshal(list)
	return &httpbody.HttpBody{Data: data}, err
}

func (s *syncd) GetPodLog(r *podplanev1.PodLogRequest, out grpc.ServerStreamingServer[httpbody.HttpBody]) error {
	if at := s.where[r.GetName()]; at != s.node {
		rpc.SayElsewhere(out.Context(), "", at)
		return fault.WithRetryAfter(fault.New(fault.Unavailable, "it is on %s", at), time.Second)
	}
	if err := out.SendHeader(nil); err != nil {
		return err
	}
	for _, piece := range []string{"log of ", r.GetName(), " on " + s.node} {
		if err := out.Send(&httpbody.HttpBody{Data: []byte(piece)}); err != nil {
			return err
		}
	}
	return nil
}

// fleet gives a client that asks node a first; node c is known and can't be reached.
func fleet(t *testing.T) (podplanev1.PodServiceClient, chan string) {
	t.Helper()
	where := map[string]string{"near": "a", "far": "b", "gone": "b", "lost": "c"}
	calls := make(chan string, 16)
	conns := nodes{}
	for _, n := range []string{"a", "b"} {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := rpc.NewServer(slog.New(slog.DiscardHandler))
		podplanev1.RegisterPodServiceServer(server, &syncd{node: n, where: where, calls: calls})
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(ctx, lis, time.Second) }()
		conn, err := rpc.DialAddress("syncd", lis.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = conn.Close()
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		conns[n] = conn
	}
	return podplanev1.NewPodServiceClient(route.New("syncd", conns["a"], conns)), calls
}

type nodes map[string]grpc.ClientConnInterface

func (n nodes) Node(_, node string) (grpc.ClientConnInterface, bool) {
	c, ok := n[node]
	return c, ok
}

func made(calls chan string) string {
	var all []string
	for len(calls) > 0 {
		all = append(all, <-calls)
	}
	return strings.Join(all, ", ")
}

func TestChangesGoToThePodsNode(t *testing.T) {
	client, calls := fleet(t)
	for name, want := range map[string]struct{ calls, version string }{
		"near": {"a replace", "of a"},
		"far":  {"a replace, b replace carried what was seen, a get after 7", "of a"},
		"gone": {"a replace, b replace carried what was seen, a get after 7", "of b"}, // the near one does not show it any more
	} {
		body, err := client.ReplacePod(t.Context(), &podplanev1.ReplaceRequest{Namespace: "n", Name: name})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !strings.Contains(string(body.GetData()), `"`+want.version+`"`) {
			t.Errorf("%s: got %s, want the version %s", name, body.GetData(), want.version)
		}
		if got := made(calls); got != want.calls {
			t.Errorf("%s: the calls were %s, want %s", name, got, want.calls)
		}
	}
	_, err := client.ReplacePod(t.Context(), &podplanev1.ReplaceRequest{Namespace: "n", Name: "lost"})
	if err = fault.FromGRPC(err); !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) == 0 || !strings.Contains(err.Error(), "it is on c") {
		t.Errorf("a node that can't be reached: %v", err)
	}
}

func TestDeletingEverywhereJoinsTheAnswers(t *testing.T) {
	client, calls := fleet(t)
	_, err := client.DeletePods(t.Context(), &podplanev1.DeleteCollectionRequest{})
	if err = fault.FromGRPC(err); !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) == 0 || !strings.Contains(err.Error(), `pods of node "c" are not deleted`) {
		t.Errorf("with a node that can't be reached: %v", err)
	}
	if got := made(calls); got != "a delete, b delete carried " {
		t.Errorf("the calls were %s", got)
	}
}

func TestLogsComeFromThePodsNode(t *testing.T) {
	client, _ := fleet(t)
	read := func(name string) (string, error) {
		s, err := client.GetPodLog(t.Context(), &podplanev1.PodLogRequest{Namespace: "n", Name: name})
		if err != nil {
			return "", err
		}
		header, err := s.Header()
		if err != nil {
			return "", err
		}
		var log strings.Builder
		for {
			piece, err := s.Recv()
			if err == io.EOF {
				if header == nil {
					t.Errorf("log of %s: no header came before it", name)
				}
				return log.String(), nil
			}
			if err != nil {
				return "", fault.FromGRPC(err)
			}
			log.Write(piece.GetData())
		}
	}
	for name, want := range map[string]string{"near": "log of near on a", "far": "log of far on b"} {
		if got, err := read(name); err != nil || got != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	if _, err := read("lost"); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "it is on c") {
		t.Errorf("a node that can't be reached: %v", err)
	}
}
