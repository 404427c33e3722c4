// Package backup saves the records of a bus in a file and brings them back: `podplane backup` and `podplane restore`.
//
// A backup is taken while everything runs. Each stream's snapshot is of one moment, and those of what can't be observed again (pods,
// ConfigMaps and Secrets, evictions) are all of the same moment: they are taken again until none of them has changed meanwhile. What else is
// in it (status, volumes, probes, conditions, the journal, Events) may be older by the duration of the backup; the services observe it
// again. Registrations and leases are left out: they say who runs, which is not so any more.
//
// A restore never works on what is there: the host's own records are built beside the present ones and exchanged for them in one step, and the
// present ones are kept. On a bus that is named each stream is replaced in turn; there no service may run.
package backup

import (
	"archive/tar"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/podplane/podplane/cmd/podplane/internal/up"
	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/internal/fault"
)

// maxAttempts bounds how often the records of users' wishes are taken again because they changed meanwhile.
const maxAttempts = 20

// Save writes a backup into a new file (mode 0600), whole or not at all, and says what is in it.
func Save(ctx context.Context, a Access, file string) (Manifest, error) {
	if _, err := os.Lstat(file); err == nil {
		return Manifest{}, fault.New(fault.AlreadyExists, "%s exists: a backup goes into a new file", file)
	}
	key, err := a.fileKey()
	if err != nil {
		return Manifest{}, err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".podplane-backup-*") // mode 0600
	if err != nil {
		return Manifest{}, fmt.Errorf("write the backup: %w", err)
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // gone after the rename
	m := Manifest{Version: daemon.Version, Schema: bus.Schema}
	if _, info, err := up.Running(a.Host.RunDir); err == nil && a.Host.NATSURL == "" {
		m.Node = info.Node
	}
	err = a.read(ctx, func(ctx context.Context, c *bus.Conn) error {
		out, err := newSealer(tmp, key)
		if err != nil {
			return err
		}
		if err := save(ctx, c, out, &m); err != nil {
			return err
		}
		return out.Close()
	})
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return m, fmt.Errorf("write the backup: %w", err)
	}
	if err := os.Rename(tmp.Name(), file); err != nil {
		return m, fmt.Errorf("write the backup: %w", err)
	}
	return m, syncDir(filepath.Dir(file))
}

// save writes the snapshots of all that a backup has to hold.
func save(ctx context.Context, c *bus.Conn, w io.Writer, m *Manifest) error {
	t := tar.NewWriter(w)
	m.Began = time.Now().UTC().Truncate(time.Millisecond)
	stores := bus.KeptStores()
	parts := make(map[string]Part, len(stores))
	for attempt := 1; ; attempt++ {
		again, err := changed(ctx, c, stores, parts)
		if err != nil {
			return err
		}
		if len(again) == 0 {
			break
		}
		if attempt > maxAttempts {
			return fault.New(fault.Unavailable, "%s changed during each of %d attempts: try again when fewer pods are being created", again[0].Name, maxAttempts)
		}
		for _, k := range again {
			p := Part{Snapshot: bus.Snapshot{Stream: k.Stream}, Attempt: attempt}
			pw := newPartWriter(t, p, m.Began)
			snap, err := c.TakeSnapshot(ctx, k.Stream, pw)
			if err == nil {
				err = pw.flush()
			}
			if err != nil {
				return err
			}
			p.Snapshot, p.Bytes, p.SHA256 = snap, pw.size, hex.EncodeToString(pw.sum.Sum(nil))
			parts[k.Stream] = p
		}
	}
	for _, k := range stores {
		if p, ok := parts[k.Stream]; ok {
			m.Streams = append(m.Streams, p)
		}
	}
	if len(m.Streams) == 0 {
		return fault.New(fault.NotFound, "the bus holds no records of Podplane")
	}
	m.Ended = time.Now().UTC().Truncate(time.Millisecond)
	if err := writeManifest(t, *m); err != nil {
		return err
	}
	return t.Close()
}

// changed gives the stores of which there is no snapshot yet, and those that can't be observed again and have changed since theirs.
func changed(ctx context.Context, c *bus.Conn, stores []bus.Kept, parts map[string]Part) ([]bus.Kept, error) {
	var again []bus.Kept
	for _, k := range stores {
		p, taken := parts[k.Stream]
		if taken && !k.Durable {
			continue
		}
		exists, last, err := c.LastSequence(ctx, k.Stream)
		switch {
		case err != nil:
			return nil, err
		case taken && last != p.LastSequence, !taken && exists:
			again = append(again, k)
		}
	}
	return again, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
