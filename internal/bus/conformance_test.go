package bus_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/bustest"
	"github.com/podplane/podplane/internal/bus/conformance"
	"github.com/podplane/podplane/internal/bus/embedded"
)

const patient = 30 * time.Second

type inMemory struct{ *bustest.Bus }

func (s inMemory) Connect(t *testing.T, cfg bus.Config) *bus.Conn {
	return s.ConnectConfig(t, cfg)
}

func TestConformanceInMemory(t *testing.T) {
	conformance.Run(t, inMemory{bustest.NewEmpty(t)})
}

type overTCP struct{ url string }

func (s overTCP) Connect(t *testing.T, cfg bus.Config) *bus.Conn {
	t.Helper()
	cfg.URL = s.url
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	c, err := bus.Connect(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestConformanceTCP(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	s, err := embedded.Start(ctx, embedded.Options{StoreDir: t.TempDir(), KeyFile: filepath.Join(t.TempDir(), "key"), SyncPeriodic: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	conformance.Run(t, overTCP{s.ClientURL()})
}
