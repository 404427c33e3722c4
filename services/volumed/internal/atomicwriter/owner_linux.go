package atomicwriter

import (
	"io/fs"
	"syscall"
)

// owned says whether the file belongs to the group that it should belong to.
func (w *writer) owned(info fs.FileInfo) bool {
	if w.options.GID == nil {
		return true
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int64(st.Gid) == *w.options.GID
}
