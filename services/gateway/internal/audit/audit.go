// Package audit writes down who did what: one line of JSON for each request, never a body, a query or a credential.
//
// Lines are in the file when the request has been answered (not synced to disk). The file is rotated when it passes its size, and a bounded number of
// old ones is kept (name.1 is the youngest). Several replicas may share one file: lines are appended whole, and rotation happens under a lock beside it. A file that
// somebody else moves away is opened again. What can't be written is counted and told; requests go on.
package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"
)

const (
	// MaxField is the longest text of one field.
	MaxField = 256
	// DefaultMaxBytes and DefaultKeep bound what is kept.
	DefaultMaxBytes = 32 << 20
	DefaultKeep     = 4
)

// Entry is one line.
type Entry struct {
	Time time.Time `json:"time"`
	// Stage is "started" for a stream that was let in, "answered" for everything that is over.
	Stage string `json:"stage"`
	User  string `json:"user,omitempty"`
	// Groups are the user's, and Via how the user has shown who it is.
	Groups []string `json:"groups,omitempty"`
	Via    string   `json:"via,omitempty"`

	Verb        string `json:"verb"`
	APIGroup    string `json:"apiGroup,omitempty"`
	Resource    string `json:"resource,omitempty"`
	Subresource string `json:"subresource,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name,omitempty"`
	// Path is that of what is no resource.
	Path string `json:"path,omitempty"`

	Code      int     `json:"code"`
	Reason    string  `json:"reason,omitempty"`
	Seconds   float64 `json:"seconds"`
	TraceID   string  `json:"traceID,omitempty"`
	RequestID string  `json:"requestID,omitempty"`
	Source    string  `json:"source"`
	UserAgent string  `json:"userAgent,omitempty"`
}

// Log is the file. Its methods may be called from any goroutine.
type Log struct {
	path     string
	maxBytes int64
	keep     int
	failed   func(error)

	mu   sync.Mutex
	file *os.File
}

// Options bound a log; zero values take the defaults.
type Options struct {
	MaxBytes int64
	Keep     int
	// Failed is told of each line that could not be written.
	Failed func(error)
}

// Open opens the file (mode 0600), making its directory (0700) if need be.
func Open(path string, o Options) (*Log, error) {
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.Keep <= 0 {
		o.Keep = DefaultKeep
	}
	if o.Failed == nil {
		o.Failed = func(error) {}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the audit log: %w", err)
	}
	l := &Log{path: path, maxBytes: o.MaxBytes, keep: o.Keep, failed: o.Failed}
	if err := l.open(); err != nil {
		return nil, fmt.Errorf("open the audit log: %w", err)
	}
	return l, nil
}

// Write adds a line.
func (l *Log) Write(e Entry) {
	e.bound()
	line, err := json.Marshal(e)
	if err != nil {
		l.failed(fmt.Errorf("encode a line of the audit log: %w", err))
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.write(append(line, '\n')); err != nil {
		l.failed(fmt.Errorf("write the audit log: %w", err))
	}
}

// bound cuts every text that a client has chosen.
func (e *Entry) bound() {
	for _, s := range []*string{&e.User, &e.Verb, &e.Namespace, &e.Name, &e.Path, &e.Reason, &e.RequestID, &e.UserAgent, &e.Source} {
		if len(*s) > MaxField {
			cut := (*s)[:MaxField]
			for len(cut) > 0 && !utf8.ValidString(cut) && len(cut) > MaxField-utf8.UTFMax {
				cut = cut[:len(cut)-1]
			}
			*s = cut + "…"
		}
	}
}

func (l *Log) write(line []byte) error {
	size, err := l.current()
	if err != nil {
		return err
	}
	if size > 0 && size+int64(len(line)) > l.maxBytes {
		if err := l.rotate(int64(len(line))); err != nil {
			return err
		}
	}
	_, err = l.file.Write(line)
	return err
}

// current makes sure that the open file is the one of that name, and gives its size.
func (l *Log) current() (int64, error) {
	if l.file != nil {
		named, err := os.Stat(l.path)
		if err == nil {
			mine, err := l.file.Stat()
			if err == nil && os.SameFile(named, mine) {
				return mine.Size(), nil
			}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
	}
	if err := l.open(); err != nil {
		return 0, err
	}
	info, err := l.file.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (l *Log) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	if l.file != nil {
		_ = l.file.Close() // it is another's by now
	}
	l.file = f
	return nil
}

// rotate moves the files on by one, unless another replica just did.
func (l *Log) rotate(more int64) error {
	lock, err := os.OpenFile(l.path+".lock", os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // which unlocks it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	if size, err := l.current(); err != nil || size+more <= l.maxBytes {
		return err
	}
	for i := l.keep - 1; i >= 1; i-- {
		if err := os.Rename(l.name(i), l.name(i+1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.Rename(l.path, l.name(1)); err != nil {
		return err
	}
	return l.open()
}

func (l *Log) name(i int) string { return fmt.Sprintf("%s.%d", l.path, i) }

// Close closes the file. Lines that are written after it open it again.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}
