package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/podplane/podplane/internal/fault"
)

// Config says how to reach the bus and as whom. Zero durations take the defaults.
type Config struct {
	// URL is the server's address, several separated by commas. Ignored when InProcess is set.
	URL string
	// Node, Service and Instance name this replica: they go into headers, keys and the inbox.
	Node, Service, Instance string
	// NKeySeedFile or CredentialsFile authenticate the service; both may be empty. They are read at each connect.
	NKeySeedFile, CredentialsFile string
	// TLS secures the connection and checks the server; nil: a plain one, unless the server asks for more.
	TLS *tls.Config
	// ConnectTimeout bounds one attempt to connect, default 2 s.
	ConnectTimeout time.Duration
	// RequestTimeout bounds the wait for one acknowledgement, default 5 s.
	RequestTimeout time.Duration
	// Replicas is how many copies of each bucket and stream this service creates are kept, default 1.
	Replicas int
	// StreamLimits overrides the age and size of streams that this service owns, by name.
	StreamLimits map[string]StreamLimits
	// Logger takes changes of the connection; nil discards them.
	Logger *slog.Logger
	// InProcess connects to a server in this process instead of URL.
	InProcess InProcessServer
}

// StreamLimits bounds a stream; zero values keep the declared ones.
type StreamLimits struct {
	MaxAge   time.Duration
	MaxBytes int64
}

// InProcessServer is what *embedded.Server offers for connections without a socket.
type InProcessServer interface {
	InProcessConn() (net.Conn, error)
}

const (
	defaultConnectTimeout = 2 * time.Second
	defaultRequestTimeout = 5 * time.Second

	minReconnectDelay = 100 * time.Millisecond
	maxReconnectDelay = time.Second

	pingInterval = 10 * time.Second
	maxPingsOut  = 2
)

var (
	errDisconnected = errors.New("connection to the bus lost")
	errNoAnswer     = errors.New("no answer in time")
	errClosed       = fault.New(fault.Unavailable, "connection to the bus is closed")
)

// Conn is a connection to the bus that reconnects for ever. Its methods may be
// called from any goroutine.
type Conn struct {
	cfg    Config
	schema versions
	nc     *nats.Conn
	live   atomic.Pointer[nats.Conn] // nc, for the goroutine that reconnects
	writer string
	log    *slog.Logger

	mu        sync.Mutex
	connected bool
	closed    bool
	since     time.Time     // of the present state
	lastErr   error         // why the last attempt or connection failed
	up        chan struct{} // closed while connected
	down      chan struct{} // closed by the next disconnect
	states    map[int]func(bool)
	nextState int
	waiters   map[*waiter]struct{}
	owned     map[string]specInfo

	notify sync.Mutex // orders the calls of states
	done   chan struct{}
	tasks  sync.WaitGroup
}

// waiter is a request whose answer is awaited.
type waiter struct {
	subject string
	cancel  context.CancelCauseFunc
}

// Connect connects to the bus. It tries until the first connection stands or
// ctx ends, which gives an error of kind Unavailable that says why; afterwards
// the connection is re-established for ever, with 100 ms to 1 s between attempts.
func Connect(ctx context.Context, cfg Config) (*Conn, error) {
	if cfg.ConnectTimeout <= 0 {
		cfg.ConnectTimeout = defaultConnectTimeout
	}
	if cfg.RequestTimeout <= 0 {
		cfg.RequestTimeout = defaultRequestTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Conn{
		cfg: cfg, schema: versions{own: Schema, minReader: MinReader}, writer: cfg.Service + "/" + cfg.Instance, log: cfg.Logger, since: time.Now(),
		up: make(chan struct{}), states: map[int]func(bool){}, waiters: map[*waiter]struct{}{},
		owned: map[string]specInfo{}, done: make(chan struct{}),
	}
	opts, err := c.options()
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(cfg.URL, opts...)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "connect to the bus at %s: %w", c.where(), err)
	}
	c.nc = nc
	c.live.Store(nc)
	c.OnState(c.restoreOwned)
	if err := c.waitConnected(ctx); err != nil {
		why := c.Err()
		_ = c.Close(context.WithoutCancel(ctx))
		return nil, fault.New(fault.Unavailable, "connect to the bus at %s: %w (%w)", c.where(), why, err)
	}
	return c, nil
}

// ConnectEmbedded connects to a server in this process without a socket.
func ConnectEmbedded(ctx context.Context, s InProcessServer, cfg Config) (*Conn, error) {
	cfg.InProcess = s
	return Connect(ctx, cfg)
}

func (c *Conn) options() ([]nats.Option, error) {
	name := c.writer
	if c.cfg.Node != "" {
		name += "@" + c.cfg.Node
	}
	opts := []nats.Option{
		nats.Name(name),
		nats.Timeout(c.cfg.ConnectTimeout),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectBufSize(-1), // fail at once while away: the caller decides what to keep
		nats.CustomReconnectDelay(c.reconnectDelay),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(maxPingsOut),
		nats.CustomInboxPrefix(inboxPrefix(c.cfg.Service)),
		nats.ConnectHandler(func(*nats.Conn) { c.setConnected(true, nil) }),
		nats.ReconnectHandler(func(*nats.Conn) { c.setConnected(true, nil) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { c.setConnected(false, err) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { c.attemptFailed(err) }),
		nats.ClosedHandler(func(*nats.Conn) { close(c.done) }),
		nats.ErrorHandler(c.asyncError),
	}
	if c.cfg.InProcess != nil {
		opts = append(opts, nats.InProcessServer(c.cfg.InProcess))
	}
	if c.cfg.TLS != nil && c.cfg.InProcess == nil {
		opts = append(opts, nats.Secure(c.cfg.TLS))
	}
	if f := c.cfg.NKeySeedFile; f != "" {
		o, err := nats.NkeyOptionFromSeed(f)
		if err != nil {
			return nil, fault.New(fault.Unauthenticated, "read the bus key of %s from %s: %w", c.cfg.Service, f, err)
		}
		opts = append(opts, o)
	}
	if f := c.cfg.CredentialsFile; f != "" {
		opts = append(opts, nats.UserCredentials(f))
	}
	return opts, nil
}

// reconnectDelay is called by the library's goroutine that reconnects, before each round.
func (c *Conn) reconnectDelay(attempts int) time.Duration {
	c.renewKey()
	d := maxReconnectDelay
	if attempts < 4 {
		d = minReconnectDelay << attempts
	}
	d = min(d, maxReconnectDelay)
	return d/2 + rand.N(d/2) + minReconnectDelay/2
}

// renewKey has the next attempt to connect show the key that is in the file now: the library reads the secret part at each connect, but the public
// part once. Only the goroutine that reconnects uses it, and that is the one which calls this.
func (c *Conn) renewKey() {
	nc := c.live.Load()
	if nc == nil || c.cfg.NKeySeedFile == "" {
		return
	}
	o := nats.Options{}
	option, err := nats.NkeyOptionFromSeed(c.cfg.NKeySeedFile)
	if err == nil {
		err = option(&o)
	}
	if err != nil {
		c.attemptFailed(fault.New(fault.Unauthenticated, "read the bus key of %s from %s: %w", c.cfg.Service, c.cfg.NKeySeedFile, err))
		return
	}
	nc.Opts.Nkey = o.Nkey
}

func inboxPrefix(service string) string {
	if service == "" {
		return "_INBOX"
	}
	return "_INBOX." + Token(service)
}

func (c *Conn) where() string {
	if c.cfg.InProcess != nil {
		return "this process"
	}
	return c.cfg.URL
}

// Config gives the configuration that the connection was made with.
func (c *Conn) Config() Config { return c.cfg }

// Connected says whether the server can be reached now.
func (c *Conn) Connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.connected
}

// Err says why the bus is away, with kind Unavailable; nil when it is not.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.connected:
		return nil
	case c.closed:
		return errClosed
	case c.lastErr != nil:
		return fault.WithRetryAfter(fault.New(fault.Unavailable, "bus at %s is away since %s: %w", c.where(), c.since.UTC().Format(time.RFC3339), c.lastErr), time.Second)
	default:
		return fault.WithRetryAfter(fault.New(fault.Unavailable, "bus at %s is not connected yet", c.where()), time.Second)
	}
}

// OnState registers f, which is called with the present state and then at each
// change, one call at a time, from the connection's own goroutine: it must not
// block and must not call Close. stop takes it out again; f is not running any
// more when stop returns, and must not call it.
func (c *Conn) OnState(f func(connected bool)) (stop func()) {
	c.notify.Lock()
	defer c.notify.Unlock()
	c.mu.Lock()
	id := c.nextState
	c.nextState++
	c.states[id] = f
	now := c.connected
	c.mu.Unlock()
	f(now)
	return func() {
		c.notify.Lock()
		defer c.notify.Unlock()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.states, id)
	}
}

// Close stops the connection. Running calls fail with kind Unavailable. What
// was acknowledged is stored; there is nothing else to flush.
func (c *Conn) Close(ctx context.Context) error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.nc.Close()
	ended := make(chan struct{})
	go func() {
		<-c.done
		c.tasks.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close the connection to the bus: %w", ctx.Err())
	}
}

func (c *Conn) setConnected(now bool, err error) {
	c.notify.Lock()
	defer c.notify.Unlock()
	c.mu.Lock()
	if now == c.connected || (now && c.closed) {
		c.mu.Unlock()
		return
	}
	c.connected, c.since = now, time.Now()
	if now {
		c.lastErr = nil
		c.down = make(chan struct{})
		close(c.up)
	} else {
		c.lastErr = err
		if err == nil {
			c.lastErr = errDisconnected
		}
		c.up = make(chan struct{})
		close(c.down)
		for w := range c.waiters {
			w.cancel(errDisconnected)
		}
	}
	states := make([]func(bool), 0, len(c.states))
	for id := range c.nextState {
		if f, ok := c.states[id]; ok {
			states = append(states, f)
		}
	}
	closed := c.closed
	c.mu.Unlock()
	if now {
		c.log.Info("bus connected", "bus.url", c.where())
	} else if !closed {
		c.log.Warn("bus away", "bus.url", c.where(), "error", c.lastErr)
	}
	for _, f := range states {
		f(now)
	}
}

func (c *Conn) attemptFailed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.connected && err != nil {
		if c.lastErr == nil || c.lastErr.Error() != err.Error() {
			c.log.Warn("bus can't be reached", "bus.url", c.where(), "error", err)
		}
		c.lastErr = err
	}
}

// asyncError gets what the server says about no request in particular. A
// refused publish is such an error: its request would wait for its timeout.
func (c *Conn) asyncError(_ *nats.Conn, sub *nats.Subscription, err error) {
	if errors.Is(err, nats.ErrSlowConsumer) {
		return // a cursor sees the gap
	}
	c.log.Warn("bus refused", "error", err)
	if !errors.Is(err, nats.ErrPermissionViolation) || sub != nil {
		return
	}
	_, rest, _ := strings.Cut(err.Error(), `"`)
	subject, _, _ := strings.Cut(rest, `"`)
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.waiters {
		if w.subject == subject {
			w.cancel(fault.New(fault.PermissionDenied, "%s may not publish to %s", c.cfg.Service, subject))
		}
	}
}

// waitConnected waits until the bus is there.
func (c *Conn) waitConnected(ctx context.Context) error {
	c.mu.Lock()
	up := c.up
	c.mu.Unlock()
	select {
	case <-up:
		return nil
	case <-c.done:
		return errClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lost gives a channel that is closed when the present connection ends, or has ended.
func (c *Conn) lost() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down == nil {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	return c.down
}

// sleep waits for d, or less when ctx or the connection ends.
func (c *Conn) sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		return errClosed
	}
}
