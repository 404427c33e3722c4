package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/events"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pki"
	"github.com/podplane/podplane/internal/rpc"
	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 90 * time.Second

	// Readiness is looked at in quick succession while something is missing, seldom while nothing is.
	minReadyPause   = 20 * time.Millisecond
	maxUnreadyPause = time.Second
	readyPause      = 5 * time.Second
)

// Options are for who runs services in one process, as tests do. The zero value is right for a process of its own.
type Options struct {
	// InProcess connects to a NATS server of this process instead of Config.NATSURL.
	InProcess bus.InProcessServer
	// Log replaces the logger on standard error.
	Log *slog.Logger
	// Addresses is called once, when the service serves, with the addresses that it got.
	Addresses func(grpcAddress, httpAddress string)
	// Registry replaces the service's own.
	Registry *prometheus.Registry
}

// BusConfigurer is a configuration that has a say in the connection to the bus, such as the limits of a stream that the service owns.
type BusConfigurer interface{ ConfigureBus(*bus.Config) }

// host is one running service.
type host struct {
	cfg      Config
	opts     Options
	id       telemetry.Identity
	log      *slog.Logger
	group    *Group
	health   *Health
	ops      *http.ServeMux
	registry *prometheus.Registry
	conn     *bus.Conn
	tls      *pki.Process // nil: everything is plain
	grpc     *rpc.Server
	grpcLis  net.Listener
	grpcAddr string // as others reach it
	httpAddr string // as others reach it
	started  time.Time
	served   sync.Once

	shardsMu sync.Mutex
	shards   []uint32
	reg      *bus.Registration // nil until it is registered
	serving  atomic.Bool
}

// Run runs a service until ctx ends or one of its components does. It returns nil only after a graceful stop that was asked for.
func Run[C any, P interface {
	*C
	Configuration
}](ctx context.Context, s Service[C], cfg C, o Options,
) error {
	common := P(&cfg).Common()
	if err := common.complete(); err != nil {
		return err
	}
	h, err := newHost(s.Name, *common, o)
	if err != nil {
		return err
	}
	tracing, err := h.startTracing(ctx)
	if err != nil {
		return err
	}
	h.group = NewGroup(ctx, h.log)
	h.group.Go("tracing", func(ctx context.Context) error {
		<-ctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.cfg.ShutdownTimeout/2)
		defer cancel()
		return tracing.Stop(stop)
	})
	startErr := h.start(ctx, any(&cfg))
	if startErr == nil {
		startErr = h.shareErrors(tracing)
	}
	if startErr == nil {
		deps := h.deps()
		h.group.Go("service", func(ctx context.Context) error { return s.Run(ctx, cfg, deps) })
	}
	stopNow, cancel := context.WithCancel(ctx)
	defer cancel()
	if startErr != nil {
		cancel()
		if ctx.Err() != nil {
			startErr = nil // asked to stop before it had started
		}
	}
	err = errors.Join(startErr, h.group.Wait(stopNow, h.cfg.ShutdownTimeout))
	if err == nil {
		h.log.Info("stopped")
	}
	return err
}

func newHost(service string, cfg Config, o Options) (*host, error) {
	h := &host{cfg: cfg, opts: o, log: o.Log, health: &Health{}, registry: o.Registry, started: time.Now()}
	h.id = telemetry.Identity{Service: service, Version: Version, Instance: cfg.Instance, Node: cfg.Node}
	if h.log == nil {
		log, err := telemetry.NewLogger(os.Stderr, h.id, cfg.LogLevel, cfg.LogFormat)
		if err != nil {
			return nil, err
		}
		h.log = log
		ownLog(log)
	}
	if h.registry == nil {
		h.registry = telemetry.NewRegistry(h.id)
	}
	h.ops = opsHandler(h.health, h.registry, cfg.Pprof)
	return h, nil
}

// start brings up what the service's Run needs, in order.
func (h *host) start(ctx context.Context, cfg any) error {
	h.health.AddCheck("bus", func(context.Context) error {
		return fault.New(fault.Unavailable, "not connected to %s yet", h.cfg.NATSURL)
	})
	h.health.AddCheck("serving", func(context.Context) error {
		if !h.serving.Load() {
			return fault.New(fault.Unavailable, "%s is still starting", h.id.Service)
		}
		return nil
	})
	if err := h.loadTLS(); err != nil {
		return err
	}
	if err := h.startHTTP(ctx); err != nil {
		return err
	}
	h.log.Info("starting", "version", Version, "node", h.cfg.Node, "instance", h.cfg.Instance, "http.address", h.httpAddr)
	if err := h.startBus(ctx, cfg); err != nil {
		return err
	}
	lis, err := net.Listen("tcp", h.cfg.GRPCListen)
	if err != nil {
		return fmt.Errorf("listen for grpc: %w", err)
	}
	h.grpcLis, h.grpc = lis, rpc.NewServerTLS(h.log, h.serverTLS())
	h.grpc.Identify(h.id.Service, h.cfg.Node)
	if h.grpcAddr, err = h.cfg.reachable(ctx, lis.Addr()); err != nil {
		return errors.Join(err, lis.Close())
	}
	h.group.Go("grpc listener", func(ctx context.Context) error {
		<-ctx.Done()
		_ = lis.Close() // the server has closed it, if it got that far
		return nil
	})
	return nil
}

func (h *host) loadTLS() (err error) {
	if h.cfg.TLSDir == "" {
		return nil
	}
	h.tls, err = pki.Load(h.cfg.TLSDir, h.id.Service, func(err error) {
		h.log.Error("changed certificates can't be used; those that were read before stay in use", "error", err)
	})
	return err
}

func (h *host) serverTLS() *tls.Config {
	if h.tls == nil {
		return nil
	}
	return h.tls.Server()
}

// clientTLS is for connections to another process; nil: plain ones.
func (h *host) clientTLS(peer string) *tls.Config {
	if h.tls == nil {
		return nil
	}
	return h.tls.Client(peer)
}

func (h *host) startHTTP(ctx context.Context) error {
	lis, err := net.Listen("tcp", h.cfg.HTTPListen)
	if err != nil {
		return fmt.Errorf("listen for http: %w", err)
	}
	if h.httpAddr, err = h.cfg.reachable(ctx, lis.Addr()); err == nil {
		err = h.cfg.writeAddress(lis.Addr())
	}
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	srv := &http.Server{
		Handler: h.ops, ReadHeaderTimeout: headerTimeout, ReadTimeout: time.Minute, IdleTimeout: idleTimeout,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
	}
	h.group.Go("http", func(ctx context.Context) error { return ServeHTTP(ctx, srv, lis, time.Second) })
	return nil
}

func (h *host) startBus(ctx context.Context, cfg any) error {
	bc := bus.Config{
		URL: h.cfg.NATSURL, Node: h.cfg.Node, Service: h.id.Service, Instance: h.cfg.Instance, CredentialsFile: h.cfg.NATSCredentials,
		NKeySeedFile: h.cfg.NATSNKeySeed, Replicas: h.cfg.BusReplicas, Logger: h.log, InProcess: h.opts.InProcess,
		TLS: h.clientTLS(pki.Bus),
	}
	if c, ok := cfg.(BusConfigurer); ok {
		c.ConfigureBus(&bc)
	}
	conn, err := bus.Connect(ctx, bc)
	if err != nil {
		return err
	}
	h.conn = conn
	h.group.Go("bus", func(ctx context.Context) error {
		<-ctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.cfg.ShutdownTimeout/2)
		defer cancel()
		return conn.Close(stop)
	})
	h.health.AddCheck("bus", func(context.Context) error { return conn.Err() })
	return nil
}

func (h *host) deps() Deps {
	return Deps{
		Service: h.id.Service, Node: h.cfg.Node, Instance: h.cfg.Instance, Version: Version, Bus: h.conn, Log: h.log,
		Registry: h.registry, Events: h.recorder(), GRPC: h.grpc, Ops: h.ops, host: h,
	}
}

func (h *host) recorder() *events.Recorder {
	r := events.NewRecorder(&eventStream{conn: h.conn}, h.id.Service, h.cfg.Node, nil)
	h.registry.MustRegister(events.Metrics(r)...)
	h.group.Go("events", r.Run)
	return r
}

// eventStream opens the stream of Events when the first one is published, so that no start waits for it.
type eventStream struct {
	conn   *bus.Conn
	mu     sync.Mutex
	stream *bus.Stream
}

// Publish publishes one event.
func (e *eventStream) Publish(ctx context.Context, m bus.Message) (seq uint64, duplicate bool, err error) {
	s, err := e.open(ctx)
	if err != nil {
		return 0, false, err
	}
	return s.Publish(ctx, m)
}

func (e *eventStream) open(ctx context.Context) (*bus.Stream, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stream != nil {
		return e.stream, nil
	}
	s, err := bus.OpenStream(ctx, e.conn, bus.Events)
	if err != nil {
		return nil, fmt.Errorf("open the stream of events: %w", err)
	}
	e.stream = s
	return s, nil
}

func (h *host) serve() {
	h.served.Do(func() {
		h.group.Go("grpc", func(ctx context.Context) error { return h.grpc.Serve(ctx, h.grpcLis, h.cfg.ShutdownTimeout/2) })
		h.group.Go("registration", h.register)
		h.serving.Store(true)
		if h.opts.Addresses != nil {
			h.opts.Addresses(h.grpcAddr, h.httpAddr)
		}
	})
}

// register keeps the replica registered and its readiness current.
func (h *host) register(ctx context.Context) error {
	ready, message := h.health.Ready(ctx)
	h.grpc.SetReady(ready)
	reg, err := h.conn.Register(ctx, &podplanev1.ServiceRecord{
		Service: h.id.Service, Node: h.cfg.Node, Instance: h.cfg.Instance, Version: Version,
		GrpcAddress: h.grpcAddr, HttpAddress: h.httpAddr, StartedAt: timestamppb.New(h.started),
		Pid: int64(os.Getpid()), Ready: ready, Message: message,
	})
	if err != nil {
		return err
	}
	h.shardsMu.Lock()
	h.reg = reg
	h.showShards()
	h.shardsMu.Unlock()
	defer func() {
		h.shardsMu.Lock()
		h.reg = nil
		h.shardsMu.Unlock()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if err := reg.Close(stop); err != nil {
			h.log.Debug("registration not taken back; it expires", "error", err)
		}
	}()
	h.log.Info("serving", "grpc.address", h.grpcAddr, "http.address", h.httpAddr)
	return h.watchReadiness(ctx, func(ready bool, message string) {
		reg.Update(func(r *podplanev1.ServiceRecord) { r.Ready, r.Message = ready, message })
	})
}

func (h *host) setShards(shards []int) {
	h.shardsMu.Lock()
	defer h.shardsMu.Unlock()
	h.shards = make([]uint32, len(shards))
	for i, n := range shards {
		h.shards[i] = uint32(n)
	}
	h.showShards()
}

// showShards is called with shardsMu held.
func (h *host) showShards() {
	if shards := h.shards; h.reg != nil {
		h.reg.Update(func(r *podplanev1.ServiceRecord) { r.Shards = shards })
	}
}

// watchReadiness says each change of readiness: to the health service, the log and tell. A change of the connection to the bus is seen
// at once.
func (h *host) watchReadiness(ctx context.Context, tell func(ready bool, message string)) error {
	wake := make(chan struct{}, 1)
	stop := h.conn.OnState(func(bool) {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	defer stop()
	var wasReady bool
	var said string
	for pause := minReadyPause; ; {
		ready, message := h.health.Ready(ctx)
		if ready != wasReady || message != said {
			h.grpc.SetReady(ready)
			h.log.Info("readiness changed", "ready", ready, "reason", message)
			tell(ready, message)
		}
		if ready != wasReady {
			pause = minReadyPause
		}
		wasReady, said = ready, message
		pause = min(2*pause, maxUnreadyPause)
		if ready {
			pause = readyPause
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}
