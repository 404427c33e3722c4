package backup_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/podplane/podplane/cmd/podplane/internal/backup"
	"github.com/podplane/podplane/cmd/podplane/internal/up"
	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

const (
	patience = time.Minute
	secret   = "correct-horse-battery-staple"
)

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// host is an empty host on which Podplane is not up.
func host(t *testing.T) backup.Access {
	dir := t.TempDir()
	return backup.Access{Host: up.Config{Root: filepath.Join(dir, "lib"), RunDir: filepath.Join(dir, "run")}}
}

// on runs a server on a host's records, and makes what is missing.
func on(t *testing.T, h up.Config, f func(context.Context, *bus.Conn)) {
	t.Helper()
	ctx := within(t)
	if err := os.MkdirAll(h.Root, 0o750); err != nil {
		t.Fatal(err)
	}
	s, err := embedded.Start(ctx, embedded.Options{StoreDir: h.BusDir(), KeyFile: h.BusKey()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Shutdown(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	}()
	c, err := bus.ConnectEmbedded(ctx, s, bus.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	}()
	if err := bus.Provision(ctx, c); err != nil {
		t.Fatal(err)
	}
	f(ctx, c)
}

func fill(t *testing.T, ctx context.Context, c *bus.Conn, pods int) {
	t.Helper()
	b, err := bus.Open(ctx, c, bus.Pods)
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		if _, err := b.Put(ctx, bus.PodKey("n", strconv.Itoa(i)), &podplanev1.PodRecord{Name: "pod" + strconv.Itoa(i), Pod: bytes.Repeat([]byte("p"), 3000)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Delete(ctx, bus.PodKey("n", "0")); err != nil {
		t.Fatal(err)
	}
	objects, err := bus.Open(ctx, c, bus.Objects)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := objects.Put(ctx, bus.ObjectKey("default", "secret", "s"), &podplanev1.ObjectRecord{Name: "s", Object: []byte(secret)}); err != nil {
		t.Fatal(err)
	}
	for spec, subject := range map[string]string{bus.StreamLifecycle: bus.LifecycleSubject("n", "1", "ContainerStarted"), bus.StreamEvents: bus.EventSubject("n", "1", "Started")} {
		s, err := bus.OpenStream(ctx, c, map[string]bus.StreamSpec{bus.StreamLifecycle: bus.Lifecycle, bus.StreamEvents: bus.Events}[spec])
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Publish(ctx, bus.Message{Subject: subject, ID: "id", Data: []byte("{}")}); err != nil {
			t.Fatal(err)
		}
	}
	leases, err := bus.Open(ctx, c, bus.Leases)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leases.Put(ctx, bus.LeaseKey(bus.ServiceSyncd, "n", "0"), &podplanev1.LeaseRecord{Holder: "former"}); err != nil {
		t.Fatal(err)
	}
}

// names gives the pods that are there, with their revisions.
func names(t *testing.T, ctx context.Context, c *bus.Conn) []string {
	t.Helper()
	b, err := bus.Open(ctx, c, bus.Pods)
	if err != nil {
		t.Fatal(err)
	}
	list, err := b.List(ctx, ">")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Value.GetName()+"@"+strconv.FormatUint(e.Revision, 10)+e.Created.String())
	}
	return out
}

// TestBackupAndRestore saves records, loses them all, and has them back: with their revisions and times, without leases, and not in the clear.
func TestBackupAndRestore(t *testing.T) {
	a := host(t)
	file := filepath.Join(t.TempDir(), "saved")
	var before []string
	on(t, a.Host, func(ctx context.Context, c *bus.Conn) {
		fill(t, ctx, c, 40)
		before = names(t, ctx, c)
	})
	m, err := backup.Save(within(t), a, file)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Streams) != len(bus.KeptStores()) || m.Schema != bus.Schema {
		t.Errorf("saved %+v", m)
	}
	data, err := os.ReadFile(file)
	if err != nil || bytes.Contains(data, []byte(secret)) || bytes.Contains(data, []byte("pppp")) {
		t.Errorf("the file is not encrypted, or can't be read: %v", err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	if _, err := backup.Save(within(t), a, file); !fault.Is(err, fault.AlreadyExists) {
		t.Errorf("a backup over another: %v", err)
	}
	// The disk is lost, the key is not.
	if err := os.RemoveAll(a.Host.BusDir()); err != nil {
		t.Fatal(err)
	}
	if r, err := backup.Restore(within(t), a, file, false); err != nil || r.Former != "" {
		t.Fatalf("%+v %v", r, err)
	}
	on(t, a.Host, func(ctx context.Context, c *bus.Conn) {
		if after := names(t, ctx, c); !slices.Equal(before, after) || len(after) != 39 {
			t.Errorf("before\n%v\nafter\n%v", before, after)
		}
		h, err := c.Holdings(ctx)
		if err != nil || h != (bus.Holdings{Pods: 39, Objects: 1, Journal: 1}) {
			t.Errorf("%v %v", h, err)
		}
		s, err := bus.OpenStream(ctx, c, bus.Lifecycle)
		if err != nil {
			t.Fatal(err)
		}
		if _, duplicate, err := s.Publish(ctx, bus.Message{Subject: bus.LifecycleSubject("n", "1", "ContainerStarted"), ID: "id", Data: []byte("{}")}); err != nil || !duplicate {
			t.Errorf("an event that the backup holds is not known any more: duplicate=%v %v", duplicate, err)
		}
		leases, err := bus.Open(ctx, c, bus.Leases)
		if err != nil {
			t.Fatal(err)
		}
		if list, err := leases.List(ctx, ">"); err != nil || len(list) != 0 {
			t.Errorf("a lease came back: %v %v", list, err)
		}
	})
}

// TestRestoreRefuses does not replace what there is, unless it is told to; then it keeps it.
func TestRestoreRefuses(t *testing.T) {
	a := host(t)
	file := filepath.Join(t.TempDir(), "saved")
	on(t, a.Host, func(ctx context.Context, c *bus.Conn) { fill(t, ctx, c, 3) })
	if _, err := backup.Save(within(t), a, file); err != nil {
		t.Fatal(err)
	}
	on(t, a.Host, func(ctx context.Context, c *bus.Conn) { fill(t, ctx, c, 7) })
	if _, err := backup.Restore(within(t), a, file, false); !fault.Is(err, fault.FailedPrecondition) || !strings.Contains(err.Error(), "6 pods") {
		t.Errorf("restored over records: %v", err)
	}
	r, err := backup.Restore(within(t), a, file, true)
	if err != nil || r.Former == "" {
		t.Fatalf("%+v %v", r, err)
	}
	on(t, a.Host, func(ctx context.Context, c *bus.Conn) {
		if got := names(t, ctx, c); len(got) != 2 {
			t.Errorf("pods %v", got)
		}
	})
	if _, err := os.Stat(filepath.Join(r.Former, "jetstream")); err != nil {
		t.Errorf("the former records are gone: %v", err)
	}
	// The former records' key is lost: whoever says so may replace what nobody can read.
	if err := os.Rename(a.Host.BusKey(), a.Host.BusKey()+".kept"); err != nil {
		t.Fatal(err)
	}
	a.Key = a.Host.BusKey() + ".kept"
	if _, err := backup.Restore(within(t), a, file, false); !fault.Is(err, fault.FailedPrecondition) {
		t.Errorf("restored over records that can't be read: %v", err)
	}
	if _, err := backup.Restore(within(t), a, file, true); err != nil {
		t.Error(err)
	}
	release, err := up.Exclusive(a.Host.RunDir)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if _, err := backup.Restore(within(t), a, file, true); err == nil || !strings.Contains(err.Error(), "up already") {
		t.Errorf("restored under a Podplane that is up: %v", err)
	}
}

// TestDamagedBackups are refused before anything is touched.
func TestDamagedBackups(t *testing.T) {
	a := host(t)
	on(t, a.Host, func(ctx context.Context, c *bus.Conn) { fill(t, ctx, c, 30) })
	for _, key := range []string{"", up.NoKey} {
		a.Key = key
		file := filepath.Join(t.TempDir(), "saved")
		if _, err := backup.Save(within(t), a, file); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		changed := bytes.Clone(data)
		changed[len(changed)/2] ^= 0x10
		for what, content := range map[string][]byte{"changed": changed, "cut": data[:len(data)/2], "cut at its end": data[:len(data)-1600], "empty": nil} {
			bad := filepath.Join(t.TempDir(), "bad")
			if err := os.WriteFile(bad, content, 0o600); err != nil {
				t.Fatal(err)
			}
			empty := host(t)
			empty.Host.EncryptionKey, empty.Key = a.Host.BusKey(), key
			if _, err := backup.Restore(within(t), empty, bad, false); !fault.Is(err, fault.Invalid) {
				t.Errorf("a backup that is %s: %v", what, err)
			}
			if _, err := os.Stat(empty.Host.BusDir()); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a backup that is %s was restored: %v", what, err)
			}
		}
	}
}

// TestBackupWhileOthersWrite takes backups from a bus on which pods and the objects that they name come all the time: each pod's object is in
// the same backup, although the two are in different streams. It restores over the wire.
func TestBackupWhileOthersWrite(t *testing.T) {
	a := host(t)
	if err := os.MkdirAll(a.Host.RunDir, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx := within(t)
	users, err := embedded.ServiceUsers(a.Host.KeysDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	s, err := embedded.Start(ctx, embedded.Options{InMemory: false, StoreDir: a.Host.BusDir(), Users: users, SyncPeriodic: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Shutdown(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	}()
	named := backup.Access{Host: up.Config{NATSURL: s.ClientURL(), RunDir: a.Host.RunDir}, Seed: embedded.SeedFile(a.Host.KeysDir(), embedded.AdminKey), Key: up.NoKey}
	c, err := bus.Connect(ctx, bus.Config{URL: s.ClientURL(), NKeySeedFile: named.Seed})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(ctx) }()
	if err := bus.Provision(ctx, c); err != nil {
		t.Fatal(err)
	}
	stop := writePairs(t, ctx, c)
	file := filepath.Join(t.TempDir(), "saved")
	if _, err := backup.Save(ctx, named, file); err != nil {
		t.Fatal(err)
	}
	stop()
	if _, err := backup.Restore(ctx, named, file, false); !fault.Is(err, fault.FailedPrecondition) {
		t.Errorf("restored over records: %v", err)
	}
	if _, err := backup.Restore(ctx, named, file, true); err != nil {
		t.Fatal(err)
	}
	checkPairs(t, ctx, c)
	registration, err := c.Register(ctx, &podplanev1.ServiceRecord{Service: bus.ServiceSyncd, Node: "n", Instance: "i"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Restore(ctx, named, file, true); !fault.Is(err, fault.FailedPrecondition) || !strings.Contains(err.Error(), "syncd/i@n") {
		t.Errorf("restored under a running service: %v", err)
	}
	if err := registration.Close(ctx); err != nil {
		t.Error(err)
	}
}

// writePairs stores an object, then a pod that names it, then deletes older ones, again and again until stop, which says that it got somewhere.
func writePairs(t *testing.T, ctx context.Context, c *bus.Conn) (stop func()) {
	t.Helper()
	pods, err := bus.Open(ctx, c, bus.Pods)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := bus.Open(ctx, c, bus.Objects)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	some := make(chan struct{})
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			name := strconv.Itoa(i)
			if _, err := objects.Put(ctx, bus.ObjectKey("d", "configmap", name), &podplanev1.ObjectRecord{Name: name}); err != nil {
				break
			}
			if _, err := pods.Put(ctx, bus.PodKey("n", name), &podplanev1.PodRecord{Name: name}); err != nil {
				break
			}
			if i == 20 {
				close(some)
			}
			// Bursts, as a host has them.
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(i%7) * 3 * time.Millisecond):
			}
		}
	})
	select {
	case <-some:
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
	return func() { cancel(); wg.Wait() }
}

func checkPairs(t *testing.T, ctx context.Context, c *bus.Conn) {
	t.Helper()
	pods, err := bus.Open(ctx, c, bus.Pods)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := bus.Open(ctx, c, bus.Objects)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pods.List(ctx, ">")
	if err != nil || len(list) < 20 {
		t.Fatalf("%d pods, %v", len(list), err)
	}
	all, err := objects.List(ctx, ">")
	if err != nil || len(all) < len(list) || len(all) > len(list)+1 {
		t.Errorf("%d objects for %d pods, which are not of one moment: %v", len(all), len(list), err)
	}
	for _, e := range list {
		if _, err := objects.Get(ctx, bus.ObjectKey("d", "configmap", e.Value.GetName())); err != nil {
			t.Errorf("pod %s without its object: %v", e.Value.GetName(), err)
		}
	}
}

// TestRotateKey encrypts the records anew: they are all there, by the new key only, and a backup of before needs the former.
func TestRotateKey(t *testing.T) {
	a := host(t)
	file := filepath.Join(t.TempDir(), "saved")
	var before []string
	on(t, a.Host, func(ctx context.Context, c *bus.Conn) {
		fill(t, ctx, c, 20)
		before = names(t, ctx, c)
	})
	if _, err := backup.Save(within(t), a, file); err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(a.Host.BusKey())
	if err != nil {
		t.Fatal(err)
	}
	former, err := backup.RotateKey(within(t), a.Host)
	if err != nil {
		t.Fatal(err)
	}
	if kept, err := os.ReadFile(former); err != nil || !bytes.Equal(kept, old) {
		t.Errorf("the former key is not kept: %v", err)
	}
	now, err := os.ReadFile(a.Host.BusKey())
	if err != nil || bytes.Equal(now, old) {
		t.Errorf("the key is the former: %v", err)
	}
	on(t, a.Host, func(ctx context.Context, c *bus.Conn) {
		if after := names(t, ctx, c); !slices.Equal(before, after) {
			t.Errorf("before\n%v\nafter\n%v", before, after)
		}
	})
	if _, err := embedded.Start(within(t), embedded.Options{StoreDir: a.Host.BusDir(), KeyFile: former}); !fault.Is(err, fault.FailedPrecondition) {
		t.Errorf("the former key still opens the records: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(a.Host.Root, "nats*")); err != nil || len(left) != 3 {
		t.Errorf("left are %v, want the records, their key, the former key", left)
	}
	if _, err := backup.Restore(within(t), a, file, true); !fault.Is(err, fault.Invalid) {
		t.Errorf("restored a backup of before by the new key: %v", err)
	}
	a.Key = former
	if _, err := backup.Restore(within(t), a, file, true); err != nil {
		t.Errorf("restore a backup of before by the former key: %v", err)
	}
	again, err := backup.RotateKey(within(t), a.Host)
	if err != nil || again == former || again == "" {
		t.Errorf("a second time: %q %v", again, err)
	}
	clear := host(t)
	clear.Host.EncryptionKey = up.NoKey
	if _, err := backup.RotateKey(within(t), clear.Host); !fault.Is(err, fault.FailedPrecondition) {
		t.Errorf("records in the clear: %v", err)
	}
	if _, err := backup.RotateKey(within(t), host(t).Host); !fault.Is(err, fault.NotFound) {
		t.Errorf("no records: %v", err)
	}
}
