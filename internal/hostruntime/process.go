package hostruntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process is a containerd, our child or not, held by a descriptor so that a reused process number is never taken for it.
type process struct {
	pid  int
	file *os.File
}

// openProcess holds a process that exists.
func openProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	return &process{pid: pid, file: os.NewFile(uintptr(fd), "pidfd")}, nil
}

// findProcess holds the containerd that a pid file names if it runs with this configuration; nil if there is none.
func findProcess(pidFile, configFile string) (*process, error) {
	content, err := os.ReadFile(pidFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read pid file: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || pid < 2 {
		return nil, nil
	}
	p, err := openProcess(pid)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// Asked after the descriptor is held: what is read now is about the process that is held, or it has ended.
	if !isContainerd(pid, configFile) {
		return nil, p.close()
	}
	return p, nil
}

// isContainerd says whether a process is a containerd with a configuration file. A zombie has no command line.
func isContainerd(pid int, configFile string) bool {
	args := commandLine(pid)
	for i := range args {
		if args[i] == "--config" && i+1 < len(args) && args[i+1] == configFile {
			return true
		}
	}
	return false
}

func commandLine(pid int) []string {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimRight(string(content), "\x00"), "\x00")
}

func (p *process) signal(s unix.Signal) error {
	var sent error
	conn, err := p.file.SyscallConn()
	if err == nil {
		err = conn.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), s, nil, 0) })
	}
	if err = errors.Join(err, sent); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("send signal %d to process %d: %w", s, p.pid, err)
	}
	return nil
}

// wait returns nil when the process has ended, or the context's error. Several goroutines may wait.
func (p *process) wait(ctx context.Context) error {
	file, err := p.dup()
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	conn, err := file.SyscallConn()
	if err != nil {
		return fmt.Errorf("wait for process %d: %w", p.pid, err)
	}
	stop := context.AfterFunc(ctx, func() {
		// An error means that the file is closed: the wait is over.
		_ = file.SetReadDeadline(time.Unix(1, 0))
	})
	defer stop()
	err = conn.Read(func(fd uintptr) bool {
		n, pollErr := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || (pollErr != nil && !errors.Is(pollErr, unix.EINTR))
	})
	if err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("wait for process %d: %w", p.pid, err))
	}
	// If it was our child, collect it.
	var status unix.WaitStatus
	if _, err := unix.Wait4(p.pid, &status, unix.WNOHANG, nil); err != nil && !errors.Is(err, unix.ECHILD) {
		return fmt.Errorf("collect process %d: %w", p.pid, err)
	}
	return nil
}

// dup gives each wait a descriptor and a deadline of its own.
func (p *process) dup() (*os.File, error) {
	var fd int
	var dupErr error
	conn, err := p.file.SyscallConn()
	if err == nil {
		err = conn.Control(func(from uintptr) { fd, dupErr = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0) })
	}
	if err = errors.Join(err, dupErr); err != nil {
		return nil, fmt.Errorf("wait for process %d: %w", p.pid, err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

func (p *process) close() error { return p.file.Close() }
