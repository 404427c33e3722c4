package logs

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

const (
	compressedTail = ".gz"
	unfinishedTail = ".tmp"
)

// goOn reads what came after the open file, which was rotated: first the files that a reader who was held up has missed, as far as they are
// kept, then it opens the present one.
func (l *file) goOn(ctx context.Context, out *output) error {
	for {
		missed, err := l.missed(nil)
		if err != nil {
			return err
		}
		if len(missed) == 0 {
			done, err := l.openPresent()
			if done || err != nil {
				return err
			}
			continue
		}
		switch err := l.openRotated(missed[0]); {
		case errors.Is(err, fs.ErrNotExist):
			continue // it was compressed or removed meanwhile
		case err != nil:
			return err
		}
		if err := l.drain(ctx, out); err != nil {
			return err
		}
		if err := out.flush(); err != nil {
			return err
		}
	}
}

// openPresent opens the file of the log's name. It is not done when there was another rotation just now.
func (l *file) openPresent() (done bool, err error) {
	f, err := l.root.Open(l.name)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // in the middle of a rotation: it is looked for again
	}
	if err != nil {
		return false, fmt.Errorf("open log after rotation: %w", err)
	}
	missed, err := l.missed(f)
	if err != nil || len(missed) > 0 {
		return false, errors.Join(err, f.Close())
	}
	l.use(f, f)
	return true, nil
}

// openRotated opens a rotated file, compressed or not.
func (l *file) openRotated(name string) error {
	f, err := l.root.Open(name)
	if err != nil {
		return err
	}
	if !strings.HasSuffix(name, compressedTail) {
		l.use(f, f)
		return nil
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		return errors.Join(fmt.Errorf("read rotated log %s: %w", name, err), f.Close())
	}
	l.use(f, z)
	return nil
}

// use reads from another file.
func (l *file) use(f *os.File, r io.Reader) {
	if l.f != nil {
		_ = l.f.Close() // opened for reading
	}
	l.f, l.rest, l.cut = f, nil, nil
	l.r = bufio.NewReaderSize(r, bufferBytes)
}

// missed names the rotated files that came after the open one, oldest first, without the file that is the present one.
func (l *file) missed(present *os.File) ([]string, error) {
	all, err := l.rotatedFiles()
	if err != nil {
		return nil, err
	}
	if present != nil {
		all = slices.DeleteFunc(all, func(name string) bool { return l.is(name, present) })
	}
	for i, name := range all {
		if l.is(name, l.f) {
			return all[i+1:], nil
		}
	}
	// The open file was compressed or removed meanwhile: what begins after its last record came after it.
	last, err := l.lastRecord()
	if err != nil {
		return nil, err
	}
	for i, name := range all {
		if first, ok := l.firstRecord(name); ok && first.After(last) {
			return all[i:], nil
		}
	}
	return nil, nil
}

// is says whether the name is that of an open file.
func (l *file) is(name string, f *os.File) bool {
	named, err := l.root.Stat(name)
	if err != nil {
		return false
	}
	open, err := f.Stat()
	return err == nil && os.SameFile(named, open)
}

// rotatedFiles names the rotated files of the log, oldest first. Of one that is being compressed the original counts.
func (l *file) rotatedFiles() ([]string, error) {
	dir, err := l.root.Open(path.Dir(l.name))
	if err != nil {
		return nil, fmt.Errorf("find the rotated logs of %s: %w", l.name, err)
	}
	defer func() { _ = dir.Close() }() // opened for reading
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, fmt.Errorf("find the rotated logs of %s: %w", l.name, err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), path.Base(l.name)+".") && !strings.HasSuffix(e.Name(), unfinishedTail) {
			names = append(names, path.Join(path.Dir(l.name), e.Name()))
		}
	}
	slices.Sort(names) // by time; an original stands before its compressed form
	return slices.CompactFunc(names, func(name, before string) bool { return name == before+compressedTail }), nil
}

// lastRecord is the time of the last record that was read, or, where none was, of the last write to the open file.
func (l *file) lastRecord() (time.Time, error) {
	if t, err := time.Parse(time.RFC3339Nano, string(l.last)); err == nil {
		return t, nil
	}
	info, err := l.f.Stat()
	if err != nil {
		return time.Time{}, fmt.Errorf("read log %s: %w", l.name, err)
	}
	return info.ModTime(), nil
}

// firstRecord is the time of a rotated file's first record.
func (l *file) firstRecord(name string) (time.Time, bool) {
	f, err := l.root.Open(name)
	if err != nil {
		return time.Time{}, false
	}
	defer func() { _ = f.Close() }() // opened for reading
	var r io.Reader = f
	if strings.HasSuffix(name, compressedTail) {
		z, err := gzip.NewReader(f)
		if err != nil {
			return time.Time{}, false
		}
		r = z
	}
	for lines := bufio.NewScanner(io.LimitReader(r, bufferBytes)); lines.Scan(); {
		if h, _, ok := parse(lines.Bytes()); ok {
			t, err := time.Parse(time.RFC3339Nano, string(h.time))
			return t, err == nil
		}
	}
	return time.Time{}, false
}
