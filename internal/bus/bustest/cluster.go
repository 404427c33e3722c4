package bustest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
)

// clusterSize is how many servers a cluster has: the fewest of which one can be missed.
const clusterSize = 3

// Cluster is three servers for one test, which keep three copies of everything. Each can be stopped and started again on its directory.
type Cluster struct {
	t       testing.TB
	options []embedded.Options
	servers []*embedded.Server
}

// NewCluster starts a cluster on which every bucket and stream exists. It ends with the test.
func NewCluster(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{t: t, options: make([]embedded.Options, clusterSize), servers: make([]*embedded.Server, clusterSize)}
	addresses := freeAddresses(t, 2*clusterSize)
	clients, routes := addresses[:clusterSize], addresses[clusterSize:]
	for i := range clusterSize {
		var others []string
		for j, r := range routes {
			if j != i {
				others = append(others, r.String())
			}
		}
		c.options[i] = embedded.Options{
			Name: fmt.Sprintf("server-%d", i), StoreDir: filepath.Join(t.TempDir(), "nats"), Port: clients[i].Port,
			Cluster: &embedded.Cluster{Name: "test", Host: "127.0.0.1", Port: routes[i].Port, Routes: others},
		}
		c.Start(i)
	}
	t.Cleanup(func() {
		for i := range c.servers {
			c.Stop(i)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	admin := c.Connect("", "")
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := bus.Provision(ctx, admin)
		if err == nil {
			return c
		}
		select {
		case <-tick.C: // no leader has been elected yet
		case <-ctx.Done():
			t.Fatalf("the cluster takes no stream: %v", err)
		}
	}
}

// freeAddresses gives addresses on which nobody listens now, all different.
func freeAddresses(t testing.TB, n int) []*net.TCPAddr {
	t.Helper()
	var list []*net.TCPAddr
	for range n {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = lis.Close() }()
		address, ok := lis.Addr().(*net.TCPAddr)
		if !ok {
			t.Fatalf("a listener of TCP has the address %v", lis.Addr())
		}
		list = append(list, address)
	}
	return list
}

// Start starts a server that does not run.
func (c *Cluster) Start(i int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), timeout)
	defer cancel()
	s, err := embedded.Start(ctx, c.options[i])
	if err != nil {
		c.t.Fatal(err)
	}
	c.servers[i] = s
}

// Stop stops a server if it runs.
func (c *Cluster) Stop(i int) {
	c.t.Helper()
	if c.servers[i] == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := c.servers[i].Shutdown(ctx); err != nil {
		c.t.Error(err)
	}
	c.servers[i] = nil
}

// Connect connects over TCP, to any of the servers, as a replica of a service on a node ("" is allowed to own everything).
func (c *Cluster) Connect(service, node string) *bus.Conn {
	c.t.Helper()
	urls := make([]string, clusterSize)
	for i, o := range c.options {
		urls[i] = fmt.Sprintf("nats://127.0.0.1:%d", o.Port)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), timeout)
	defer cancel()
	conn, err := bus.Connect(ctx, bus.Config{
		URL: strings.Join(urls, ","), Service: service, Node: node, Instance: "test", Replicas: clusterSize, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		if err := conn.Close(ctx); err != nil {
			c.t.Error(err)
		}
	})
	return conn
}
