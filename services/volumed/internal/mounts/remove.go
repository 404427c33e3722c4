package mounts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxDepth is how deep a removal descends with open directories. What is deeper is moved up first, so that no tree,
// however deep, exhausts the descriptors or the stack.
const maxDepth = 32

// errMount says that a removal met a mount.
var errMount = errors.New("something is mounted there")

// RemoveTree removes name in the open directory dir, with everything in it. It follows no link and enters no mount: one
// that it meets is an error, and stays with what is in it. What does not exist is removed.
func RemoveTree(ctx context.Context, dir *os.File, name string) error {
	r := remover{ctx: ctx, top: int(dir.Fd()), name: name}
	if err := r.entry(r.top, name, 0); err != nil {
		return fmt.Errorf("remove %s/%s: %w", dir.Name(), name, err)
	}
	for len(r.moved) > 0 {
		next := r.moved[0]
		r.moved = r.moved[1:]
		if err := r.entry(r.top, next, 0); err != nil {
			return fmt.Errorf("remove %s/%s: %w", dir.Name(), next, err)
		}
	}
	return nil
}

type remover struct {
	ctx   context.Context
	top   int
	name  string
	moved []string
	count int
}

// entry removes name in the open directory parent.
func (r *remover) entry(parent int, name string, depth int) error {
	err := unix.Unlinkat(parent, name, 0)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY):
		return errMount
	case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
		return err
	}
	if err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR); err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if depth == maxDepth {
		return r.moveUp(parent, name)
	}
	if err := r.children(parent, name, depth); err != nil {
		return err
	}
	switch err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR); {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY):
		return errMount
	default:
		return err
	}
}

func (r *remover) children(parent int, name string, depth int) error {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	}
	fd, err := unix.Openat2(parent, name, &how)
	if errors.Is(err, unix.EXDEV) {
		return errMount
	}
	if err != nil {
		return err
	}
	d := os.NewFile(uintptr(fd), name)
	defer d.Close()
	for {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		names, err := d.Readdirnames(256)
		for _, n := range names {
			if err := r.entry(fd, n, depth+1); err != nil {
				return fmt.Errorf("%s: %w", n, err)
			}
		}
		if len(names) == 0 {
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			return nil
		}
	}
}

// moveUp moves a directory that is too deep to the top, to be removed from there.
func (r *remover) moveUp(parent int, name string) error {
	for {
		r.count++
		to := ".removed." + r.name + "." + strconv.Itoa(r.count)
		err := unix.Renameat2(parent, name, r.top, to, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err == nil {
			r.moved = append(r.moved, to)
		}
		return err
	}
}
