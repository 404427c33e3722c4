package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/podplane/podplane/internal/fault"
)

const (
	// WaitForReady is how long a call waits for a reachable replica.
	WaitForReady = 5 * time.Second
	// CallTimeout is the deadline of a unary call that has none.
	CallTimeout = 30 * time.Second
	// retryAfter is what a caller is told when a service is not reachable.
	retryAfter = time.Second

	reconnectMin      = 50 * time.Millisecond
	reconnectMax      = time.Second
	connectTimeout    = 2 * time.Second
	clientKeepalive   = 30 * time.Second
	keepaliveDeadline = 5 * time.Second
)

// Options change a client; the zero value is right for services.
type Options struct {
	// WaitForReady replaces the constant of that name.
	WaitForReady time.Duration
	// AnyNode makes do with replicas of other nodes where the named one has none.
	AnyNode bool
	// TLS secures the connections and checks whose they are; nil: plain ones.
	TLS *tls.Config
	// Dial are added to the connection's options; tests use them.
	Dial []grpc.DialOption
}

// Dial makes a connection to a service, found by name in the registrations that dir watches; an empty node means on any node. It
// returns at once; ctx ends the watch, and so does closing the connection.
func Dial(ctx context.Context, dir Directory, service, node string) (*grpc.ClientConn, error) {
	return DialWith(ctx, dir, service, node, Options{})
}

// DialWith is Dial with options.
func DialWith(ctx context.Context, dir Directory, service, node string, o Options) (*grpc.ClientConn, error) {
	r := &resolverBuilder{ctx: ctx, directory: dir}
	meant := identity(service, node)
	if o.AnyNode {
		meant = identity(service, "")
	}
	return dial(target(service, node, o.AnyNode), service, o, grpc.WithResolvers(r), grpc.WithDefaultServiceConfig(serviceConfig(meant)))
}

// DialAddress makes a connection to a service at a known host:port.
func DialAddress(service, address string) (*grpc.ClientConn, error) {
	return dial("passthrough:///"+address, service, Options{}, grpc.WithDefaultServiceConfig(serviceConfig("")))
}

func dial(target, service string, o Options, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	c := &client{service: service, wait: o.WaitForReady}
	if c.wait == 0 {
		c.wait = WaitForReady
	}
	transport := insecure.NewCredentials()
	if o.TLS != nil {
		transport = credentials.NewTLS(o.TLS)
	}
	opts := append([]grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithStatsHandler(aboutHandler{otelgrpc.NewClientHandler(otelgrpc.WithFilter(worthTracing))}),
		grpc.WithChainUnaryInterceptor(c.unary),
		grpc.WithChainStreamInterceptor(c.stream),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: reconnectMin, Multiplier: 1.6, Jitter: .2, MaxDelay: reconnectMax},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: clientKeepalive, Timeout: keepaliveDeadline}),
		grpc.WithReadBufferSize(bufferBytes), grpc.WithWriteBufferSize(bufferBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxResponseBytes)),
		grpc.WithNoProxy(),
		grpc.WithIdleTimeout(0), // an idle channel would forget the addresses, and the bus may be away when they are needed
	}, more...)
	conn, err := grpc.NewClient(target, append(opts, o.Dial...)...)
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", service, err)
	}
	conn.Connect()
	return conn, nil
}

type client struct {
	service string
	wait    time.Duration
}

func (c *client) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, CallTimeout)
		defer cancel()
	}
	if err := c.await(ctx, cc); err != nil {
		return err
	}
	return c.explain(invoke(ctx, method, req, reply, cc, opts...))
}

func (c *client) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if err := c.await(ctx, cc); err != nil {
		return nil, err
	}
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, c.explain(err)
	}
	return &clientStream{ClientStream: s, client: c}, nil
}

// await returns when the channel is ready; otherwise it says what was waited for.
func (c *client) await(ctx context.Context, cc *grpc.ClientConn) error {
	state := cc.GetState()
	if state == connectivity.Ready {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, c.wait)
	defer cancel()
	for begin := time.Now(); state != connectivity.Ready; state = cc.GetState() {
		if state == connectivity.Idle {
			cc.Connect()
		}
		if state == connectivity.Shutdown {
			return fault.New(fault.Canceled, "the client of %s is closed", c.service)
		}
		if cc.WaitForStateChange(bounded, state) {
			continue
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			return fault.New(fault.Canceled, "call %s: %w", c.service, ctx.Err())
		}
		err := fault.New(fault.Unavailable, "%s is not reachable: no replica of it accepted a connection for %s", c.service, time.Since(begin).Round(10*time.Millisecond))
		return fault.WithRetryAfter(err, retryAfter)
	}
	return nil
}

// explain gives an error its kind, and names the service where the transport and not the service made it.
func (c *client) explain(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	kind := fault.KindOf(err)
	switch known := fault.FromGRPC(err); {
	case fault.HasDetail(err):
		return known
	case kind == fault.Unavailable:
		return fault.WithRetryAfter(fault.New(kind, "%s is not reachable: %w", c.service, known), retryAfter)
	case kind == fault.DeadlineExceeded:
		return fault.New(kind, "%s did not answer in time: %w", c.service, known)
	default:
		return known
	}
}

// clientStream explains the errors of a stream.
type clientStream struct {
	grpc.ClientStream
	client *client
}

// RecvMsg receives one message.
func (s *clientStream) RecvMsg(m any) error { return s.client.explain(s.ClientStream.RecvMsg(m)) }

// SendMsg sends one message.
func (s *clientStream) SendMsg(m any) error { return s.client.explain(s.ClientStream.SendMsg(m)) }

// Header waits for the headers.
func (s *clientStream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	return md, s.client.explain(err)
}
