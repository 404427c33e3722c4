package gateway

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/reload"
	"github.com/podplane/podplane/services/gateway/internal/access"
	"github.com/podplane/podplane/services/gateway/internal/audit"
	"github.com/podplane/podplane/services/gateway/internal/front"
	"github.com/podplane/podplane/services/gateway/internal/limit"
)

var (
	errPeer      = errors.New("must be an address such as 10.0.0.7, a network such as 10.0.0.0/8, or gateway")
	errEverybody = errors.New("is everybody; leave acceptFrom out and turn TLS and authentication on")
)

// routesFile lists the routes of this network namespace.
const routesFile = "/proc/net/route"

// listen opens the front door: TCP, for some peers only where that is asked for, and TLS where there is a certificate.
func listen(cfg *Config, log *slog.Logger) (net.Listener, *tls.Config, error) {
	var secure *tls.Config
	if cfg.TLSCert != "" {
		var err error
		if secure, err = serverTLS(cfg, log); err != nil {
			return nil, nil, err
		}
	}
	peers, err := acceptedPeers(cfg.AcceptFrom)
	if err != nil {
		return nil, nil, err
	}
	lis, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, nil, fmt.Errorf("listen for the front door: %w", err)
	}
	if len(peers) > 0 {
		lis = &peerListener{Listener: lis, peers: peers, log: log}
	}
	if secure != nil {
		lis = tls.NewListener(lis, secure)
	}
	return lis, secure, nil
}

// serverTLS reads the certificate, anew when its files change. Client certificates are asked for and judged with the request, so that a bad
// one gets an answer that says so.
func serverTLS(cfg *Config, log *slog.Logger) (*tls.Config, error) {
	pair, err := reload.Open(func(c [][]byte) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(c[0], c[1])
		return &pair, err
	}, unusable(log), cfg.TLSCert, cfg.TLSKey)
	if err != nil {
		return nil, fault.New(fault.Invalid, "read the front door's certificate: %w", err)
	}
	secure := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.Get(), nil },
	}
	if cfg.ClientCA != "" {
		secure.ClientAuth = tls.RequestClientCert
	}
	return secure, nil
}

func unusable(log *slog.Logger) func(error) {
	return func(err error) {
		log.Error("a changed file can't be used; what was read before stays in use", "error", err)
	}
}

// peerListener closes connections of others at once.
type peerListener struct {
	net.Listener
	peers []netip.Prefix
	log   *slog.Logger
}

// Accept gives the next connection of a peer that may connect.
func (l *peerListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if a, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil && contains(l.peers, a.Addr()) {
			return c, nil
		}
		l.log.Debug("connection refused: acceptFrom does not name its address", "client", c.RemoteAddr().String())
		_ = c.Close() // it is not wanted
	}
}

func acceptedPeers(from []string) ([]netip.Prefix, error) {
	if len(from) == 0 {
		return nil, nil
	}
	// This host's own processes are let in too: health checks.
	peers := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	for _, text := range from {
		if text != hostPeer {
			p, err := parsePeer(text)
			if err != nil {
				return nil, fault.New(fault.Invalid, "acceptFrom %q: %w", text, err)
			}
			peers = append(peers, p)
			continue
		}
		f, err := os.Open(routesFile)
		if err != nil {
			return nil, fmt.Errorf("find the default route, for acceptFrom: %w", err)
		}
		a, err := defaultGateway(f)
		_ = f.Close() // only read
		if err != nil {
			return nil, err
		}
		peers = append(peers, netip.PrefixFrom(a, a.BitLen()))
	}
	return peers, nil
}

// defaultGateway reads the kernel's table of IPv4 routes.
func defaultGateway(r io.Reader) (netip.Addr, error) {
	const (
		destination, gateway, flags, mask = 1, 2, 3, 7

		isUp, isGateway = 1, 2
	)
	for lines := bufio.NewScanner(r); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) <= mask || f[destination] != "00000000" || f[mask] != "00000000" {
			continue
		}
		set, err := strconv.ParseUint(f[flags], 16, 32)
		raw, hexErr := hex.DecodeString(f[gateway])
		if err != nil || hexErr != nil || len(raw) != net.IPv4len || set&isUp == 0 || set&isGateway == 0 {
			continue
		}
		var b [net.IPv4len]byte
		binary.NativeEndian.PutUint32(b[:], binary.BigEndian.Uint32(raw))
		return netip.AddrFrom4(b), nil
	}
	return netip.Addr{}, fault.New(fault.Invalid, "acceptFrom names gateway, and this network has no default route")
}

// guard makes what stands at the door.
func guard(cfg *Config, deps daemon.Deps) (front.Guard, error) {
	var g front.Guard
	if cfg.authenticates() {
		a, err := access.Open(cfg.files(), unusable(deps.Log))
		if err != nil {
			return g, err
		}
		g.Access = a
		deps.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "podplane_gateway_access_files_current", Help: "1 while the files of tokens, CAs and bindings are in use as they are, 0 while a faulty one is not.",
		}, func() float64 {
			if a.Err() != nil {
				return 0
			}
			return 1
		}))
	}
	if perSecond, burst := cfg.rate(); perSecond > 0 {
		g.Rate = limit.New(perSecond, burst)
	}
	file := cfg.auditFile()
	if file == "" {
		return g, nil
	}
	lost := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "podplane_gateway_audit_lost_total", Help: "Lines of the audit log that could not be written.",
	})
	deps.Registry.MustRegister(lost)
	log, err := audit.Open(file, audit.Options{Failed: func(err error) {
		lost.Inc()
		deps.Log.Error("audit line lost", "error", err)
	}})
	if err != nil {
		return g, err
	}
	g.Audit = log
	return g, nil
}
