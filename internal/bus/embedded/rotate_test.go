package embedded_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// TestRotateSeeds makes the services' keys anew under their connections: each comes back with its new key and the same rights, and the former open nothing.
func TestRotateSeeds(t *testing.T) {
	ctx := within(t)
	keys, former := t.TempDir(), t.TempDir()
	users, err := embedded.ServiceUsers(keys, "n")
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, embedded.Options{InMemory: true, Users: users})
	defer stop(t, s)
	conns := map[string]*bus.Conn{}
	for _, service := range append(bus.AllServices(), embedded.AdminKey) {
		name := service
		if service == embedded.AdminKey {
			name = ""
		}
		c, err := bus.Connect(ctx, bus.Config{URL: s.ClientURL(), Service: name, Node: "n", Instance: "1", NKeySeedFile: embedded.SeedFile(keys, service)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close(ctx) }()
		conns[service] = c
		seed, err := os.ReadFile(embedded.SeedFile(keys, service))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(embedded.SeedFile(former, service), seed, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := bus.Provision(ctx, conns[embedded.AdminKey]); err != nil {
		t.Fatal(err)
	}
	lost := make(chan string, 2*len(conns))
	for name, c := range conns {
		defer c.OnState(func(connected bool) {
			if !connected {
				lost <- name
			}
		})()
	}
	if err := embedded.RotateSeeds(keys); err != nil {
		t.Fatal(err)
	}
	if users, err = embedded.ServiceUsers(keys, "n"); err != nil {
		t.Fatal(err)
	}
	if err := s.SetUsers(users); err != nil {
		t.Fatal(err)
	}
	for range conns {
		select {
		case <-lost:
		case <-ctx.Done():
			t.Fatal("connections with the former keys go on")
		}
	}
	pods, err := bus.Open(ctx, conns[bus.ServiceSyncd], bus.Pods) // waits until it is back
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Put(ctx, bus.PodKey("n", "u"), &podplanev1.PodRecord{Name: "x"}); err != nil {
		t.Error(err)
	}
	theirs, err := bus.Open(ctx, conns[bus.ServicePleg], bus.Pods)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := theirs.Put(ctx, bus.PodKey("n", "u"), &podplanev1.PodRecord{}); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("pleg writes pods with its new key: %v", err)
	}
	for _, service := range append(bus.AllServices(), embedded.AdminKey) {
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		if c, err := bus.Connect(short, bus.Config{URL: s.ClientURL(), Service: service, NKeySeedFile: embedded.SeedFile(former, service)}); !fault.Is(err, fault.Unavailable) {
			t.Errorf("the former key of %s: %v", service, err)
			_ = c.Close(ctx)
		}
		cancel()
	}
	if err := s.SetUsers(nil); !fault.Is(err, fault.Invalid) {
		t.Errorf("no users: %v", err)
	}
}

// TestChangeOfTheKeyIsFinished starts on what a change of the key leaves that is interrupted at each of its moments.
func TestChangeOfTheKeyIsFinished(t *testing.T) {
	for name, c := range map[string]struct {
		copied bool // the records are those with the new key
		moved  bool // the former key is out of its place already
		want   string
	}{
		"before the exchange": {false, false, "old"},
		"after the exchange":  {true, false, "new"},
		"between the keys":    {true, true, "new"},
	} {
		dir := t.TempDir()
		key := filepath.Join(dir, "nats.key")
		store := filepath.Join(dir, "nats")
		put(t, embedded.Options{StoreDir: store, KeyFile: key}, "old")
		next := filepath.Join(dir, "nats.next")
		put(t, embedded.Options{StoreDir: next, KeyFile: embedded.NextKey(key)}, "new")
		if c.copied {
			for _, move := range [][2]string{{store, store + ".x"}, {next, store}} {
				if err := os.Rename(move[0], move[1]); err != nil {
					t.Fatal(err)
				}
			}
		}
		if c.moved {
			if err := os.Rename(key, embedded.FormerKeys(key)+"x"); err != nil {
				t.Fatal(err)
			}
		}
		if err := embedded.CheckKey(store, key); err != nil {
			t.Errorf("%s: a look says %v", name, err)
		}
		has(t, embedded.Options{StoreDir: store, KeyFile: key}, c.want)
		if err := embedded.CheckKey(store, key); err != nil {
			t.Errorf("%s: a look afterwards says %v", name, err)
		}
		kept, err := filepath.Glob(embedded.FormerKeys(key) + "*")
		if err != nil || (len(kept) == 1) != c.copied {
			t.Errorf("%s: former keys %v", name, kept)
		}
		for what, k := range map[string]string{"gone": filepath.Join(dir, "none"), "not named": ""} {
			if err := embedded.CheckKey(store, k); !fault.Is(err, fault.FailedPrecondition) {
				t.Errorf("%s: a key that is %s: %v", name, what, err)
			}
		}
	}
}
