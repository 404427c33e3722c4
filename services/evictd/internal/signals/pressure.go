package signals

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/podplane/podplane/internal/fault"
)

// A stall of 100 ms within 2 s makes the kernel speak up. A window of 2 s is what the kernel allows to those without
// CAP_SYS_RESOURCE too.
const pressureTrigger = "some 100000 2000000"

// WatchPressure calls notify each time that the kernel reports that processes wait for memory, at most once in 2 s, until
// the context ends. It blocks one thread and uses no CPU meanwhile. A kernel that does not offer it is an error of kind
// Unimplemented.
func (r *Reader) WatchPressure(ctx context.Context, notify func()) error {
	path := filepath.Join(r.paths.Proc, "pressure/memory")
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fault.New(fault.Unimplemented, "open %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.Write(fd, append([]byte(pressureTrigger), 0)); err != nil {
		return fault.New(fault.Unimplemented, "set a trigger on %s: %w", path, err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("make an eventfd: %w", err)
	}
	ended := os.NewFile(uintptr(wake), "eventfd")
	defer func() { _ = ended.Close() }()
	stop := context.AfterFunc(ctx, func() { _, _ = ended.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0}) })
	defer stop()
	return poll(ctx, fd, wake, notify)
}

func poll(ctx context.Context, fd, wake int, notify func()) error {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLPRI}, {Fd: int32(wake), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, -1)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for memory pressure: %w", err)
		case fds[0].Revents&(unix.POLLERR|unix.POLLNVAL|unix.POLLHUP) != 0:
			return fault.New(fault.Unimplemented, "the kernel took the trigger for memory pressure away")
		case fds[0].Revents&unix.POLLPRI != 0:
			notify()
		}
	}
}
