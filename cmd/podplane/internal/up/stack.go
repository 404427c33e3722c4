package up

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/podplane/podplane/cmd/podplane/internal/rest"
	"github.com/podplane/podplane/cmd/podplane/internal/supervise"
)

// Services are the six, in the order in which they are started.
var Services = []string{"syncd", "pleg", "prober", "volumed", "evictd", "gateway"}

// readyTimeout bounds the wait for the services; they need some hundred
// milliseconds on an idle host.
const readyTimeout = 60 * time.Second

// stack is a running Podplane. One goroutine owns each child; stop ends them in
// reverse order of their start.
type stack struct {
	cfg      Config
	out      io.Writer
	self     string
	runtime  *ownRuntime
	lock     *lock
	ownBus   bool
	sup      *supervise.Supervisor
	forks    context.CancelFunc
	children []*child
	failed   chan error
	ready    atomic.Bool // all have been ready once
	outMu    sync.Mutex
}

type child struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
}

// start starts everything and returns when every service is ready. On an error
// it stops what it had started.
func start(ctx context.Context, cfg Config, out io.Writer) (*stack, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("podplane up has to run as root: it mounts volumes and starts containers")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own binary: %w", err)
	}
	for _, d := range []string{cfg.Root, cfg.RunDir, filepath.Join(cfg.Root, "log"), keysDir(cfg)} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			return nil, fmt.Errorf("make directory: %w", err)
		}
	}
	l, err := acquire(cfg.RunDir)
	if err != nil {
		return nil, err
	}
	s := &stack{cfg: cfg, out: out, self: self, lock: l, failed: make(chan error, len(Services)+2)}
	if err := s.startAll(ctx); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *stack) startAll(ctx context.Context) error {
	var err error
	if s.cfg, err = s.cfg.withPorts(); err != nil {
		return err
	}
	if err := errors.Join(s.checkCertificates(), s.makeLocalToken()); err != nil {
		return err
	}
	if err := s.startRuntime(ctx); err != nil {
		return err
	}
	forkCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.forks = cancel
	s.sup = supervise.New(forkCtx, func(e supervise.Exit) {
		s.say("%s ended (%s); starting it again in %s; its log: %s%s\n", e.Name, exitText(e.Err), e.Restart, s.logFile(e.Name), lastWords(s.logFile(e.Name)))
	})
	if err := s.startBus(); err != nil {
		return err
	}
	began := time.Now()
	for _, p := range s.processes() {
		s.keep(p.name, s.serviceArgs(p.service))
	}
	go supervise.BoundLogs(forkCtx, s.logFiles(), func(err error) { s.say("%v\n", err) })
	if err := s.waitReady(ctx); err != nil {
		return err
	}
	s.ready.Store(true)
	s.say("  services  %s: ready after %s\n", s.summary(), time.Since(began).Round(10*time.Millisecond))
	return s.writeInfo()
}

func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// maxLastWords bounds what is repeated of a log.
const maxLastWords = 4 << 10

// lastWords is the last line of a log, which says why a process ended that had a reason; empty where there is none.
func lastWords(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }() // only read
	if _, err := f.Seek(-maxLastWords, io.SeekEnd); err != nil {
		_, _ = f.Seek(0, io.SeekStart) // it is shorter
	}
	data, err := io.ReadAll(io.LimitReader(f, maxLastWords))
	if err != nil {
		return ""
	}
	text := strings.TrimSpace(string(data))
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	if text == "" {
		return ""
	}
	return "; its last line: " + text
}

// keep keeps a child running until stop.
func (s *stack) keep(name string, args []string) {
	ctx, cancel := context.WithCancel(context.Background())
	c := &child{name: name, cancel: cancel, done: make(chan struct{})}
	s.children = append(s.children, c)
	go func() {
		defer close(c.done)
		err := s.sup.Keep(ctx, supervise.Process{
			Name: name, Path: s.self, Args: args, Env: os.Environ(),
			LogFile: s.logFile(name), PIDFile: filepath.Join(s.cfg.RunDir, name+".pid"),
			StopTimeout: s.cfg.StopTimeout,
			GiveUp:      func(end error) error { return s.refused(ctx, args, end) },
		})
		if err != nil {
			select {
			case s.failed <- err:
			default: // the first ones are enough to stop for
			}
		}
	}()
}

// stop ends the children, last started first, then lets go of the runtime.
func (s *stack) stop() {
	for i := len(s.children) - 1; i >= 0; i-- {
		s.children[i].cancel()
		<-s.children[i].done
	}
	if s.forks != nil {
		s.forks()
	}
	s.runtime.release()
	_ = os.Remove(s.infoFile())
	s.lock.release()
}

// waitReady waits until gateway answers and says that each child is ready.
func (s *stack) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	c, err := s.client()
	if err != nil {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	missing := "gateway: no answer yet"
	for {
		if list, err := rest.Services(ctx, c); err == nil {
			if missing = notReady(s.cfg.Node, list, s.processes(), s.pids()); missing == "" {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the services: %w; still missing: %s; their logs are in %s", ctx.Err(), missing, s.logDir())
		case err := <-s.failed:
			return err
		case <-tick.C:
		}
	}
}

func (s *stack) say(format string, args ...any) {
	s.outMu.Lock()
	defer s.outMu.Unlock()
	fmt.Fprintf(s.out, format, args...)
}

func (s *stack) logDir() string             { return filepath.Join(s.cfg.Root, "log") }
func (s *stack) logFile(name string) string { return filepath.Join(s.logDir(), name+".log") }
func (s *stack) infoFile() string           { return filepath.Join(s.cfg.RunDir, infoName) }

// logFiles are those that grow as long as Podplane runs.
func (s *stack) logFiles() []string {
	files := make([]string, len(s.children), len(s.children)+1)
	for i, c := range s.children {
		files[i] = s.logFile(c.name)
	}
	if s.runtime != nil {
		files = append(files, s.runtime.config.LogFile())
	}
	return files
}
