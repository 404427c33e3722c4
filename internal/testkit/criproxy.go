package testkit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// CRIProxy stands between Podplane and a runtime and makes calls hang and streams break. It passes messages on as they are.
type CRIProxy struct {
	// Endpoint is where it listens, as unix://PATH.
	Endpoint string

	conn *grpc.ClientConn

	mu    sync.Mutex
	hangs []*hang
	// watch is told of calls.
	watch func(method string, answered bool)
	// noEvents refuses streams of events; streams ends those that are open.
	noEvents bool
	streams  map[*proxied]bool
}

type hang struct {
	method string
	target []byte
	free   chan struct{}
}

type proxied struct{ cancel context.CancelFunc }

// methodEvents is the stream of events.
const methodEvents = "GetContainerEvents"

// raw passes messages on without looking into them.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}

func (raw) Name() string { return "raw" }

// NewCRIProxy starts a proxy of the runtime at the endpoint; it ends with the test.
func NewCRIProxy(t *testing.T, endpoint string) *CRIProxy {
	t.Helper()
	dir, err := os.MkdirTemp("", "ppcri") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	p := &CRIProxy{Endpoint: "unix://" + socket, conn: conn, streams: make(map[*proxied]bool)}
	lis, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(p.handle), grpc.MaxRecvMsgSize(64<<20), grpc.MaxSendMsgSize(64<<20))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(lis) // ends with Stop
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
		if err := errors.Join(conn.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return p
}

// Hang makes calls of the method (such as ContainerStatus) whose request names the target (an ID) hang until they are released.
func (p *CRIProxy) Hang(method, target string) (release func()) {
	h := &hang{method: method, target: []byte(target), free: make(chan struct{})}
	p.mu.Lock()
	p.hangs = append(p.hangs, h)
	p.mu.Unlock()
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for i := range p.hangs {
			if p.hangs[i] == h {
				p.hangs = append(p.hangs[:i:i], p.hangs[i+1:]...)
				break
			}
		}
		close(h.free)
	})
}

// Watch calls f before a call goes to the runtime and again when the runtime has answered, before the answer goes back: what f does to the caller happens
// between its calls. f is called by several goroutines at once.
func (p *CRIProxy) Watch(f func(method string, answered bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch = f
}

func (p *CRIProxy) tell(method string, answered bool) {
	p.mu.Lock()
	f := p.watch
	p.mu.Unlock()
	if f != nil {
		f(method, answered)
	}
}

// Events lets streams of events through, or ends those that are open and refuses others.
func (p *CRIProxy) Events(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noEvents = !on
	if on {
		return
	}
	for s := range p.streams {
		s.cancel()
	}
}

// obstacle is what is in the way of a call, nil for nothing.
func (p *CRIProxy) obstacle(method string, request []byte) *hang {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.hangs {
		if h.method == method && bytes.Contains(request, h.target) {
			return h
		}
	}
	return nil
}

// enter notes a stream of events, or refuses it.
func (p *CRIProxy) enter(s *proxied) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.noEvents {
		return status.Error(codes.Unavailable, "the test refuses streams of events")
	}
	p.streams[s] = true
	return nil
}

func (p *CRIProxy) handle(_ any, in grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(in)
	method := path.Base(full)
	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	if method == methodEvents {
		s := &proxied{cancel}
		if err := p.enter(s); err != nil {
			return err
		}
		defer func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.streams, s)
		}()
	}
	// Every request of CRI is one message.
	var request []byte
	if err := in.RecvMsg(&request); err != nil {
		return err
	}
	if h := p.obstacle(method, request); h != nil {
		select {
		case <-h.free:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md.Copy())
	}
	return p.pass(ctx, full, request, in)
}

func (p *CRIProxy) pass(ctx context.Context, method string, request []byte, in grpc.ServerStream) error {
	out, err := p.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return err
	}
	p.tell(path.Base(method), false)
	if err := errors.Join(out.SendMsg(&request), out.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for {
		var answer []byte
		err := out.RecvMsg(&answer)
		if err == nil {
			p.tell(path.Base(method), true)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && ctx.Err() != nil:
			return status.Error(codes.Unavailable, "the test broke the stream")
		case err != nil:
			return err
		}
		if err := in.SendMsg(&answer); err != nil {
			return err
		}
	}
}
