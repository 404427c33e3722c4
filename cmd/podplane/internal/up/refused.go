package up

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/podplane/podplane/internal/daemon"
)

// checkTimeout bounds the question to a service whether it takes its settings.
const checkTimeout = 10 * time.Second

// refused says, when a service ended as one that can't use its settings and
// repeats so when it is asked, which settings and why: to start it again would
// change nothing. A crash has the same exit code, which is why it is asked. Once
// all were ready the settings are good, and a service that ends is started again
// whatever happens.
func (s *stack) refused(ctx context.Context, args []string, end error) error {
	if s.ready.Load() || !slices.Contains(Services, args[0]) || exitCode(end) != daemon.ExitUsage {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	said, err := exec.CommandContext(ctx, s.self, append(slices.Clone(args), "--check-config")...).CombinedOutput()
	if exitCode(err) != daemon.ExitUsage {
		return nil
	}
	return errors.New(strings.TrimSpace(string(said)))
}

// exitCode is that of a process that ended by itself; -1 otherwise, 0 for nil.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return e.ExitCode()
	}
	return -1
}
