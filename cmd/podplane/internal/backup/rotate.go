package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/podplane/podplane/cmd/podplane/internal/records"
	"github.com/podplane/podplane/cmd/podplane/internal/up"
	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/fault"
)

// formerRecords ends the name of the directory of records that are encrypted with the former key, until they are removed.
const formerRecords = ".former-key"

// RotateKey encrypts the host's own records with a new key. Podplane must not be up. It may be interrupted at any moment: the records are those of
// before, or those of after, and the next start, or call, ends it. The former key is kept, because backups of before need it; it says where.
func RotateKey(ctx context.Context, host up.Config) (former string, err error) {
	release, err := up.Exclusive(host.RunDir)
	if err != nil {
		return "", err
	}
	defer release()
	dir, key := host.BusDir(), host.BusKey()
	if key == "" {
		return "", fault.New(fault.FailedPrecondition, "the records are in the clear: they have no key to change")
	}
	before, err := filepath.Glob(embedded.FormerKeys(key) + "*")
	if err != nil {
		return "", err // the pattern is good
	}
	next := dir + ".next"
	if err := copyRecords(ctx, dir, key, next); err != nil {
		return "", err
	}
	old, err := swap(dir, next, dir+formerRecords)
	if err != nil {
		return "", err
	}
	// The first start puts the new key in the place of the former.
	if err := records.Serve(ctx, dir, key, func(context.Context, *bus.Conn) error { return nil }); err != nil {
		return "", err
	}
	if err := os.RemoveAll(old); err != nil {
		return "", fmt.Errorf("remove the records that are encrypted with the former key: %w", err)
	}
	after, err := filepath.Glob(embedded.FormerKeys(key) + "*")
	if err != nil {
		return "", err
	}
	for _, file := range after {
		if len(before) == 0 || file > before[len(before)-1] {
			former = file
		}
	}
	return former, nil
}

// copyRecords copies the records into a new directory with a new key beside the present one.
func copyRecords(ctx context.Context, dir, key, next string) error {
	err := records.Serve(ctx, dir, key, func(ctx context.Context, from *bus.Conn) error {
		// An earlier attempt may have left these; what it had finished was put in place by this start.
		if err := errors.Join(os.RemoveAll(next), os.RemoveAll(dir+formerRecords), removeFile(embedded.NextKey(key))); err != nil {
			return fmt.Errorf("remove what an earlier attempt left: %w", err)
		}
		return records.ServeNew(ctx, next, embedded.NextKey(key), func(ctx context.Context, to *bus.Conn) error {
			for _, k := range bus.KeptStores() {
				if err := copyStream(ctx, from, to, k.Stream); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return errors.Join(err, os.RemoveAll(next))
	}
	return nil
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// copyStream copies a stream, if it exists.
func copyStream(ctx context.Context, from, to *bus.Conn, stream string) error {
	if exists, _, err := from.LastSequence(ctx, stream); err != nil || !exists {
		return err
	}
	r, w := io.Pipe()
	began := make(chan bus.Snapshot, 1)
	ended := make(chan error, 1)
	go func() {
		_, err := from.TakeSnapshotAfter(ctx, stream, w, func(s bus.Snapshot) { began <- s })
		_ = w.CloseWithError(err)
		ended <- err
	}()
	select {
	case snap := <-began:
		err := to.RestoreSnapshot(ctx, snap, r)
		_ = r.CloseWithError(err) // so that the other side ends too
		return errors.Join(err, <-ended)
	case err := <-ended:
		return err
	}
}
