package harness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// Cluster is a cluster of NATS servers, one on each host of a network, with TLS and with keys for each node.
type Cluster struct {
	network     *Network
	dir, binary string
	hosts       []string

	mu      sync.Mutex
	running map[string]*busServer
}

type busServer struct {
	cmd  *exec.Cmd
	log  *os.File
	done chan struct{}
}

// NewCluster makes certificates and keys in a directory; Start starts the servers.
func NewCluster(network *Network, dir, binary string, hosts ...string) (*Cluster, error) {
	c := &Cluster{network: network, dir: dir, binary: binary, hosts: hosts, running: map[string]*busServer{}}
	for _, args := range [][]string{
		{"certs", "--dir", c.tls()},
		{"nats", "keys", "--keys-dir", c.keys(), "--nodes", strings.Join(hosts, ",")},
	} {
		if out, err := exec.Command(binary, args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("podplane %s: %w: %s", args[0], err, out)
		}
	}
	return c, nil
}

func (c *Cluster) tls() string  { return filepath.Join(c.dir, "tls") }
func (c *Cluster) keys() string { return filepath.Join(c.dir, "keys") }

func (c *Cluster) on(host, port string) string {
	return net.JoinHostPort(c.network.Address(host), port)
}

// UpArgs are what `podplane up` and `podplane down` need on a host to be a node on this bus.
func (c *Cluster) UpArgs(host string) []string {
	urls := make([]string, len(c.hosts))
	for i, h := range c.hosts {
		urls[i] = "nats://" + c.on(h, "4222")
	}
	return []string{
		"--nats-url", strings.Join(urls, ","), "--nats-keys-dir", filepath.Join(c.keys(), host), "--bus-replicas", "3",
		"--tls-dir", c.tls(), "--address", c.network.Address(host),
	}
}

// Start starts the server of a host. It is in the cluster as soon as another one is there.
func (c *Cluster) Start(host string) error {
	var routes []string
	for _, h := range c.hosts {
		if h != host {
			routes = append(routes, c.on(h, "6222"))
		}
	}
	log, err := os.OpenFile(filepath.Join(c.dir, "nats-"+host+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	cmd := InNetNS(c.network.NetNS(host), c.binary,
		"nats", "--name", host, "--listen", c.on(host, "4222"), "--store-dir", filepath.Join(c.dir, "nats-"+host),
		"--keys-dir", c.keys(), "--nodes", strings.Join(c.hosts, ","), "--tls-dir", c.tls(),
		"--cluster-listen", c.on(host, "6222"), "--routes", strings.Join(routes, ","))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		_ = log.Close()
		return fmt.Errorf("start the bus server of %s: %w", host, err)
	}
	s := &busServer{cmd: cmd, log: log, done: make(chan struct{})}
	go func() { defer close(s.done); _ = cmd.Wait() }()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running[host] = s
	return nil
}

// Kill ends the server of a host with SIGKILL.
func (c *Cluster) Kill(ctx context.Context, host string) error {
	c.mu.Lock()
	s := c.running[host]
	delete(c.running, host)
	c.mu.Unlock()
	if s == nil {
		return fmt.Errorf("no bus server runs on %s", host)
	}
	defer func() { _ = s.log.Close() }()
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill the bus server of %s: %w", host, err)
	}
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the bus server of %s did not end: %w", host, ctx.Err())
	}
}

// Logs are the last lines of the servers' logs.
func (c *Cluster) Logs() string {
	var b strings.Builder
	for _, h := range c.hosts {
		data, err := os.ReadFile(filepath.Join(c.dir, "nats-"+h+".log"))
		if err != nil {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		fmt.Fprintf(&b, "--- nats on %s\n%s\n", h, strings.Join(lines[max(0, len(lines)-30):], "\n"))
	}
	return b.String()
}

// Close ends the servers that run.
func (c *Cluster) Close(ctx context.Context) error {
	var errs []error
	for _, h := range c.hosts {
		c.mu.Lock()
		_, runs := c.running[h]
		c.mu.Unlock()
		if runs {
			errs = append(errs, c.Kill(ctx, h))
		}
	}
	return errors.Join(errs...)
}
