// Package embedded runs a NATS server with JetStream in this process, for
// hosts that have none and for tests.
//
// The server listens on a loopback address, and on others only with TLS and users; several make a cluster (Options.Cluster). It owns its store directory
// (mode 0700, locked against a second server) from Start to the return of
// Shutdown. With a key file everything in it is encrypted (ChaCha20-Poly1305);
// who loses the key loses the records. With SyncPeriodic unset every acknowledged message is synced to
// disk before the acknowledgement, so that neither SIGKILL nor a power cut
// loses it; a restart on the same directory serves the same records.
package embedded

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/podplane/podplane/internal/fault"
)

// RandomPort as Options.Port lets the kernel choose.
const RandomPort = server.RANDOM_PORT

// Options says where and how the server runs. The zero value needs only a StoreDir or InMemory.
type Options struct {
	// StoreDir holds the streams; it is made with mode 0700.
	StoreDir string
	// InMemory keeps the streams in memory: in a directory of their own on a tmpfs, which Shutdown removes.
	InMemory bool
	// Host is the address to listen on, by default 127.0.0.1; one that other hosts reach needs TLS and Users.
	Host string
	// Port is the TCP port; 0 and RandomPort choose a free one.
	Port int
	// SyncPeriodic syncs every two minutes instead of before each acknowledgement.
	SyncPeriodic bool
	// KeyFile holds the key by which the streams are encrypted on disk; it is made where it is missing. What a store held before is encrypted at
	// the start. Empty: in the clear. A store that is encrypted starts with its key only.
	KeyFile string
	// TLS takes encrypted connections only; nil: plain ones.
	TLS *tls.Config
	// Users may connect; without any everybody on this host may, and do anything.
	Users []User
	// MaxPayload bounds one message, default 8 MiB.
	MaxPayload int32
	// MaxMemory and MaxStore bound streams in memory and on disk; defaults 256 MiB and no bound but the streams' own.
	MaxMemory, MaxStore int64
	// Cluster makes the server one of several that keep copies of the streams; nil: it is alone.
	Cluster *Cluster
	// Name names the server in logs, and in its cluster, where it has to be unique and must never change.
	Name string
	// Logger takes the server's messages from warnings up, and notices at level debug; nil discards them.
	Logger *slog.Logger
}

// Cluster is how a server finds the others that keep copies of the streams. All its servers need the same Name and the same users.
type Cluster struct {
	// Name is the cluster's.
	Name string
	// Host and Port are where the others connect; Host is needed, one that other hosts reach needs TLS.
	Host string
	Port int
	// Routes are the others as host:port; one that is up is enough to find the rest.
	Routes []string
	// TLS is for both ends of the connections among the servers.
	TLS *tls.Config
}

func (c *Cluster) options() (server.ClusterOpts, []*url.URL, error) {
	var o server.ClusterOpts
	if c.Name == "" || strings.ContainsAny(c.Name, " \t\r\n") {
		return o, nil, fault.New(fault.Invalid, "a cluster of bus servers can't be called %q", c.Name)
	}
	if c.TLS == nil && !isLoopback(c.Host) {
		return o, nil, fault.New(fault.Invalid, "without TLS the bus servers of a cluster listen for each other on loopback addresses only, not on %q", c.Host)
	}
	o = server.ClusterOpts{
		Name: c.Name, Host: c.Host, Port: c.Port, TLSConfig: c.TLS, TLSTimeout: tlsTimeout, ConnectBackoff: true, ConnectRetries: math.MaxInt32,
		PingInterval: routePing, MaxPingsOut: routePingsOut,
	}
	var routes []*url.URL
	for _, r := range c.Routes {
		if _, _, err := net.SplitHostPort(r); err != nil {
			return o, nil, fault.New(fault.Invalid, "the bus server %q of the cluster: want host:port: %w", r, err)
		}
		routes = append(routes, &url.URL{Scheme: "nats-route", Host: r})
	}
	return o, routes, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// User is an account that authenticates by an nkey.
type User struct {
	// PublicKey is the nkey's public part.
	PublicKey string
	// Publish and Subscribe are the allowed subjects.
	Publish, Subscribe []string
	// Full lifts all restrictions.
	Full bool
}

const (
	defaultMaxPayload = 8 << 20
	defaultMaxMemory  = 256 << 20
	unboundedStore    = 1 << 50
	readyPoll         = 2 * time.Millisecond
	maxConnections    = 1024
	tlsTimeout        = 5 // seconds, of a handshake
	// a server that is cut off is noticed after routePingsOut of these
	routePing     = 2 * time.Second
	routePingsOut = 2
)

// Server is a running server.
type Server struct {
	ns   *server.Server
	opts *server.Options // as the server has them, to change some
	lock *os.File
	temp string // to remove

	once  sync.Once
	ended chan struct{}
}

// Start starts a server and waits until it serves, or ctx ends.
func Start(ctx context.Context, o Options) (_ *Server, err error) {
	s := &Server{ended: make(chan struct{})}
	defer func() {
		if err != nil {
			s.release()
		}
	}()
	if o.InMemory {
		if s.temp, err = memoryDir(); err != nil {
			return nil, err
		}
		o.StoreDir, o.KeyFile, o.SyncPeriodic = s.temp, "", true
	}
	so, err := o.server()
	if err != nil {
		return nil, err
	}
	if s.lock, err = lockDir(o.StoreDir); err != nil {
		return nil, err
	}
	if so.JetStreamKey, err = storeKey(o.StoreDir, o.KeyFile); err != nil {
		return nil, err
	}
	s.opts = so.Clone()
	if s.ns, err = server.NewServer(so); err != nil {
		return nil, fault.New(fault.Invalid, "configure the bus server: %w", err)
	}
	l := newLogger(o.Logger)
	s.ns.SetLoggerV2(l, false, false, false)
	go s.ns.Start()
	if err := s.ready(ctx, l); err != nil {
		s.ns.Shutdown()
		s.ns.WaitForShutdown()
		return nil, fmt.Errorf("start the bus server on %s: %w", o.StoreDir, err)
	}
	return s, nil
}

func (o Options) server() (*server.Options, error) {
	if o.StoreDir == "" {
		return nil, fault.New(fault.Invalid, "the bus server needs a store directory")
	}
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	if (o.TLS == nil || len(o.Users) == 0) && !isLoopback(o.Host) {
		return nil, fault.New(fault.Invalid, "without TLS and users the bus server listens on loopback addresses only, not on %q", o.Host)
	}
	if o.Port == 0 {
		o.Port = RandomPort
	}
	if o.MaxPayload <= 0 {
		o.MaxPayload = defaultMaxPayload
	}
	if o.MaxMemory <= 0 {
		o.MaxMemory = defaultMaxMemory
	}
	if o.MaxStore <= 0 {
		// The streams' own bounds count; a sum of bounds above the free space must not refuse their creation.
		o.MaxStore = unboundedStore
	}
	so := &server.Options{
		ServerName: o.Name, Host: o.Host, Port: o.Port, NoSigs: true, MaxConn: maxConnections,
		JetStream: true, StoreDir: o.StoreDir, SyncAlways: !o.SyncPeriodic,
		JetStreamMaxMemory: o.MaxMemory, JetStreamMaxStore: o.MaxStore, MaxPayload: o.MaxPayload,
		JetStreamCipher: server.ChaCha, TLSConfig: o.TLS, TLS: o.TLS != nil, TLSTimeout: tlsTimeout,
		DisableJetStreamBanner: true, MaxClosedClients: 16, NoFastProducerStall: true,
	}
	var err error
	if o.Cluster != nil {
		if so.Cluster, so.Routes, err = o.Cluster.options(); err != nil {
			return nil, err
		}
	}
	so.Nkeys, err = nkeyUsers(o.Users)
	return so, err
}

func nkeyUsers(users []User) ([]*server.NkeyUser, error) {
	var list []*server.NkeyUser
	for _, u := range users {
		if !nkeys.IsValidPublicUserKey(u.PublicKey) {
			return nil, fault.New(fault.Invalid, "a user of the bus server has the public key %q, which is no user's nkey", u.PublicKey)
		}
		n := &server.NkeyUser{Nkey: u.PublicKey}
		if !u.Full {
			n.Permissions = &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: u.Publish},
				Subscribe: &server.SubjectPermission{Allow: u.Subscribe},
			}
		}
		list = append(list, n)
	}
	return list, nil
}

// SetUsers replaces those who may connect, of a server that was started with some. Connections of users that are not among them any more end.
// It is called by one goroutine at a time.
func (s *Server) SetUsers(users []User) error {
	if len(users) == 0 {
		return fault.New(fault.Invalid, "a bus server without users would let everybody in")
	}
	next, err := nkeyUsers(users)
	if err != nil {
		return err
	}
	o := s.opts.Clone()
	o.Nkeys = next
	if err := s.ns.ReloadOptions(o); err != nil {
		return fmt.Errorf("replace the users of the bus server: %w", err)
	}
	return nil
}

// ready waits until clients are served.
func (s *Server) ready(ctx context.Context, l *logger) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		if err := l.fatal(); err != nil {
			return err
		}
		if s.ns.Running() && s.ns.Addr() != nil && s.ns.JetStreamEnabled() {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ClientURL is where clients connect.
func (s *Server) ClientURL() string { return "nats://" + s.ns.Addr().String() }

// ClusterAddress is where other servers of the cluster connect; empty without one.
func (s *Server) ClusterAddress() string {
	if a := s.ns.ClusterAddr(); a != nil {
		return a.String()
	}
	return ""
}

// Port is the TCP port that it listens on.
func (s *Server) Port() int {
	a, ok := s.ns.Addr().(*net.TCPAddr)
	if !ok {
		return 0
	}
	return a.Port
}

// InProcessConn makes a connection without a socket; see bus.ConnectEmbedded.
func (s *Server) InProcessConn() (net.Conn, error) {
	c, err := s.ns.InProcessConn()
	if err != nil {
		return nil, fmt.Errorf("connect to the bus server in this process: %w", err)
	}
	return c, nil
}

// Shutdown stops the server and gives its directory back. When ctx ends first
// it goes on in the background.
func (s *Server) Shutdown(ctx context.Context) error {
	go s.once.Do(func() {
		s.ns.Shutdown()
		s.ns.WaitForShutdown()
		s.release()
		close(s.ended)
	})
	select {
	case <-s.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop the bus server: %w", ctx.Err())
	}
}

func (s *Server) release() {
	if s.lock != nil {
		_ = s.lock.Close()
	}
	if s.temp != "" {
		_ = os.RemoveAll(s.temp)
	}
}

// memoryDir makes a directory on a tmpfs where there is one.
func memoryDir() (string, error) {
	for _, parent := range []string{"/dev/shm", ""} {
		if dir, err := os.MkdirTemp(parent, "podplane-bus-"); err == nil {
			return dir, nil
		}
	}
	return "", fault.New(fault.Unavailable, "no place for the bus server's memory: neither /dev/shm nor %s takes a directory", os.TempDir())
}

// lockDir makes the directory and locks it, as two servers on one would destroy it.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the bus server's directory: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the bus server's directory private: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the bus server's directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fault.New(fault.FailedPrecondition, "another bus server uses %s", dir)
		}
		return nil, fmt.Errorf("lock the bus server's directory %s: %w", dir, err)
	}
	return f, nil
}
