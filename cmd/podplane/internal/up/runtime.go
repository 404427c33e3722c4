package up

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/podplane/podplane/internal/hostruntime"
)

// ownRuntime is the containerd that Podplane runs itself; nil: another one was
// named. A goroutine starts it again when it ends before Podplane does.
type ownRuntime struct {
	config hostruntime.Config
	cancel context.CancelFunc
	done   chan struct{}
}

// startRuntime starts a runtime unless one is named.
func (s *stack) startRuntime(ctx context.Context) error {
	if s.cfg.CRIEndpoint != "" {
		s.say("  runtime   %s, as named\n", s.cfg.CRIEndpoint)
		return nil
	}
	cfg, err := s.cfg.OwnRuntime()
	if err != nil {
		return err
	}
	r, err := hostruntime.Start(ctx, cfg)
	if err != nil {
		return fmt.Errorf("start the runtime: %w", err)
	}
	s.cfg.CRIEndpoint = r.Endpoint()
	how := "started"
	if r.Adopted() {
		how = "was running"
	}
	s.say("  runtime   containerd, %s, %s\n", how, r.Endpoint())
	for _, lack := range r.Host().Lacks() {
		s.say("            note: %s\n", lack)
	}
	keepCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.runtime = &ownRuntime{config: cfg, cancel: cancel, done: make(chan struct{})}
	go s.runtime.keep(keepCtx, r, s.say)
	return nil
}

// localDir is where `make` puts the runtime's programs: .local beside bin.
func localDir(self string) (string, error) {
	dir := filepath.Join(filepath.Dir(filepath.Dir(self)), ".local")
	if _, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("find the runtime's programs: %w; run `make runtime`, or name a runtime with --cri-endpoint or CRI_ENDPOINT", err)
	}
	return dir, nil
}

// restartDelay is how long keep waits before it starts containerd again.
const restartDelay = time.Second

// keep starts containerd again whenever it ends, until ctx ends.
func (o *ownRuntime) keep(ctx context.Context, r *hostruntime.Runtime, say func(string, ...any)) {
	defer close(o.done)
	for {
		if r != nil {
			err := r.Wait(ctx)
			_ = r.Close()
			if ctx.Err() != nil {
				return
			}
			say("containerd ended (%v); starting it again; its log: %s\n", err, o.config.LogFile())
		}
		var err error
		if r, err = hostruntime.Start(ctx, o.config); err != nil && ctx.Err() == nil {
			say("%v\n", err)
			select {
			case <-ctx.Done():
			case <-time.After(restartDelay):
			}
		}
		if ctx.Err() != nil {
			if r != nil {
				_ = r.Close()
			}
			return
		}
	}
}

// release lets go of the runtime without stopping it.
func (o *ownRuntime) release() {
	if o == nil {
		return
	}
	o.cancel()
	<-o.done
}

// farewell says what is left running.
func (o *ownRuntime) farewell() string {
	if o == nil {
		return ""
	}
	return ", and so does their containerd, which keeps their logs"
}

// stopRuntime ends the runtime and removes its network, and the pods' empty cgroups below cgroupRoot; images stay.
func (o *ownRuntime) stopRuntime(ctx context.Context, cgroupRoot string) error {
	if o == nil {
		return nil
	}
	r, err := hostruntime.Start(ctx, o.config)
	if err != nil {
		return fmt.Errorf("stop the runtime: %w", err)
	}
	if err := r.Retire(ctx); err != nil {
		return fmt.Errorf("stop the runtime: %w", err)
	}
	if err := removeCgroups(cgroupMount, cgroupRoot); err != nil {
		return fmt.Errorf("remove the pods' cgroups: %w", err)
	}
	return nil
}
