package embedded_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func start(t *testing.T, o embedded.Options) *embedded.Server {
	t.Helper()
	s, err := embedded.Start(within(t), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func stop(t *testing.T, s *embedded.Server) {
	t.Helper()
	if err := s.Shutdown(within(t)); err != nil {
		t.Fatal(err)
	}
}

func TestRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]embedded.Options{
		"no directory":     {},
		"every interface":  {StoreDir: t.TempDir(), Host: "0.0.0.0"},
		"another address":  {StoreDir: t.TempDir(), Host: "192.0.2.1"},
		"a name":           {StoreDir: t.TempDir(), Host: "localhost"},
		"a file":           {StoreDir: file},
		"a key that isn't": {StoreDir: t.TempDir(), Users: []embedded.User{{PublicKey: "nonsense", Full: true}}},
	} {
		if s, err := embedded.Start(within(t), o); err == nil {
			t.Errorf("%s: started", name)
			stop(t, s)
		}
	}
}

func TestOneServerForOneDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := start(t, embedded.Options{StoreDir: dir})
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v %v", info, err)
	}
	if _, err := embedded.Start(within(t), embedded.Options{StoreDir: dir}); !fault.Is(err, fault.FailedPrecondition) {
		t.Errorf("a second server: %v", err)
	}
	if _, err := embedded.Start(within(t), embedded.Options{StoreDir: t.TempDir(), Port: s.Port()}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a second server on the port: %v", err)
	}
	stop(t, s)
	stop(t, s) // once more does nothing
	stop(t, start(t, embedded.Options{StoreDir: dir}))
}

// TestRestart finds what was stored under the real schema, on the same port.
func TestRestart(t *testing.T) {
	ctx, dir := within(t), t.TempDir()
	s := start(t, embedded.Options{StoreDir: dir})
	port := s.Port()
	key := bus.PodKey("n", "u")
	use := func(f func(*bus.Bucket[*podplanev1.PodRecord])) {
		t.Helper()
		c, err := bus.ConnectEmbedded(ctx, s, bus.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if err := bus.Provision(ctx, c); err != nil {
			t.Fatal(err)
		}
		b, err := bus.Open(ctx, c, bus.Pods)
		if err != nil {
			t.Fatal(err)
		}
		f(b)
		if err := c.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
	use(func(b *bus.Bucket[*podplanev1.PodRecord]) {
		if _, err := b.Create(ctx, key, &podplanev1.PodRecord{Name: "kept"}); err != nil {
			t.Fatal(err)
		}
	})
	stop(t, s)
	s = start(t, embedded.Options{StoreDir: dir, Port: port})
	if s.Port() != port {
		t.Errorf("port %d, was %d", s.Port(), port)
	}
	use(func(b *bus.Bucket[*podplanev1.PodRecord]) {
		if e, err := b.Get(ctx, key); err != nil || e.Value.GetName() != "kept" {
			t.Errorf("got %+v %v", e, err)
		}
	})
	stop(t, s)
}

func TestInMemoryLeavesNothing(t *testing.T) {
	s := start(t, embedded.Options{InMemory: true})
	dir := embedded.StoreDir(s)
	if _, err := os.Stat(dir); err != nil {
		t.Fatal(err)
	}
	stop(t, s)
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", dir, err)
	}
}
