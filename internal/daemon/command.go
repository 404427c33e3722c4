package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/podplane/podplane/internal/conf"
	"github.com/podplane/podplane/internal/fault"
)

// Version is this build's version; the linker sets it (-X github.com/podplane/podplane/internal/daemon.Version=v1.2.3).
var Version = "dev"

// Exit codes of a service.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// Services share one host with the pods they serve: collect garbage early, and harder before the heap grows beyond what a service should
// ever need. GOGC and GOMEMLIMIT override both. Work on at most half of the cores, and not on many: a service mostly waits, and each more
// thread that may run costs wake-ups and looking for work (docs/decisions/0022). GOMAXPROCS overrides it.
const (
	gcPercent   = 50
	memoryLimit = 128 << 20
	maxThreads  = 4
)

// Service is one service: its name, its configuration and what it does.
type Service[C any] struct {
	// Name is the short name, as in syncd.
	Name string
	// Short says in one line what it does.
	Short string
	// Defaults gives the configuration before file, environment and flags.
	Defaults func() C
	// Run does the service's work until ctx ends. It registers on deps.GRPC what it serves, then calls deps.Serve.
	Run func(ctx context.Context, cfg C, deps Deps) error
}

// Command makes the command that runs a service.
func Command[C any, P interface {
	*C
	Configuration
}](s Service[C],
) *cobra.Command {
	cfg := s.Defaults()
	loader := conf.New(s.Name, &cfg)
	var file string
	var check, printConfig bool
	cmd := &cobra.Command{
		Use: s.Name, Short: s.Short, Version: Version, Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := loader.Load(file, os.Environ()); err != nil {
				return usageError{err}
			}
			if err := P(&cfg).Common().complete(); err != nil {
				return err
			}
			if printConfig {
				out, err := loader.Print()
				if err != nil {
					return err
				}
				_, err = cmd.OutOrStdout().Write(out)
				return err
			}
			if check {
				return nil
			}
			tune()
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			return Run[C, P](ctx, s, cfg, Options{})
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	flags := cmd.Flags()
	flags.StringVar(&file, "config", "", "YAML file with the configuration")
	flags.BoolVar(&check, "check-config", false, "check the configuration and exit")
	flags.BoolVar(&printConfig, "print-config", false, "print the effective configuration, secrets masked, and exit")
	loader.Bind(flags)
	return cmd
}

// Main runs a command and exits with its code. It is all that a service's main has to call.
func Main(cmd *cobra.Command) {
	os.Exit(Execute(context.Background(), cmd))
}

// Execute runs a command, says on its standard error why it failed, and returns the exit code.
func Execute(ctx context.Context, cmd *cobra.Command) int {
	ran, err := cmd.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v\n", ran.CommandPath(), err)
	if _, usage := errors.AsType[usageError](err); usage || fault.Is(err, fault.Invalid) {
		return ExitUsage
	}
	return ExitFailed
}

// usageError is a configuration that can't be used.
type usageError struct{ error }

// Unwrap gives the cause.
func (e usageError) Unwrap() error { return e.error }

func tune() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(threads(runtime.GOMAXPROCS(0)))
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
}

// threads is how many threads of a service may run at once where so many cores may be used (the host's, or the container's limit).
func threads(cores int) int { return min(max(cores/2, 1), maxThreads) }
