package backup

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"time"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
)

// Inside, a backup is a tar: the parts of each stream's snapshot as they came, "<stream>.<attempt>/<number>", and at the end manifest.json,
// which says which attempt counts, with its sum. Without it a backup is not whole.

const (
	manifestName = "manifest.json"
	manifestSum  = "manifest.sha256"
	partBytes    = 256 << 10
	maxManifest  = 4 << 20
)

// Manifest says what a backup holds.
type Manifest struct {
	// Version is Podplane's that wrote it, Schema that of the records.
	Version string `json:"version"`
	Schema  int    `json:"schema"`
	// Node is where it was made; empty when that is not known.
	Node string `json:"node,omitempty"`
	// Began and Ended say when.
	Began time.Time `json:"began"`
	Ended time.Time `json:"ended"`
	// Streams are the snapshots, causes before their effects.
	Streams []Part `json:"streams"`
}

// Part is a stream's snapshot in a backup.
type Part struct {
	bus.Snapshot
	// Attempt is the one that counts.
	Attempt int `json:"attempt"`
	// Bytes and SHA256 are of the snapshot.
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

func (p Part) dir() string { return fmt.Sprintf("%s.%d/", p.Stream, p.Attempt) }

// partWriter cuts a snapshot into entries of a tar.
type partWriter struct {
	t    *tar.Writer
	dir  string
	now  time.Time
	buf  []byte
	n    int
	size int64
	sum  hash.Hash
}

func newPartWriter(t *tar.Writer, p Part, now time.Time) *partWriter {
	return &partWriter{t: t, dir: p.dir(), now: now, sum: sha256.New()}
}

// Write takes a part of the snapshot.
func (w *partWriter) Write(p []byte) (int, error) {
	w.buf = append(w.buf, p...)
	w.size += int64(len(p))
	w.sum.Write(p)
	if len(w.buf) >= partBytes {
		return len(p), w.flush()
	}
	return len(p), nil
}

func (w *partWriter) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	err := writeEntry(w.t, fmt.Sprintf("%s%08d", w.dir, w.n), w.buf, w.now)
	w.n++
	w.buf = w.buf[:0]
	return err
}

func writeEntry(t *tar.Writer, name string, data []byte, now time.Time) error {
	if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(data)), ModTime: now, Typeflag: tar.TypeReg}); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if _, err := t.Write(data); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func writeManifest(t *tar.Writer, m Manifest) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the backup's manifest: %w", err)
	}
	if err := writeEntry(t, manifestName, data, m.Ended); err != nil {
		return err
	}
	return writeEntry(t, manifestSum, []byte(digest(data)), m.Ended)
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// verify reads a whole backup and gives its manifest: every stream in it is complete, and as it was written.
func verify(r io.Reader) (Manifest, error) {
	sums, sizes := map[string]hash.Hash{}, map[string]int64{}
	var m Manifest
	var said, sum []byte
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return m, broken(err)
		}
		if target := map[string]*[]byte{manifestName: &said, manifestSum: &sum}[h.Name]; target != nil {
			if *target, err = io.ReadAll(io.LimitReader(t, maxManifest)); err != nil {
				return m, broken(err)
			}
			continue
		}
		dir, _, _ := strings.Cut(h.Name, "/")
		if sums[dir+"/"] == nil {
			sums[dir+"/"] = sha256.New()
		}
		n, err := io.Copy(sums[dir+"/"], t)
		if err != nil {
			return m, broken(err)
		}
		sizes[dir+"/"] += n
	}
	if _, err := io.Copy(io.Discard, r); err != nil { // to the file's own end
		return m, broken(err)
	}
	if string(sum) != digest(said) || json.Unmarshal(said, &m) != nil || len(m.Streams) == 0 {
		return m, errBroken
	}
	return m, checkParts(m, sums, sizes)
}

// checkParts compares the snapshots with what the manifest says of them.
func checkParts(m Manifest, sums map[string]hash.Hash, sizes map[string]int64) error {
	for _, p := range m.Streams {
		sum := sums[p.dir()]
		if sum == nil || sizes[p.dir()] != p.Bytes || hex.EncodeToString(sum.Sum(nil)) != p.SHA256 {
			return fault.New(fault.Invalid, "the backup is damaged: stream %s is not as it was written", p.Stream)
		}
	}
	return nil
}

func broken(err error) error {
	if fault.Is(err, fault.Invalid) {
		return err
	}
	return fault.New(fault.Invalid, "the backup is damaged or not whole: %w", err)
}

// each calls f with the snapshot of each stream of the manifest, in the order of the file.
func each(r io.Reader, m Manifest, f func(Part, io.Reader) error) error {
	byDir := map[string]Part{}
	for _, p := range m.Streams {
		byDir[p.dir()] = p
	}
	t := tar.NewReader(r)
	h, err := t.Next()
	for err == nil {
		dir, _, _ := strings.Cut(h.Name, "/")
		p, wanted := byDir[dir+"/"]
		if !wanted {
			h, err = t.Next()
			continue
		}
		in := &partReader{t: t, dir: p.dir()}
		if err := f(p, in); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, in); err != nil {
			return err
		}
		h, err = in.after, in.afterErr
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// partReader joins the entries of one snapshot.
type partReader struct {
	t        *tar.Reader
	dir      string
	end      bool
	after    *tar.Header // what comes after it
	afterErr error
}

// Read gives the snapshot.
func (r *partReader) Read(p []byte) (int, error) {
	for !r.end {
		n, err := r.t.Read(p)
		if n > 0 {
			return n, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if err == nil {
			continue
		}
		if r.after, r.afterErr = r.t.Next(); r.afterErr != nil || !strings.HasPrefix(r.after.Name, r.dir) {
			r.end = true
		}
	}
	return 0, io.EOF
}
