// Package supervise keeps child processes running.
//
// One goroutine owns one child. A child that ends, for whatever reason, is
// started again: after 100 ms doubling to 2 s, or at once when it had run for
// 10 s. When the supervisor itself dies,
// even by SIGKILL, the kernel sends its children SIGTERM, so that a second
// start meets none of them. Children never share a terminal's signals with the
// supervisor: Ctrl-C reaches them only in the order that the supervisor chooses.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

const (
	firstDelay = 100 * time.Millisecond
	maxDelay   = 2 * time.Second
	// stable is how long a child runs until its next end counts as the first.
	stable = 10 * time.Second
)

// Process is a child to keep running.
type Process struct {
	Name string
	Path string
	Args []string
	Env  []string
	// LogFile takes what the child prints; it is created with mode 0640.
	LogFile string
	// PIDFile holds the child's process id while it runs.
	PIDFile string
	// StopTimeout is how long the child may take to end after SIGTERM; then it is killed.
	StopTimeout time.Duration
	// GiveUp, when not nil, is asked after each end of the child, with how it
	// ended; an error says why it makes no sense to start the child again.
	GiveUp func(end error) error
}

// Exit is told when a child ended.
type Exit struct {
	Name string
	// Err is how it ended; nil: exit code 0.
	Err error
	// Restart is the delay after which it is started again.
	Restart time.Duration
}

// Supervisor starts children.
type Supervisor struct {
	forks  chan func()
	onExit func(Exit)
}

// New returns a supervisor that forks until ctx ends. onExit is called from
// the goroutine that owns the child.
func New(ctx context.Context, onExit func(Exit)) *Supervisor {
	s := &Supervisor{forks: make(chan func()), onExit: onExit}
	go s.forker(ctx)
	return s
}

// forker runs all forks on one thread that lives as long as the supervisor:
// the kernel ties the death signal of a child to the thread that forked it.
func (s *Supervisor) forker(ctx context.Context) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-s.forks:
			f()
		}
	}
}

// Keep runs p until ctx ends, then stops it and returns nil. It returns an
// error only where p can't be started at all, or is given up.
func (s *Supervisor) Keep(ctx context.Context, p Process) error {
	var delay time.Duration
	for {
		started := time.Now()
		cmd, err := s.start(ctx, p)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("start %s: %w", p.Name, err)
		}
		err = wait(ctx, cmd, p.StopTimeout)
		_ = os.Remove(p.PIDFile)
		if ctx.Err() != nil {
			return nil
		}
		if p.GiveUp != nil {
			if err := p.GiveUp(err); err != nil {
				return err
			}
		}
		delay = NextDelay(delay, time.Since(started))
		s.onExit(Exit{Name: p.Name, Err: err, Restart: delay})
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(delay):
		}
	}
}

// NextDelay is how long to wait before a child is started again, from the
// delay before and how long the child ran.
func NextDelay(before, ran time.Duration) time.Duration {
	switch {
	case ran >= stable:
		return 0
	case before == 0:
		return firstDelay
	default:
		return min(2*before, maxDelay)
	}
}

func (s *Supervisor) start(ctx context.Context, p Process) (*exec.Cmd, error) {
	out, err := os.OpenFile(p.LogFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Env = p.Env
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	result := make(chan error, 1)
	select {
	case s.forks <- func() { result <- cmd.Start() }:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := <-result; err != nil {
		return nil, err
	}
	if err := writePID(p.PIDFile, cmd.Process.Pid); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, err
	}
	return cmd, nil
}

// writePID replaces the file in one step: a reader finds a whole number.
func writePID(file string, pid int) error {
	next := file + ".next"
	if err := os.WriteFile(next, []byte(strconv.Itoa(pid)+"\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(next, file)
}

// wait waits for the child's end, and brings it about when ctx ends.
func wait(ctx context.Context, cmd *exec.Cmd, stopTimeout time.Duration) error {
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-done:
		return err
	case <-time.After(stopTimeout):
	}
	if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill process %d: %w", cmd.Process.Pid, err)
	}
	return <-done
}
