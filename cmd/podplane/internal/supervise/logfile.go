package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// MaxLogSize is how large a child's log may grow before its content moves to
// "<file>.1", in bytes; so a child's logs take at most twice that and what is
// written within a minute.
const MaxLogSize = 10 << 20

// BoundLogs keeps the files bounded, looking once a minute, until ctx ends.
// Children write with O_APPEND: cutting a file's length loses nothing that
// they write later. A line that is written between the copy and the cut is
// lost; what counts is also on the bus.
func BoundLogs(ctx context.Context, files []string, report func(error)) {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, f := range files {
			if err := rotate(f, MaxLogSize); err != nil {
				report(err)
			}
		}
	}
}

func rotate(file string, limit int64) error {
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() < limit {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at log %s: %w", file, err)
	}
	src, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	defer func() { _ = src.Close() }()
	dst, err := os.OpenFile(file+".1", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o640)
	if err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	if _, err := io.Copy(dst, src); err != nil {
		_ = dst.Close()
		return fmt.Errorf("rotate log %s: %w", file, err)
	}
	if err := dst.Close(); err != nil {
		return fmt.Errorf("rotate log %s: %w", file, err)
	}
	if err := src.Truncate(0); err != nil {
		return fmt.Errorf("rotate log %s: %w", file, err)
	}
	return nil
}
