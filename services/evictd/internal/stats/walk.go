package stats

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// walker sums up directories, within one budget for all of them.
type walker struct {
	ctx  context.Context
	left int
	err  error
}

type inode struct{ dev, ino uint64 }

var errBudget = errors.New("too many files")

// usage is what the directory's files and directories occupy, in bytes and inodes. It stays on the directory's own file
// system (a tmpfs below it is memory, not disk) and counts a file with several names once.
func (w *walker) usage(dir string) (bytes, inodes int64) {
	if w.err != nil {
		return 0, 0
	}
	var top syscall.Stat_t
	if err := syscall.Lstat(dir, &top); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			w.err = fmt.Errorf("measure %s: %w", dir, err)
		}
		return 0, 0
	}
	linked := make(map[inode]bool)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // gone meanwhile
			}
			return err
		}
		if w.left--; w.left < 0 {
			return errBudget
		}
		if w.left%1024 == 0 && w.ctx.Err() != nil {
			return w.ctx.Err()
		}
		info, err := d.Info()
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		return count(info, uint64(top.Dev), linked, &bytes, &inodes)
	})
	if err != nil {
		w.err = fmt.Errorf("measure %s: %w", dir, err)
	}
	return bytes, inodes
}

func count(info os.FileInfo, dev uint64, linked map[inode]bool, bytes, inodes *int64) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	if uint64(st.Dev) != dev {
		if info.IsDir() {
			return fs.SkipDir
		}
		return nil
	}
	if !info.IsDir() && st.Nlink > 1 {
		key := inode{uint64(st.Dev), st.Ino}
		if linked[key] {
			return nil
		}
		linked[key] = true
	}
	*bytes += st.Blocks * 512
	*inodes++
	return nil
}
