package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// bufferBytes holds any line that a runtime writes: they cut at 16 KiB.
	bufferBytes = 64 << 10
	// headBytes is enough for a line's time, stream and tag.
	headBytes = 128
	// lookInterval bounds how long a change goes unseen that inotify did not tell, as on file systems without it.
	lookInterval = 2 * time.Second
	// settleTime is how long a rotated file is waited for after its successor has its first line.
	settleTime = 100 * time.Millisecond
)

// file is one container's log that may be rotated while it is read.
type file struct {
	root *os.Root
	name string // below the root
	dir  string // the directory that it is in
	f    *os.File
	r    *bufio.Reader
	// rest is the beginning of a line that is not written to its end yet; cut says that its begin was given out already.
	rest []byte
	cut  *head
	// last is the time of the last record that was read.
	last []byte
	over func() bool
}

// head is what is before the text of a line.
type head struct {
	time []byte
	full bool
}

func (l *file) close() {
	if l.f != nil {
		_ = l.f.Close() // opened for reading
	}
	_ = l.root.Close() // as well
}

// reopen opens the file of the log's name, which is another one after a rotation.
func (l *file) reopen() error {
	f, err := l.root.Open(l.name)
	if err != nil {
		return err
	}
	l.use(f, f)
	return nil
}

// rotated says whether the log goes on in another file. That one is there a moment before the runtime writes to it, and
// until then lines go to the old one.
func (l *file) rotated(over bool) bool {
	there, err := l.root.Stat(l.name)
	if err != nil || there.Size() == 0 && !over {
		return false
	}
	open, err := l.f.Stat()
	return err == nil && !os.SameFile(there, open)
}

// settle gives the runtime the time to write what it had in hand for the old file when it began with the new one.
func settle(ctx context.Context) {
	t := time.NewTimer(settleTime)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// copy gives the lines to out until the end of the file or, when following, of the log.
func (l *file) copy(ctx context.Context, out *output, follow bool, changes <-chan struct{}) error {
	var w *fsnotify.Watcher
	if follow {
		var err error
		if w, err = fsnotify.NewWatcher(); err != nil {
			return fmt.Errorf("watch log directory: %w", err)
		}
		defer w.Close() //nolint:errcheck // ends with the request
		if err := w.Add(l.dir); err != nil {
			return fmt.Errorf("watch log directory %s: %w", l.dir, err)
		}
	}
	for {
		// What is asked before the drain is answered by it: nothing is written after it was over, nor to a file some time after its
		// successor was written to.
		over := follow && l.over()
		rotated := follow && l.rotated(over)
		if rotated && !over {
			settle(ctx)
		}
		if err := l.drain(ctx, out); err != nil {
			return err
		}
		if !follow {
			return nil
		}
		if err := out.flush(); err != nil {
			return err
		}
		if rotated {
			if err := l.goOn(ctx, out); err != nil {
				return err
			}
			continue
		}
		if over {
			return nil
		}
		if err := l.wait(ctx, w, &changes); err != nil {
			return err
		}
	}
}

// wait waits until there may be something new.
func (l *file) wait(ctx context.Context, w *fsnotify.Watcher, changes *<-chan struct{}) error {
	t := time.NewTimer(lookInterval)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.Events:
	case <-w.Errors: // lost events: look again
	case _, ok := <-*changes:
		if !ok {
			*changes = nil // the pod is gone, which over tells
		}
	case <-t.C:
	}
	return nil
}

// drain gives what is in the file by now.
func (l *file) drain(ctx context.Context, out *output) error {
	for {
		chunk, err := l.r.ReadSlice('\n')
		switch {
		case err == nil, errors.Is(err, bufio.ErrBufferFull):
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := l.take(chunk, err == nil, out); err != nil {
				return err
			}
		case errors.Is(err, io.EOF):
			// A line that is being written is kept until its end is there.
			l.rest = append(l.rest, chunk...)
			if len(l.rest) > bufferBytes {
				return l.take(nil, false, out)
			}
			return nil
		default:
			return fmt.Errorf("read log %s: %w", l.name, err)
		}
	}
}

// take adds what was read to the line that is under way, and gives out what is complete or too long to keep.
func (l *file) take(chunk []byte, ends bool, out *output) error {
	line := chunk
	if len(l.rest) > 0 {
		line = append(l.rest, chunk...)
		l.rest = nil
	}
	line = bytes.TrimSuffix(line, []byte("\n"))
	h, text := l.cut, line
	if h == nil {
		var ok bool
		if h, text, ok = parse(line); !ok {
			return nil // not a log line: the runtime's own trouble, as after a full disk
		}
	}
	l.cut, l.last = nil, append(l.last[:0], h.time...)
	if !ends {
		l.cut = &head{time: bytes.Clone(h.time), full: h.full}
	}
	return out.piece(h.time, text, h.full && ends)
}

// parse splits a line of CRI's format: time, stream, tags, text.
func parse(line []byte) (h *head, text []byte, ok bool) {
	at, line, ok := bytes.Cut(line, []byte(" "))
	if !ok || len(at) < len("2006-01-02T15:04:05Z") {
		return nil, nil, false
	}
	stream, line, ok := bytes.Cut(line, []byte(" "))
	if !ok || (string(stream) != "stdout" && string(stream) != "stderr") {
		return nil, nil, false
	}
	tags, text, _ := bytes.Cut(line, []byte(" "))
	tag, _, _ := bytes.Cut(tags, []byte(":"))
	if string(tag) != "F" && string(tag) != "P" {
		return nil, nil, false
	}
	return &head{time: at, full: string(tag) == "F"}, text, true
}

// seekTail goes to where the last n of the container's lines begin; below 0 it stays at the start.
func (l *file) seekTail(n int64) error {
	if n < 0 {
		return nil
	}
	info, err := l.f.Stat()
	if err != nil {
		return fmt.Errorf("read log %s: %w", l.name, err)
	}
	start, err := tail(l.f, info.Size(), n)
	if err != nil {
		return fmt.Errorf("find the last lines of log %s: %w", l.name, err)
	}
	if _, err := l.f.Seek(start, io.SeekStart); err != nil {
		return fmt.Errorf("read log %s: %w", l.name, err)
	}
	l.r.Reset(l.f)
	return nil
}

// tail finds the offset from which there are n lines of the container, reading from the end.
func tail(f io.ReaderAt, size, n int64) (int64, error) {
	block := make([]byte, bufferBytes)
	end := size // of the record that is looked at; what is behind it belongs to the tail
	lines := int64(0)
	first := true
	for top := size; top > 0; {
		from := max(top-bufferBytes, 0)
		part := block[:top-from]
		if _, err := f.ReadAt(part, from); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for i := len(part) - 1; i >= 0; i-- {
			if part[i] != '\n' {
				continue
			}
			at := from + int64(i) + 1 // where the record behind this newline begins
			if at == size {
				continue // the end of the last record
			}
			done, err := count(f, at, &lines, &first, n)
			if err != nil || done {
				return end, err
			}
			end = at
		}
		top = from
	}
	if size > 0 {
		done, err := count(f, 0, &lines, &first, n)
		if err != nil || done {
			return end, err
		}
	}
	return 0, nil
}

// count looks at the record at an offset: one that ends a line of the container is one line more, and so is the newest one even if its line
// goes on. It is done when there are more than n.
func count(f io.ReaderAt, at int64, lines *int64, first *bool, n int64) (bool, error) {
	var buf [headBytes]byte
	got, err := f.ReadAt(buf[:], at)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	record, _, _ := bytes.Cut(buf[:got], []byte("\n"))
	h, _, ok := parse(record)
	if *first || (ok && h.full) {
		*lines++
	}
	*first = false
	return *lines > n, nil
}
