package hostruntime

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// adoptTimeout is how long a containerd that runs already may take to answer before it is replaced.
const adoptTimeout = 10 * time.Second

// maxLog is the size from which the log is set aside at a start.
const maxLog = 16 << 20

// Runtime is a running containerd. Its methods are safe for one goroutine at a time.
type Runtime struct {
	config  Config
	host    Host
	adopted bool
	process *process
}

// Start starts containerd, or adopts the one that runs already, and returns when it is ready to run pods and has its images.
// Nothing of it ends with the context.
func Start(ctx context.Context, config Config) (*Runtime, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	host, err := DetectHost()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, StartTimeout)
	defer cancel()
	unlock, err := config.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	r := &Runtime{config: config, host: host}
	if err := r.start(ctx); err != nil {
		return nil, errors.Join(err, r.abandon())
	}
	return r, nil
}

func (r *Runtime) start(ctx context.Context) error {
	spec, err := r.prepare()
	if err != nil {
		return err
	}
	if err := r.adopt(ctx, spec); err != nil {
		return err
	}
	if r.process == nil {
		if err := checkSubnet(r.config.Bridge, r.config.PodCIDR); err != nil {
			return err
		}
		if err := r.launch(spec); err != nil {
			return err
		}
		if err := r.waitReady(ctx); err != nil {
			return err
		}
	}
	if r.host.Iptables {
		if err := r.config.addRules(ctx); err != nil {
			return err
		}
	}
	for _, image := range r.config.Images {
		if err := r.ImportImage(ctx, image); err != nil {
			return err
		}
	}
	return nil
}

// abandon undoes the start of a containerd that this call launched. One that ran before is left alone.
func (r *Runtime) abandon() error {
	if r.process == nil {
		return nil
	}
	if r.adopted {
		return r.process.close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), StopTimeout)
	defer cancel()
	return r.Stop(ctx)
}

// Endpoint is the CRI endpoint.
func (r *Runtime) Endpoint() string { return r.config.Endpoint() }

// Config is what the runtime was started with.
func (r *Runtime) Config() Config { return r.config }

// Host is what was found out about the host.
func (r *Runtime) Host() Host { return r.host }

// Adopted says whether the containerd ran before Start.
func (r *Runtime) Adopted() bool { return r.adopted }

// PID is containerd's process number.
func (r *Runtime) PID() int { return r.process.pid }

// Wait returns nil when containerd has ended, for whatever reason, or the context's error. It uses no timer.
func (r *Runtime) Wait(ctx context.Context) error { return r.process.wait(ctx) }

// Close lets go of containerd without stopping it.
func (r *Runtime) Close() error { return r.process.close() }

// Stop ends containerd: gracefully until the context ends or StopTimeout has passed, then by force. Containers keep running; they
// block when they have filled their log pipes, until containerd runs again.
func (r *Runtime) Stop(ctx context.Context) error {
	err := stopProcess(ctx, r.process)
	return errors.Join(err, r.process.close(), removeFile(r.config.pidFile()))
}

// Retire is Stop for a runtime that has no pods left: it also removes the bridge and the rules. Images stay.
func (r *Runtime) Retire(ctx context.Context) error {
	return errors.Join(r.Stop(ctx), r.config.removeNetwork(ctx))
}

func stopProcess(ctx context.Context, p *process) error {
	graceful, cancel := context.WithTimeout(ctx, StopTimeout)
	defer cancel()
	if err := p.signal(unix.SIGTERM); err != nil {
		return err
	}
	if p.wait(graceful) == nil {
		return nil
	}
	if err := p.signal(unix.SIGKILL); err != nil {
		return err
	}
	forced, cancel := context.WithTimeout(context.WithoutCancel(ctx), StopTimeout)
	defer cancel()
	return p.wait(forced)
}

// prepare writes the configuration and returns what tells two configurations apart.
func (r *Runtime) prepare() (string, error) {
	c := &r.config
	for _, dir := range []string{c.Root, c.State, c.shimSockets(), c.cniConfDir(), c.registryDir(), c.importedDir()} {
		// Only root looks into the runtime's directories, but users of containers may have to pass through Root.
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return "", fmt.Errorf("make runtime directory: %w", err)
		}
	}
	config, err := c.renderContainerd(r.host)
	if err != nil {
		return "", err
	}
	network, err := c.renderNetwork(r.host)
	if err != nil {
		return "", err
	}
	if err := writeFile(c.configFile(), config); err != nil {
		return "", fmt.Errorf("write containerd's configuration: %w", err)
	}
	if err := writeFile(filepath.Join(c.cniConfDir(), "10-podplane.conflist"), network); err != nil {
		return "", fmt.Errorf("write network configuration: %w", err)
	}
	for _, host := range c.PlainHTTP {
		if err := c.AddRegistry(host); err != nil {
			return "", err
		}
	}
	program, err := os.Stat(c.program("containerd"))
	if err != nil {
		return "", fmt.Errorf("look at containerd: %w", err)
	}
	// PATH comes first, and differs between the shells that a user has.
	environment := c.environment()[1:]
	sum := sha256.New()
	fmt.Fprintln(sum, config, program.Size(), program.ModTime().UnixNano(), strings.Join(environment, "\n"))
	return fmt.Sprintf("%x", sum.Sum(nil)), nil
}

// environment is what containerd runs with: PATH first, proxies and OTEL_* of this process, and Config.Env.
func (c *Config) environment() []string {
	path := c.BinDir + ":" + os.Getenv(pathEnvironment) + ":" + administrators
	var env []string
	otel := false
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		switch {
		case name == "OTEL_SERVICE_NAME" || name == "OTEL_RESOURCE_ATTRIBUTES":
			// These name the process that has them, which containerd is not.
		case strings.HasPrefix(name, "OTEL_"):
			otel = true
			env = append(env, variable)
		case strings.EqualFold(name, "http_proxy"), strings.EqualFold(name, "https_proxy"), strings.EqualFold(name, "no_proxy"):
			env = append(env, variable)
		}
	}
	if otel {
		env = append(env, "OTEL_SERVICE_NAME=containerd")
	}
	sort.Strings(env)
	env = append([]string{pathEnvironment + "=" + path}, env...)
	return append(env, c.Env...)
}

// adopt takes the containerd that runs already if it is the one that is wanted and is well, and otherwise ends it.
func (r *Runtime) adopt(ctx context.Context, spec string) error {
	c := &r.config
	p, err := findProcess(c.pidFile(), c.configFile())
	if err != nil || p == nil {
		return err
	}
	running, err := os.ReadFile(c.specFile())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return errors.Join(fmt.Errorf("read runtime's state: %w", err), p.close())
	}
	r.process = p
	if string(running) == spec {
		healthy, cancel := context.WithTimeout(ctx, adoptTimeout)
		defer cancel()
		if err = r.waitReady(healthy); err == nil {
			r.adopted = true
			return nil
		}
	}
	r.process = nil
	if ctx.Err() != nil {
		return errors.Join(err, p.close())
	}
	return errors.Join(stopProcess(ctx, p), p.close())
}

// launch starts containerd in a session of its own, so that no signal of a terminal reaches it.
func (r *Runtime) launch(spec string) error {
	c := &r.config
	log, err := openLog(c.LogFile())
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(c.program("containerd"), "--config", c.configFile())
	cmd.Env = c.environment()
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start containerd: %w", err)
	}
	// Our child, and not collected yet: its number is its own.
	if r.process, err = openProcess(cmd.Process.Pid); err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	if err := cmd.Process.Release(); err != nil {
		return fmt.Errorf("start containerd: %w", err)
	}
	if err := writeFile(c.pidFile(), strconv.Itoa(r.process.pid)+"\n"); err != nil {
		return fmt.Errorf("write pid file: %w", err)
	}
	if err := writeFile(c.specFile(), spec); err != nil {
		return fmt.Errorf("write runtime's state: %w", err)
	}
	return nil
}

func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		if err := os.Rename(path, path+".old"); err != nil {
			return nil, fmt.Errorf("set containerd's log aside: %w", err)
		}
	}
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open containerd's log: %w", err)
	}
	return log, nil
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
