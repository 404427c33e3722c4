package embedded_test

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pki"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// secret is what must not be on the disk in the clear.
const secret = "correct-horse-battery-staple"

// with runs a server and gives its bucket of pods.
func with(t *testing.T, o embedded.Options, f func(context.Context, *bus.Conn, *bus.Bucket[*podplanev1.PodRecord])) {
	t.Helper()
	ctx := within(t)
	s := start(t, o)
	defer stop(t, s)
	c, err := bus.ConnectEmbedded(ctx, s, bus.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	if err := bus.Provision(ctx, c); err != nil {
		t.Fatal(err)
	}
	b, err := bus.Open(ctx, c, bus.Pods)
	if err != nil {
		t.Fatal(err)
	}
	f(ctx, c, b)
}

func put(t *testing.T, o embedded.Options, uid string) {
	t.Helper()
	with(t, o, func(ctx context.Context, _ *bus.Conn, b *bus.Bucket[*podplanev1.PodRecord]) {
		if _, err := b.Create(ctx, bus.PodKey("n", uid), &podplanev1.PodRecord{Name: secret + uid}); err != nil {
			t.Fatal(err)
		}
	})
}

func has(t *testing.T, o embedded.Options, uids ...string) {
	t.Helper()
	with(t, o, func(ctx context.Context, _ *bus.Conn, b *bus.Bucket[*podplanev1.PodRecord]) {
		for _, uid := range uids {
			if e, err := b.Get(ctx, bus.PodKey("n", uid)); err != nil || e.Value.GetName() != secret+uid {
				t.Errorf("%s: %+v %v", uid, e, err)
			}
		}
		list, err := b.List(ctx, ">")
		if err != nil || len(list) != len(uids) {
			t.Errorf("%d records, want %d: %v", len(list), len(uids), err)
		}
	})
}

// inClear lists the files below dir that hold the secret.
func inClear(t *testing.T, dir string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(secret)) {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestRecordsAreEncrypted(t *testing.T) {
	o := embedded.Options{StoreDir: t.TempDir(), KeyFile: filepath.Join(t.TempDir(), "made", "key")}
	put(t, o, "a")
	put(t, o, "b")
	has(t, o, "a", "b")
	if found := inClear(t, o.StoreDir); len(found) > 0 {
		t.Errorf("in the clear: %v", found)
	}
	if info, err := os.Stat(o.KeyFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
}

// TestStoreInTheClearIsTakenOver starts a server with a key on what one without has left.
func TestStoreInTheClearIsTakenOver(t *testing.T) {
	o := embedded.Options{StoreDir: t.TempDir()}
	put(t, o, "a")
	if len(inClear(t, o.StoreDir)) == 0 {
		t.Fatal("the test does not see what is in the clear")
	}
	o.KeyFile = filepath.Join(t.TempDir(), "key")
	has(t, o, "a")
	put(t, o, "b")
	has(t, o, "a", "b")
	if found := inClear(t, o.StoreDir); len(found) > 0 {
		t.Errorf("in the clear: %v", found)
	}
}

// TestWithoutTheKeyNothingStarts shows that nobody begins anew over records that can't be read.
func TestWithoutTheKeyNothingStarts(t *testing.T) {
	dir := t.TempDir()
	o := embedded.Options{StoreDir: t.TempDir(), KeyFile: filepath.Join(dir, "key")}
	put(t, o, "a")
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte(strings.Repeat("x", 64)), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, file := range map[string]string{"no key": "", "a missing key": filepath.Join(dir, "missing"), "another key": other} {
		wrong := o
		wrong.KeyFile = file
		if s, err := embedded.Start(within(t), wrong); !fault.Is(err, fault.FailedPrecondition) {
			t.Errorf("%s: %v", what, err)
			if err == nil {
				stop(t, s)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "missing")); !os.IsNotExist(err) {
		t.Errorf("a key was made for records that it can't read: %v", err)
	}
	has(t, o, "a")
	if err := os.Chmod(o.KeyFile, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := embedded.Start(within(t), o); !fault.Is(err, fault.Invalid) {
		t.Errorf("a key that others read: %v", err)
	}
	if err := os.WriteFile(other, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := embedded.Start(within(t), embedded.Options{StoreDir: t.TempDir(), KeyFile: other}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a short key: %v", err)
	}
}

// TestTLS has clients with and without certificates connect; those without never get as far as their key.
func TestTLS(t *testing.T) {
	dir, foreign := t.TempDir(), t.TempDir()
	for _, d := range []string{dir, foreign} {
		if _, err := pki.Ensure(d, pki.Options{Processes: []string{bus.ServiceSyncd}}); err != nil {
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
	s := start(t, embedded.Options{InMemory: true, TLS: load(dir, pki.Bus).Server()})
	defer stop(t, s)
	c, err := bus.Connect(within(t), bus.Config{URL: s.ClientURL(), Service: bus.ServiceSyncd, TLS: load(dir, bus.ServiceSyncd).Client(pki.Bus)})
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.Provision(within(t), c); err != nil {
		t.Error(err)
	}
	if err := c.Close(within(t)); err != nil {
		t.Error(err)
	}
	for what, cfg := range map[string]bus.Config{
		"plain":              {},
		"another Podplane's": {TLS: load(foreign, bus.ServiceSyncd).Client(pki.Bus)},
		"a wrong name":       {TLS: load(dir, bus.ServiceSyncd).Client("gateway")},
	} {
		cfg.URL, cfg.Service = s.ClientURL(), bus.ServiceSyncd
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		c, err := bus.Connect(ctx, cfg)
		cancel()
		if !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s: %v", what, err)
		}
		if err == nil {
			_ = c.Close(within(t))
		}
	}
}
