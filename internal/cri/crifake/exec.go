package crifake

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
)

// ExecSync implements [cri.Execer].
func (r *Runtime) ExecSync(ctx context.Context, containerID string, command []string, timeout time.Duration) (cri.ExecResult, error) {
	const op = "exec_sync"
	if err := r.enter(ctx, op, containerID); err != nil {
		return cri.ExecResult{}, err
	}
	c, err := r.running(op, containerID)
	if err != nil {
		return cri.ExecResult{}, err
	}
	if c.behavior.Exec == nil {
		return cri.ExecResult{}, nil
	}
	execCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	e := c.behavior.Exec(execCtx, command)
	if e.Err != nil {
		return cri.ExecResult{}, &cri.CallError{Op: op, Target: containerID, Err: e.Err}
	}
	if whole := (timeout + time.Second - 1).Truncate(time.Second); timeout > 0 && e.Takes > whole {
		if err := r.wait(ctx, whole); err != nil {
			return cri.ExecResult{}, &cri.CallError{Op: op, Target: containerID, Err: err}
		}
		return cri.ExecResult{}, &cri.ExecTimeoutError{Timeout: whole}
	}
	if e.Takes > 0 {
		if err := r.wait(ctx, e.Takes); err != nil {
			return cri.ExecResult{}, &cri.CallError{Op: op, Target: containerID, Err: err}
		}
	}
	result := cri.ExecResult{ExitCode: e.ExitCode}
	result.Stdout, result.StdoutTruncated = head(e.Stdout)
	result.Stderr, result.StderrTruncated = head(e.Stderr)
	if e.ExitCode != 0 {
		return result, &cri.ExitError{Code: e.ExitCode}
	}
	return result, nil
}

func head(s string) ([]byte, bool) {
	if len(s) > cri.MaxExecOutput {
		return []byte(s[:cri.MaxExecOutput]), true
	}
	return []byte(s), false
}

func (r *Runtime) running(op, id string) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return nil, callError(op, id, fault.NotFound, "no such container")
	}
	if c.State != pod.ContainerRunning {
		return nil, callError(op, id, fault.Internal, "container is in state %s", c.State)
	}
	return c, nil
}

// ExecURL implements [cri.Streamer].
func (r *Runtime) ExecURL(ctx context.Context, containerID string, _ []string, _ cri.Streams) (string, error) {
	return r.streamURL(ctx, "exec", containerID)
}

// AttachURL implements [cri.Streamer].
func (r *Runtime) AttachURL(ctx context.Context, containerID string, _ cri.Streams) (string, error) {
	return r.streamURL(ctx, "attach", containerID)
}

func (r *Runtime) streamURL(ctx context.Context, op, id string) (string, error) {
	if err := r.enter(ctx, op, id); err != nil {
		return "", err
	}
	if _, err := r.running(op, id); err != nil {
		return "", err
	}
	return "http://127.0.0.1:0/" + op + "/" + id, nil
}

// ReopenContainerLog implements [cri.ContainerService].
func (r *Runtime) ReopenContainerLog(ctx context.Context, id string) error {
	const op = "reopen_container_log"
	if err := r.enter(ctx, op, id); err != nil {
		return err
	}
	c, err := r.running(op, id)
	if err != nil || c.LogPath == "" {
		return err
	}
	if err := appendLog(c.LogPath, nil); err != nil {
		return callError(op, id, fault.Internal, "reopen: %w", err)
	}
	return nil
}

// writeLog makes the log file, as a runtime does at the start, and writes the container's lines.
func (c *container) writeLog(now time.Time) error {
	if c.LogPath == "" || c.sandbox.config.LogDirectory == "" {
		return nil
	}
	var b bytes.Buffer
	for _, line := range c.behavior.Stdout {
		fmt.Fprintf(&b, "%s stdout F %s\n", now.Format(time.RFC3339Nano), line)
	}
	return appendLog(c.LogPath, b.Bytes())
}

func appendLog(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	if _, err := f.Write(content); err != nil {
		_ = f.Close()
		return fmt.Errorf("write log: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("close log: %w", err)
	}
	return nil
}
