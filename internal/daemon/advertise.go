package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/podplane/podplane/internal/fault"
)

// reachable gives the host:port under which others reach what listens on an address: Advertise if it is set, the address itself unless
// that means all addresses of this host, and otherwise the one that packets to NATS leave from, as the other services are where it is.
func (c *Config) reachable(ctx context.Context, listening net.Addr) (string, error) {
	host, port, err := net.SplitHostPort(listening.String())
	if err != nil {
		return "", fmt.Errorf("address that is listened on: %w", err)
	}
	if c.Advertise != "" {
		return net.JoinHostPort(c.Advertise, port), nil
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
		return listening.String(), nil
	}
	facing, err := c.facingNATS(ctx)
	if err != nil {
		return "", fmt.Errorf("find the address that other services reach; --advertise names it: %w", err)
	}
	return net.JoinHostPort(facing, port), nil
}

// facingNATS asks the routing table; nothing is sent.
func (c *Config) facingNATS(ctx context.Context) (string, error) {
	var errs []error
	for _, text := range strings.Split(c.NATSURL, ",") {
		u, err := url.Parse(strings.TrimSpace(text))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		port := u.Port()
		if port == "" {
			port = "4222"
		}
		var d net.Dialer
		conn, err := d.DialContext(ctx, "udp", net.JoinHostPort(u.Hostname(), port))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		host, _, err := net.SplitHostPort(conn.LocalAddr().String())
		_ = conn.Close() // it had no peer
		if err == nil {
			return host, nil
		}
		errs = append(errs, err)
	}
	return "", fault.Wrap(fault.Unavailable, errors.Join(errs...))
}

// writeAddress tells where /healthz is, as an address of this host, to who looks after the process.
func (c *Config) writeAddress(listening net.Addr) error {
	if c.AddressFile == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(listening.String())
	if err != nil {
		return fmt.Errorf("address that is listened on: %w", err)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	if err := os.Remove(c.AddressFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write the address: %w", err)
	}
	if err := os.WriteFile(c.AddressFile, []byte(net.JoinHostPort(host, port)+"\n"), 0o644); err != nil {
		return fmt.Errorf("write the address: %w", err)
	}
	return nil
}
