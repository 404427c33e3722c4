// Package bustest gives tests a bus of their own: a real server in the test's
// process with its streams in memory, and connections without sockets.
package bustest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
)

const timeout = 20 * time.Second

// Bus is a bus for one test.
type Bus struct {
	t      testing.TB
	server *embedded.Server
}

// New starts a bus on which every bucket and stream exists. It ends with the test.
func New(t testing.TB) *Bus {
	t.Helper()
	b := NewEmpty(t)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := bus.Provision(ctx, b.Connect("", "")); err != nil {
		t.Fatal(err)
	}
	return b
}

// NewEmpty starts a bus without buckets and streams.
func NewEmpty(t testing.TB) *Bus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	s, err := embedded.Start(ctx, embedded.Options{InMemory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	return &Bus{t: t, server: s}
}

// Server is the server itself.
func (b *Bus) Server() *embedded.Server { return b.server }

// Connect connects as a replica of a service on a node ("" is allowed to own everything).
func (b *Bus) Connect(service, node string) *bus.Conn {
	b.t.Helper()
	return b.ConnectConfig(b.t, bus.Config{Service: service, Node: node, Instance: "test"})
}

// ConnectConfig connects without a socket as cfg says. The connection ends with t.
func (b *Bus) ConnectConfig(t testing.TB, cfg bus.Config) *bus.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c, err := bus.ConnectEmbedded(ctx, b.server, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return c
}
