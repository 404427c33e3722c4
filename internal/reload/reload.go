// Package reload keeps what was read from files current, without a goroutine and without work while nobody asks.
//
// Whoever asks for the value finds out, at most once per Every, whether a file has changed (time, size, inode), and reads all of them again
// if so. What can't be read or parsed leaves the former value in use and is told once per change: a file that is being edited or was
// spoiled locks nobody out and lets nobody in. Files over 1 MiB are refused, and so are files that everybody may write.
package reload

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/podplane/podplane/internal/fault"
)

const (
	// Every is the longest time for which a change of a file goes unseen by those who ask.
	Every = 200 * time.Millisecond
	// MaxBytes is the size of the largest file that is read.
	MaxBytes = 1 << 20

	// settled is how old a change must be before its time alone tells it from the next one: file systems keep time in coarse steps.
	settled = 100 * time.Millisecond
	// othersWrite are the bits of a mode that let everybody change a file.
	othersWrite = 0o002
)

// Value is what a set of files holds. Its methods may be called from any goroutine.
type Value[T any] struct {
	paths  []string
	parse  func(contents [][]byte) (T, error)
	failed func(error)

	mu      sync.Mutex
	value   T
	stamps  []stamp
	checked time.Time
	err     error
}

// stamp tells a file's versions apart.
type stamp struct {
	size, mtime, ctime int64
	inode              uint64
}

// Open reads the files for the first time. failed is told of each later change that can't be used; nil tells nobody.
func Open[T any](parse func(contents [][]byte) (T, error), failed func(error), paths ...string) (*Value[T], error) {
	v := &Value[T]{paths: paths, parse: parse, failed: failed}
	now := time.Now()
	stamps, err := v.look(now)
	if err != nil {
		return nil, err
	}
	value, err := v.read()
	if err != nil {
		return nil, err
	}
	v.value, v.stamps, v.checked = value, stamps, now
	return v, nil
}

// Get gives the present value.
func (v *Value[T]) Get() T {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	if since := now.Sub(v.checked); since >= 0 && since < Every {
		return v.value
	}
	v.checked = now
	stamps, err := v.look(now)
	if err == nil && slices.Equal(stamps, v.stamps) {
		return v.value
	}
	if err == nil {
		v.stamps = stamps
		var value T
		if value, err = v.read(); err == nil {
			v.value = value
		}
	}
	told := v.err != nil && err != nil && v.err.Error() == err.Error()
	v.err = err
	if err != nil && !told && v.failed != nil {
		v.failed(err)
	}
	return v.value
}

// Err says why the files as they are can't be used; nil when they are in use.
func (v *Value[T]) Err() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.err
}

// look takes the stamps of the files. That of a file which changed a moment ago is spoiled, so that it is read again.
func (v *Value[T]) look(now time.Time) ([]stamp, error) {
	stamps := make([]stamp, len(v.paths))
	for i, p := range v.paths {
		info, err := os.Stat(p)
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, err)
		}
		if info.Mode().Perm()&othersWrite != 0 {
			return nil, fault.New(fault.Invalid, "%s: everybody may write it (mode %04o)", p, info.Mode().Perm())
		}
		s := stamp{size: info.Size(), mtime: info.ModTime().UnixNano()}
		if sys, ok := info.Sys().(*syscall.Stat_t); ok {
			s.inode, s.ctime = sys.Ino, sys.Ctim.Nano()
		}
		if now.UnixNano()-max(s.mtime, s.ctime) < int64(settled) {
			s.size = -1 - now.UnixNano()
		}
		stamps[i] = s
	}
	return stamps, nil
}

func (v *Value[T]) read() (T, error) {
	var none T
	contents := make([][]byte, len(v.paths))
	for i, p := range v.paths {
		data, err := readFile(p)
		if err != nil {
			return none, fault.Wrap(fault.Invalid, err)
		}
		contents[i] = data
	}
	value, err := v.parse(contents)
	if err != nil {
		return none, fault.Wrap(fault.Invalid, fmt.Errorf("%s: %w", v.paths[0], err))
	}
	return value, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, MaxBytes)
	}
	return data, nil
}
