package rpc_test

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pki"
	"github.com/podplane/podplane/internal/rpc"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// TestOnlyProcessesOfThisPodplaneConnect calls a server that asks for certificates as who has one, and as others.
func TestOnlyProcessesOfThisPodplaneConnect(t *testing.T) {
	dir, foreign := t.TempDir(), t.TempDir()
	for _, d := range []string{dir, foreign} {
		if _, err := pki.Ensure(d, pki.Options{Processes: []string{"prober", "gateway"}}); err != nil {
			t.Fatal(err)
		}
	}
	load := func(dir, name string) *pki.Process {
		p, err := pki.Load(dir, name, nil)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := rpc.NewServerTLS(slog.New(slog.DiscardHandler), load(dir, "prober").Server())
	s.Identify("prober", "n1")
	podplanev1.RegisterProbeServiceServer(s, &probes{list: answers})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, lis, time.Second) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	d := &directory{}
	d.set(replica(lis.Addr().String(), "n1", 0))
	for what, c := range map[string]struct {
		tls *tls.Config
		ok  bool
	}{
		"gateway":                    {load(dir, "gateway").Client("prober"), true},
		"plain":                      {nil, false},
		"another Podplane's gateway": {load(foreign, "gateway").Client("prober"), false},
		"looking for another":        {load(dir, "gateway").Client("syncd"), false},
	} {
		cc, err := rpc.DialWith(t.Context(), d, "prober", "n1", rpc.Options{WaitForReady: time.Second, TLS: c.tls})
		if err != nil {
			t.Fatal(err)
		}
		if err := list(t, cc); (err == nil) != c.ok || err != nil && !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s: %v", what, err)
		}
		if err := cc.Close(); err != nil {
			t.Error(err)
		}
	}
}
