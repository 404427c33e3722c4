// Package probe makes one probe: an HTTP request, a TCP connection, a gRPC health check, or a command in the container.
//
// A probe ends within its timeout (a command: when the runtime says so, at the latest two minutes after). It tells
// apart that the container failed, that it did not answer in time, and that the probe could not be made at all, which
// says nothing about the container. What a container answers is read to at most 10 KiB and not passed on, but for the
// output of commands. Nothing is kept between probes: no connection, no goroutine.
package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

const (
	// userAgent is what servers know probes of this Kubernetes version by.
	userAgent = "kube-probe/1.36"
	// maxRead is how much of an answer is read, or kept of a command's output.
	maxRead = 10 << 10
	// attempts is how often a probe that can't be made is tried in a row.
	attempts = 3
)

// Spec says what to do. One of HTTP, TCP, GRPC and Exec is set, or Err.
type Spec struct {
	HTTP *HTTP
	TCP  *TCP
	GRPC *GRPC
	Exec []string
	// Timeout bounds the probe.
	Timeout time.Duration
	// Err says why the probe can't be made, such as a port that the container does not have.
	Err error
}

// HTTP is a GET request.
type HTTP struct {
	Scheme, Host, Path string
	Port               int
	Header             http.Header
}

// TCP is a connection that is opened and closed.
type TCP struct {
	Host string
	Port int
}

// GRPC is a call of the standard health service.
type GRPC struct {
	Port    int
	Service string
}

// NeedsIP says whether the probe goes to the pod's address.
func (s *Spec) NeedsIP() bool {
	switch {
	case s.HTTP != nil:
		return s.HTTP.Host == ""
	case s.TCP != nil:
		return s.TCP.Host == ""
	}
	return s.GRPC != nil
}

// Target is the container to probe.
type Target struct {
	PodIP, PodUID, ContainerID string
}

// Result is how a probe ended.
type Result struct {
	// Outcome is Success, Failure, or Unknown: it could not be made, Err says why.
	Outcome podplanev1.ProbeResult
	// Output is what it said, for people.
	Output string
	// Warning: a success of which people should know.
	Warning bool
	// TimedOut: a failure because no answer came in time.
	TimedOut bool
	// Overrun is by how much a probe that timed out took longer than its timeout: this process could not run then.
	Overrun time.Duration
	Err     error
}

func success(output string) Result {
	return Result{Outcome: podplanev1.ProbeResult_PROBE_RESULT_SUCCESS, Output: output}
}

func failure(output string) Result {
	return Result{Outcome: podplanev1.ProbeResult_PROBE_RESULT_FAILURE, Output: output}
}

func timedOut(output string) Result {
	r := failure(output)
	r.TimedOut = true
	return r
}

func unknown(err error) Result {
	return Result{Outcome: podplanev1.ProbeResult_PROBE_RESULT_UNKNOWN, Err: err}
}

// Prober makes probes; any number at once.
type Prober struct {
	exec      cri.Execer
	dialer    *net.Dialer
	transport *http.Transport
}

// New makes a prober that runs commands by exec.
func New(exec cri.Execer) *Prober {
	d := &net.Dialer{Control: linger, KeepAlive: -1}
	return &Prober{exec: exec, dialer: d, transport: &http.Transport{
		DialContext:            d.DialContext,
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // as Kubernetes documents it: a probe asks for health, not for identity
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 1 << 20,
		// Proxy stays nil: a probe goes to the container and nowhere else.
	}}
}

// linger bounds what the kernel does for a connection after its close, so that many probes do not use up the ports.
func linger(_, _ string, c syscall.RawConn) error {
	var err error
	ctl := c.Control(func(fd uintptr) {
		err = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1})
	})
	return errors.Join(ctl, err)
}

// Probe makes the probe. One that can't be made is tried up to three times in a row.
func (p *Prober) Probe(ctx context.Context, s *Spec, t Target) Result {
	var r Result
	for range attempts {
		started := time.Now()
		r = p.once(ctx, s, t)
		if r.TimedOut {
			r.Overrun = time.Since(started) - s.Timeout
		}
		if r.Err == nil || ctx.Err() != nil {
			return r
		}
	}
	return r
}

func (p *Prober) once(ctx context.Context, s *Spec, t Target) Result {
	if s.Err != nil {
		return unknown(s.Err)
	}
	if s.Exec != nil {
		return p.command(ctx, s, t)
	}
	bounded, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	r := p.network(bounded, s, t)
	if ctx.Err() != nil { // nobody waits for it any more
		return unknown(ctx.Err())
	}
	return r
}

func (p *Prober) network(ctx context.Context, s *Spec, t Target) Result {
	switch {
	case s.HTTP != nil:
		return p.http(ctx, s.HTTP, t)
	case s.TCP != nil:
		return p.tcp(ctx, s.TCP, t)
	case s.GRPC != nil:
		return p.grpc(ctx, s.GRPC, t, s.Timeout)
	}
	return unknown(errors.New("the probe has no handler"))
}

func (p *Prober) tcp(ctx context.Context, s *TCP, t Target) Result {
	c, err := p.dialer.DialContext(ctx, "tcp", address(or(s.Host, t.PodIP), s.Port))
	if err != nil {
		return failed(err)
	}
	_ = c.Close()
	return success("")
}

// failed is the result of a connection that broke, or came too late.
func failed(err error) Result {
	r := failure(err.Error())
	var n net.Error
	r.TimedOut = errors.Is(err, context.DeadlineExceeded) || errors.As(err, &n) && n.Timeout()
	return r
}

func address(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func (p *Prober) command(ctx context.Context, s *Spec, t Target) Result {
	out, err := p.exec.ExecSync(telemetry.ContextWithAbout(ctx, telemetry.About{PodUID: t.PodUID}), t.ContainerID, s.Exec, s.Timeout)
	text := string(append(out.Stdout, out.Stderr...))
	if len(text) > maxRead {
		text = text[:maxRead]
	}
	var exit *cri.ExitError
	var late *cri.ExecTimeoutError
	switch {
	case err == nil:
		return success(text)
	case errors.As(err, &exit):
		return failure(text)
	case errors.As(err, &late):
		return timedOut(fmt.Sprintf("command timed out after %s", s.Timeout))
	}
	return unknown(err)
}
