package cri

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/telemetry"
)

// Options of a [Client]. The zero value works.
type Options struct {
	// Node is the node's name. All that is created carries it as a label, and lists, events and statistics are only about
	// what carries it. Empty: no label, everything is listed (for tools).
	Node string
	// Timeouts bound the calls. Zero fields have defaults.
	Timeouts Timeouts
	// Observer, when not nil, sees each call when it has ended.
	Observer Observer
	// Log, when not nil, gets a line for each call at level debug, and one at level warn for a call that takes longer than
	// Timeouts.Slow beside the time that it was given itself (grace period, timeout of a command), while it goes on. Pulls are never slow.
	Log *slog.Logger
	// TracerProvider makes the spans of the calls. Nil: OpenTelemetry's global one.
	TracerProvider trace.TracerProvider
}

// Timeouts bound the calls to the runtime, beside the deadline of the caller's context.
type Timeouts struct {
	// Request bounds ordinary calls. StopContainer and ExecSync get it on top of their own time, RunSandbox twice.
	// Default 2 minutes.
	Request time.Duration
	// Inspect bounds each status that PodStatus asks for, and the lists before it. Default 5 seconds.
	Inspect time.Duration
	// Slow is when Options.Log is warned. Default 10 seconds.
	Slow time.Duration
}

const (
	defaultRequestTimeout = 2 * time.Minute
	defaultInspectTimeout = 5 * time.Second
	defaultSlow           = 10 * time.Second

	// maxMessage is above what the runtime may answer to an ExecSync: 16 MiB of each stream.
	maxMessage = 33 << 20
)

// Observer sees the calls to the runtime.
type Observer interface {
	// ObserveCall is called when a call has ended. It must not block.
	ObserveCall(call Call)
}

// Call is one call to the runtime.
type Call struct {
	// Operation is the kubelet's name for it: run_podsandbox, stop_container…
	Operation string
	// Target is the ID, the image or the name that it is about, PodUID the pod if the call says it.
	Target string
	PodUID string
	// Handler is the runtime handler, with run_podsandbox.
	Handler string
	Took    time.Duration
	Err     error
	// Trace is what the call was made in.
	Trace trace.SpanContext
}

// Client talks CRI v1 over one connection to a runtime's socket. It implements [Runtime]. It may be used from many
// goroutines, and survives restarts of the runtime: calls meanwhile fail with kind Unavailable.
type Client struct {
	conn     *grpc.ClientConn
	runtime  runtimeapi.RuntimeServiceClient
	images   runtimeapi.ImageServiceClient
	node     string
	timeouts Timeouts
	observer Observer
	log      *slog.Logger
}

var _ Runtime = (*Client)(nil)

// Dial makes a client of the runtime at the endpoint, unix:///path or an absolute path. It does not wait for the
// runtime: one that is away makes calls fail with kind Unavailable until it is there. An endpoint that can't be one is
// an error of kind Invalid.
func Dial(ctx context.Context, endpoint string, options Options) (*Client, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("dial container runtime %s: %w", endpoint, err)
	}
	target, err := dialTarget(endpoint)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithStatsHandler(newTraceHandler(options.TracerProvider)),
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return nil, fault.New(fault.Invalid, "dial container runtime %s: %w", endpoint, err)
	}
	conn.Connect()
	t := options.Timeouts
	if t.Request <= 0 {
		t.Request = defaultRequestTimeout
	}
	if t.Inspect <= 0 {
		t.Inspect = min(defaultInspectTimeout, t.Request)
	}
	if t.Slow <= 0 {
		t.Slow = defaultSlow
	}
	return &Client{
		conn:     conn,
		runtime:  runtimeapi.NewRuntimeServiceClient(conn),
		images:   runtimeapi.NewImageServiceClient(conn),
		node:     options.Node,
		timeouts: t,
		observer: options.Observer,
		log:      options.Log,
	}, nil
}

func dialTarget(endpoint string) (string, error) {
	path := endpoint
	if strings.Contains(endpoint, "://") {
		u, err := url.Parse(endpoint)
		if err != nil || u.Scheme != "unix" || u.Host != "" {
			return "", fault.New(fault.Invalid, "container runtime endpoint %q: want unix:///path/to/socket", endpoint)
		}
		path = u.Path
	}
	if !filepath.IsAbs(path) {
		return "", fault.New(fault.Invalid, "container runtime endpoint %q: want unix:///path/to/socket or an absolute path", endpoint)
	}
	return "unix://" + path, nil
}

// Close ends the connection. Calls that are under way fail with kind Canceled.
func (c *Client) Close() error {
	if err := c.conn.Close(); err != nil {
		return fmt.Errorf("close connection to container runtime: %w", err)
	}
	return nil
}

// operation describes one call, for its deadline, span, metrics and errors.
type operation struct {
	name    string
	target  string
	kind    attribute.Key // what the target is
	podUID  string
	handler string
	timeout time.Duration // 0: none
	own     time.Duration // how much of the time was asked for, by a grace period or a command's timeout
}

func (c *Client) runtimeOp(name, podUID string) operation {
	return operation{name: name, podUID: podUID, timeout: c.timeouts.Request}
}

func (c *Client) sandboxOp(name, id string) operation {
	return operation{name: name, target: id, kind: telemetry.SandboxID, timeout: c.timeouts.Request}
}

func (c *Client) containerOp(name, id string) operation {
	return operation{name: name, target: id, kind: telemetry.ContainerID, timeout: c.timeouts.Request}
}

func (c *Client) imageOp(name, image string) operation {
	return operation{name: name, target: image, kind: telemetry.ContainerImageName, timeout: c.timeouts.Request}
}

// within bounds the operation.
func (o operation) within(timeout time.Duration) operation {
	o.timeout = timeout
	return o
}

// lasting gives the operation the time that it asks for itself, on top of its own bound.
func (o operation) lasting(own time.Duration) operation {
	o.timeout += own
	o.own = own
	return o
}

// of says which pod the operation is about.
func (o operation) of(podUID string) operation {
	o.podUID = podUID
	return o
}

// invoke does one call: bounds it, traces it, observes it, and gives its error a kind.
func invoke[Req, Resp any](ctx context.Context, c *Client, op operation,
	method func(context.Context, *Req, ...grpc.CallOption) (*Resp, error), req *Req,
) (*Resp, error) {
	if op.podUID == "" {
		op.podUID = telemetry.AboutFrom(ctx).PodUID
	}
	callCtx := withOperation(ctx, op)
	if op.timeout > 0 {
		var cancel context.CancelFunc
		callCtx, cancel = context.WithTimeout(callCtx, op.timeout)
		defer cancel()
	}
	start := time.Now()
	defer c.watch(ctx, &op)()
	resp, err := method(callCtx, req)
	took := time.Since(start)
	if err != nil {
		err = &CallError{Op: op.name, Target: op.target, After: took, Err: callFault(ctx, callCtx, op, err)}
	}
	c.note(ctx, &op, took, err)
	if c.observer != nil {
		c.observer.ObserveCall(Call{
			Operation: op.name, Target: op.target, PodUID: op.podUID, Handler: op.handler, Took: took, Err: err, Trace: trace.SpanContextFromContext(ctx),
		})
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// callFault translates the error of a call: the one place where a status of the wire becomes an error with a kind.
func callFault(ctx, callCtx context.Context, op operation, err error) error {
	if ctxErr := ctx.Err(); ctxErr != nil {
		return ctxErr
	}
	st := status.Convert(err)
	switch {
	case st.Code() == codes.DeadlineExceeded && expired(ctx):
		return context.DeadlineExceeded
	case st.Code() == codes.DeadlineExceeded && expired(callCtx):
		return fault.New(fault.DeadlineExceeded, "the container runtime did not answer within %s", op.timeout)
	}
	return statusFault(st)
}

// expired says that the context's deadline is over, or about to be: the runtime knows the deadline too, and its answer
// may be here before the context has ended.
func expired(ctx context.Context) bool {
	const slack = 10 * time.Millisecond
	deadline, ok := ctx.Deadline()
	return ok && time.Until(deadline) < slack
}

func statusFault(st *status.Status) error {
	kind := fault.KindOf(st.Err())
	if st.Code() == codes.InvalidArgument {
		kind = fault.Invalid
	}
	// containerd has no code of its own for a name that is taken, nor for a reference that does not parse: what it says
	// in words is all there is.
	if st.Code() == codes.Unknown || st.Code() == codes.FailedPrecondition {
		switch msg := st.Message(); {
		case strings.Contains(msg, "is reserved for"):
			kind = fault.AlreadyExists
		case strings.Contains(msg, "failed to parse image reference"):
			kind = fault.Invalid
		}
	}
	return fault.New(kind, "%s", st.Message())
}

// seconds rounds up: a runtime counts whole seconds, and 0 has a meaning of its own.
func seconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d + time.Second - 1) / time.Second)
}
