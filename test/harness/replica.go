package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// Replica is one more process of a service, beside those that `podplane up` keeps.
type Replica struct {
	cmd  *exec.Cmd
	done chan error
	log  *os.File
}

// AddReplica starts one more process of a service, with the arguments of the one that runs.
func (s *Stack) AddReplica(service string) (*Replica, error) {
	pid, err := s.PID(service)
	if err != nil {
		return nil, fmt.Errorf("find process of %s: %w", service, err)
	}
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return nil, fmt.Errorf("read the arguments of %s: %w", service, err)
	}
	var args []string
	for _, a := range bytes.Split(bytes.TrimSuffix(line, []byte{0}), []byte{0})[1:] {
		args = append(args, string(a))
	}
	log, err := os.OpenFile(filepath.Join(s.Root(), "log", service+"-added.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, err
	}
	r := &Replica{cmd: exec.Command(s.opts.Binary, args...), done: make(chan error, 1), log: log}
	r.cmd.Env = append(os.Environ(), s.opts.Env...)
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	r.cmd.Stdout, r.cmd.Stderr = log, log
	if err := r.cmd.Start(); err != nil {
		_ = log.Close()
		return nil, fmt.Errorf("start one more %s: %w", service, err)
	}
	go func() { r.done <- r.cmd.Wait() }()
	return r, nil
}

// Stop ends the replica gracefully, or with SIGKILL, and waits for its end.
func (r *Replica) Stop(ctx context.Context, sig syscall.Signal) error {
	defer func() { _ = r.log.Close() }()
	if err := r.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case err := <-r.done:
		r.done <- err
		if sig == syscall.SIGKILL {
			return nil
		}
		return err
	case <-ctx.Done():
		_ = r.cmd.Process.Kill()
		return fmt.Errorf("the added replica did not end: %w", ctx.Err())
	}
}

// Service is a registered replica.
type Service struct {
	Service  string `json:"service"`
	Instance string `json:"instance"`
	Node     string `json:"node"`
	Ready    bool   `json:"ready"`
	PID      string `json:"pid"`
	Shards   []int  `json:"shards"`
	// HTTPAddress is where /metrics is.
	HTTPAddress string `json:"httpAddress"`
}

// Services lists the registered replicas.
func (s *Stack) Services(ctx context.Context) ([]Service, error) {
	a, err := s.Want(ctx, http.StatusOK, http.MethodGet, "/podplane/v1/services", "", nil)
	if err != nil {
		return nil, err
	}
	var list struct {
		Services []Service `json:"services"`
	}
	if err := json.Unmarshal(a.Body, &list); err != nil {
		return nil, fmt.Errorf("decode list of services: %w", err)
	}
	return list.Services, nil
}
