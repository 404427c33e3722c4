// Package harness starts a whole Podplane for tests and benchmarks: the real
// binary's `podplane up` with its bus and six processes, on a real runtime, in
// directories and on ports of its own.
//
// It returns errors rather than taking a testing.TB, so that the benchmark uses
// it too. Whatever it starts, Close ends and removes, pods included.
package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// NoDiskPressure keeps evictd from refusing pods because others fill the disk that the tests run on, unless a test says otherwise.
const NoDiskPressure = "PODPLANE_EVICTD_EVICTION_HARD=memory.available<100Mi"

// Options says what the stack runs on. All but Node may be empty.
type Options struct {
	// Binary is bin/podplane; empty: found above the working directory.
	Binary string
	// CRIEndpoint is the runtime's socket, such as "unix:///run/x.sock".
	CRIEndpoint string
	// Node is the node's name.
	Node string
	// Root holds everything the stack writes; empty: a new temporary directory, removed by Close.
	Root string
	// CgroupRoot is the cgroup below which pods run, such as "/podplane-test-1".
	CgroupRoot string
	// Env are further variables, such as "PODPLANE_EVICTD_EVICTION_HARD=...".
	Env []string
	// Args are further arguments of `podplane up`.
	Args []string
	// HostArgs are further arguments of `podplane up` and `podplane down`.
	HostArgs []string
	// NetNS is the network namespace that the stack is in; empty: the caller's.
	NetNS string
}

// Stack is a running Podplane.
type Stack struct {
	opts    Options
	ownRoot bool
	client  *http.Client

	mu   sync.Mutex
	up   *exec.Cmd
	done chan error
	out  *lockedBuffer
	info Info
}

// Info is what `podplane up` writes to <run-dir>/up.json when all is ready.
type Info struct {
	Server      string `json:"server"`
	NATSURL     string `json:"natsURL"`
	CRIEndpoint string `json:"criEndpoint"`
	Node        string `json:"node"`
}

// Services are the six, in the order in which `podplane up` starts them.
var Services = []string{"syncd", "pleg", "prober", "volumed", "evictd", "gateway"}

// ReadyTimeout bounds how long Start waits until every service is ready.
const ReadyTimeout = 60 * time.Second

// New prepares a stack without starting it.
func New(opts Options) (*Stack, error) {
	if opts.Binary == "" {
		b, err := FindUp(filepath.Join("bin", "podplane"))
		if err != nil {
			return nil, fmt.Errorf("%w: run `make build` first", err)
		}
		opts.Binary = b
	}
	s := &Stack{opts: opts, client: client}
	if opts.NetNS != "" {
		s.client = clientIn(opts.NetNS)
	}
	if opts.Root == "" {
		dir, err := os.MkdirTemp("", "podplane-test-")
		if err != nil {
			return nil, err
		}
		s.opts.Root, s.ownRoot = dir, true
	}
	for _, d := range []string{s.Root(), s.RunDir(), s.ManifestDir(), s.PodLogDir()} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Binary is the podplane that the stack runs.
func (s *Stack) Binary() string { return s.opts.Binary }

// Root is the stack's --root.
func (s *Stack) Root() string { return filepath.Join(s.opts.Root, "lib") }

// RunDir is the stack's --run-dir.
func (s *Stack) RunDir() string { return filepath.Join(s.opts.Root, "run") }

// ManifestDir is the stack's --manifest-dir.
func (s *Stack) ManifestDir() string { return filepath.Join(s.opts.Root, "manifests") }

// PodLogDir is the stack's --pod-log-dir.
func (s *Stack) PodLogDir() string { return filepath.Join(s.opts.Root, "pods-log") }

// Node is the node's name.
func (s *Stack) Node() string { return s.opts.Node }

// Server is the REST API's address, once the stack has been ready.
func (s *Stack) Server() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info.Server
}

// Info is where everything listens, once the stack has been ready.
func (s *Stack) Info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info
}

// Output is what `podplane up` has printed so far.
func (s *Stack) Output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out == nil {
		return ""
	}
	return s.out.String()
}

// Start starts `podplane up` and waits until every service is ready. After a
// Stop it starts again on what is there, at the same addresses.
func (s *Stack) Start(ctx context.Context) error {
	listen := "127.0.0.1:0"
	if srv := s.Server(); srv != "" {
		listen = strings.TrimPrefix(srv, "http://")
	}
	args := append([]string{
		"up", "--node", s.opts.Node, "--root", s.Root(), "--run-dir", s.RunDir(),
		"--listen", listen, "--nats-listen", "127.0.0.1:0",
		"--manifest-dir", s.ManifestDir(), "--pod-log-dir", s.PodLogDir(),
	}, s.opts.Args...)
	if s.opts.CRIEndpoint != "" {
		args = append(args, "--cri-endpoint", s.opts.CRIEndpoint)
	}
	if s.opts.CgroupRoot != "" {
		args = append(args, "--cgroup-root", s.opts.CgroupRoot)
	}
	info := filepath.Join(s.RunDir(), "up.json")
	if err := os.Remove(info); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	cmd := s.command(append(args, s.opts.HostArgs...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	out := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start podplane up: %w", err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	s.mu.Lock()
	s.up, s.done, s.out = cmd, done, out
	s.mu.Unlock()
	return s.waitReady(ctx, info)
}

// command is the stack's binary, in the stack's network namespace.
func (s *Stack) command(args ...string) *exec.Cmd {
	cmd := InNetNS(s.opts.NetNS, s.opts.Binary, args...)
	cmd.Env = slices.Concat([]string{NoDiskPressure}, os.Environ(), s.opts.Env)
	return cmd
}

// waitReady waits until `podplane up` has written its up.json.
func (s *Stack) waitReady(ctx context.Context, file string) error {
	ctx, cancel := context.WithTimeout(ctx, ReadyTimeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		data, err := os.ReadFile(file)
		if err == nil {
			var info Info
			if err := json.Unmarshal(data, &info); err != nil {
				return fmt.Errorf("decode %s: %w", file, err)
			}
			s.mu.Lock()
			s.info = info
			s.mu.Unlock()
			return nil
		}
		select {
		case err := <-s.done:
			s.done <- err
			return fmt.Errorf("podplane up ended before it was ready (%v):\n%s\n%s", err, s.Output(), s.Logs())
		case <-ctx.Done():
			return fmt.Errorf("podplane up was not ready: %w:\n%s\n%s", ctx.Err(), s.Output(), s.Logs())
		case <-tick.C:
		}
	}
}

// Stop ends `podplane up` as Ctrl-C does and waits for its end. Pods go on.
func (s *Stack) Stop(ctx context.Context) error { return s.end(ctx, syscall.SIGINT) }

// KillAll kills `podplane up`, its bus and all services at once with SIGKILL.
func (s *Stack) KillAll(ctx context.Context) error {
	for _, name := range append([]string{"nats"}, Services...) {
		// What is being started again at this moment has no process yet.
		if err := s.Kill(name); err != nil && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return s.end(ctx, syscall.SIGKILL)
}

func (s *Stack) end(ctx context.Context, sig syscall.Signal) error {
	s.mu.Lock()
	cmd, done := s.up, s.done
	s.up = nil
	s.mu.Unlock()
	if cmd == nil {
		return nil
	}
	if err := cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal podplane up: %w", err)
	}
	select {
	case err := <-done:
		if sig == syscall.SIGINT && err != nil {
			return fmt.Errorf("podplane up ended with %w:\n%s", err, s.Output())
		}
		return nil
	case <-ctx.Done():
		_ = cmd.Process.Kill()
		return fmt.Errorf("podplane up did not end after %v: %w", sig, ctx.Err())
	}
}

// PID is the process of a service, of "nats" or of "up" itself.
func (s *Stack) PID(name string) (int, error) {
	if name == "up" {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.up == nil {
			return 0, os.ErrProcessDone
		}
		return s.up.Process.Pid, nil
	}
	data, err := os.ReadFile(filepath.Join(s.RunDir(), name+".pid"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

// Kill kills a service, or "nats", with SIGKILL. `podplane up` starts it again.
func (s *Stack) Kill(name string) error {
	pid, err := s.PID(name)
	if err != nil {
		return fmt.Errorf("find process of %s: %w", name, err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return fmt.Errorf("kill %s (process %d): %w", name, pid, err)
	}
	return nil
}

// Logs are the last lines of each service's log, for messages of failed tests.
func (s *Stack) Logs() string {
	var b strings.Builder
	for _, name := range append([]string{"nats"}, Services...) {
		data, err := os.ReadFile(filepath.Join(s.Root(), "log", name+".log"))
		if err != nil {
			continue
		}
		lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
		if len(lines) > 40 {
			lines = lines[len(lines)-40:]
		}
		fmt.Fprintf(&b, "--- %s\n%s\n", name, bytes.Join(lines, []byte("\n")))
	}
	return b.String()
}

// Close removes every pod, ends everything and removes the stack's directories.
func (s *Stack) Close(ctx context.Context) error {
	s.client.CloseIdleConnections()
	var errs []error
	if err := s.Stop(ctx); err != nil {
		errs = append(errs, err)
	}
	args := []string{
		"down", "--pods", "--node", s.opts.Node, "--root", s.Root(), "--run-dir", s.RunDir(),
		"--pod-log-dir", s.PodLogDir(),
	}
	if s.opts.CRIEndpoint != "" {
		args = append(args, "--cri-endpoint", s.opts.CRIEndpoint)
	}
	if s.opts.CgroupRoot != "" {
		args = append(args, "--cgroup-root", s.opts.CgroupRoot)
	}
	out := &lockedBuffer{}
	cmd := s.command(append(args, s.opts.HostArgs...)...)
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Start()
	if err == nil {
		defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
		err = cmd.Wait()
	}
	if err != nil {
		errs = append(errs, fmt.Errorf("podplane down --pods: %w:\n%s\n%s", err, out.String(), s.Logs()))
	}
	if s.ownRoot {
		if err := os.RemoveAll(s.opts.Root); err != nil {
			errs = append(errs, fmt.Errorf("remove the stack's directory: %w", err))
		}
	}
	return errors.Join(errs...)
}

// FindUp finds a file by its path relative to the working directory or one above it.
func FindUp(rel string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		p := filepath.Join(d, rel)
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("%s is nowhere above %s", rel, dir)
		}
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Hold stops a service, or "nats", with SIGSTOP, so that it is away and is not
// started again, until the returned function lets it go on.
func (s *Stack) Hold(name string) (release func() error, err error) {
	pid, err := s.PID(name)
	if err != nil {
		return nil, fmt.Errorf("find process of %s: %w", name, err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return nil, fmt.Errorf("stop %s (process %d): %w", name, pid, err)
	}
	return func() error { return syscall.Kill(pid, syscall.SIGCONT) }, nil
}
