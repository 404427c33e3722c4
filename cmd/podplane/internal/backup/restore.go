package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podplane/podplane/cmd/podplane/internal/records"
	"github.com/podplane/podplane/cmd/podplane/internal/up"
	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
)

// Restored says what a restore did.
type Restored struct {
	Manifest Manifest
	// Former is where the records are that were there before; empty: there were none, or the bus is not the host's own.
	Former string
}

// Restore brings a backup's records back. What the bus holds is replaced only if the caller says so. Podplane must not be up.
func Restore(ctx context.Context, a Access, file string, replace bool) (Restored, error) {
	key, err := restoreKey(a, file)
	if err != nil {
		return Restored{}, err
	}
	b := backupFile{path: file, key: key}
	m, err := b.verify()
	if err != nil {
		return Restored{}, err
	}
	if m.Schema > bus.Schema {
		return Restored{}, fault.New(fault.FailedPrecondition, "the backup's records have schema %d, written by Podplane %s; this one knows %d: take a newer one", m.Schema, m.Version, bus.Schema)
	}
	if a.Host.NATSURL != "" {
		return Restored{Manifest: m}, a.connected(ctx, a.Host.NATSURL, a.Seed, func(ctx context.Context, c *bus.Conn) error {
			return b.restoreOver(ctx, c, m, replace)
		})
	}
	release, err := up.Exclusive(a.Host.RunDir)
	if err != nil {
		return Restored{}, err
	}
	defer release()
	former, err := b.restoreBeside(ctx, a.Host, m, replace)
	return Restored{Manifest: m, Former: former}, err
}

// restoreKey is the key of a file that may not need one.
func restoreKey(a Access, file string) (string, error) {
	needs, err := needsKey(file)
	if err != nil || !needs {
		return "", err
	}
	return a.fileKey()
}

// backupFile is a backup on disk.
type backupFile struct{ path, key string }

func (b backupFile) open() (io.Reader, func(), error) {
	f, err := os.Open(b.path)
	if err != nil {
		return nil, nil, fault.New(fault.Invalid, "read the backup: %w", err)
	}
	o, err := newOpener(f, b.key)
	if err != nil {
		_ = f.Close()
		return nil, nil, fmt.Errorf("%s: %w", b.path, err)
	}
	return o, func() { _ = f.Close() }, nil // only read
}

// verify reads all of it before anything is touched.
func (b backupFile) verify() (Manifest, error) {
	r, done, err := b.open()
	if err != nil {
		return Manifest{}, err
	}
	defer done()
	m, err := verify(r)
	if err != nil {
		return m, fmt.Errorf("%s: %w", b.path, err)
	}
	return m, nil
}

// fill makes the backup's streams on a bus that has none of them.
func (b backupFile) fill(ctx context.Context, c *bus.Conn, m Manifest) error {
	r, done, err := b.open()
	if err != nil {
		return err
	}
	defer done()
	return each(r, m, func(p Part, in io.Reader) error { return c.RestoreSnapshot(ctx, p.Snapshot, in) })
}

// restoreOver replaces the streams of a bus that runs.
func (b backupFile) restoreOver(ctx context.Context, c *bus.Conn, m Manifest, replace bool) error {
	running, err := c.Running(ctx)
	if err != nil {
		return err
	}
	if len(running) > 0 {
		return fault.New(fault.FailedPrecondition, "services use this bus (%s): stop them first; one that was killed is listed for up to 8 s", strings.Join(running, ", "))
	}
	if err := mayReplace(ctx, c, replace); err != nil {
		return err
	}
	for _, k := range bus.KeptStores() {
		if err := c.DropStream(ctx, k.Stream); err != nil {
			return err
		}
	}
	if err := b.fill(ctx, c, m); err != nil {
		return fmt.Errorf("%w; the bus holds a part of the backup now: mend the cause and run this again with --replace", err)
	}
	return nil
}

func mayReplace(ctx context.Context, c *bus.Conn, replace bool) error {
	if replace {
		return nil
	}
	h, err := c.Holdings(ctx)
	if err != nil {
		return err
	}
	if !h.Empty() {
		return fault.New(fault.FailedPrecondition, "the bus is not empty: it holds %s; --replace replaces them", h)
	}
	return nil
}

// restoreBeside builds the records in a directory of its own and exchanges it for the present one. It says where that one is now.
func (b backupFile) restoreBeside(ctx context.Context, host up.Config, m Manifest, replace bool) (former string, err error) {
	dir, key := host.BusDir(), host.BusKey()
	err = records.Serve(ctx, dir, key, func(ctx context.Context, c *bus.Conn) error { return mayReplace(ctx, c, replace) })
	// Records that can't be read any more are a reason to restore: whoever says "replace" need not be able to read them.
	if err != nil && !fault.Is(err, fault.NotFound) && !replace {
		return "", err
	}
	next := dir + ".next"
	if err := os.RemoveAll(next); err != nil {
		return "", fmt.Errorf("remove what an earlier attempt left: %w", err)
	}
	if err := os.MkdirAll(host.Root, 0o750); err != nil {
		return "", fmt.Errorf("make directory: %w", err)
	}
	if err := records.ServeNew(ctx, next, key, func(ctx context.Context, c *bus.Conn) error { return b.fill(ctx, c, m) }); err != nil {
		return "", errors.Join(err, os.RemoveAll(next))
	}
	return swap(dir, next, dir+".before-"+time.Now().UTC().Format("20060102T150405.000"))
}

// swap puts next in the place of dir in one step, and dir in that of former. It says where that is: nowhere when there was none.
func swap(dir, next, former string) (old string, err error) {
	if err := syncTree(next); err != nil {
		return "", fmt.Errorf("put the new records on disk: %w", err)
	}
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := os.Rename(next, dir); err != nil {
			return "", fmt.Errorf("put the new records in place: %w", err)
		}
		return "", syncDir(filepath.Dir(dir))
	}
	if err := unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE); err != nil {
		return "", fmt.Errorf("exchange %s for %s: %w", dir, next, err)
	}
	if err := os.Rename(next, former); err != nil {
		return next, fmt.Errorf("keep the former records: %w", err)
	}
	return former, syncDir(filepath.Dir(dir))
}

// syncTree returns when everything below a directory would outlive a power cut.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || (!d.IsDir() && !d.Type().IsRegular()) {
			return err
		}
		return syncDir(path)
	})
}

// needsKey says whether a backup is encrypted.
func needsKey(file string) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, fault.New(fault.Invalid, "read the backup: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	h, err := headOf(f)
	if err != nil {
		return false, fmt.Errorf("%s: %w", file, err)
	}
	return h.Cipher != clear, nil
}
