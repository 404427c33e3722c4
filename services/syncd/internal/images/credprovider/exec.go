package credprovider

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// execTimeout is how long a plugin may take, pipeDelay how long its output may stay open once it has ended.
	execTimeout = time.Minute
	pipeDelay   = 2 * time.Second
	maxAnswer   = 1 << 20
	maxStderr   = 4 << 10
)

type request struct {
	metav1.TypeMeta `json:",inline"`
	Image           string `json:"image"`
}

type response struct {
	metav1.TypeMeta `json:",inline"`
	CacheKeyType    string               `json:"cacheKeyType"`
	CacheDuration   *metav1.Duration     `json:"cacheDuration,omitempty"`
	Auth            map[string]basicAuth `json:"auth,omitempty"`
}

type basicAuth struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// ask runs the plugin. What it says on standard error is for its operator: it goes to the log, not into the error, which users of pods see.
func (p *plugin) ask(ctx context.Context, image string, log *slog.Logger) (*response, error) {
	ctx, cancel := context.WithTimeout(ctx, execTimeout)
	defer cancel()
	in, err := json.Marshal(request{TypeMeta: metav1.TypeMeta{APIVersion: p.APIVersion, Kind: requestKind}, Image: image})
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	stdout, stderr := &limited{most: maxAnswer}, &limited{most: maxStderr}
	cmd := exec.CommandContext(ctx, p.path, p.Args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), stdout, stderr
	cmd.Env = environment(os.Environ(), p.Env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = pipeDelay
	err = cmd.Run()
	if ctx.Err() != nil {
		err = ctx.Err()
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("did not answer within %s: %w", execTimeout, err)
		}
		return nil, err
	}
	if err != nil {
		log.WarnContext(ctx, "a credential provider failed", slog.String("provider", p.Name), slog.String("image", image), slog.Any("error", err),
			slog.String("stderr", stderr.buf.String()))
		return nil, fmt.Errorf("failed: %w", err)
	}
	if stdout.over {
		return nil, fmt.Errorf("answered with more than %d bytes", maxAnswer)
	}
	return decodeResponse(stdout.buf.Bytes(), p.APIVersion)
}

// decodeResponse reads an answer, in the version of the request. Nothing of its content is in the error.
func decodeResponse(raw []byte, version string) (*response, error) {
	var r response
	if json.Unmarshal(raw, &r) != nil {
		return nil, fmt.Errorf("did not answer with a %s", responseKind)
	}
	if r.Kind != responseKind || r.APIVersion != version {
		return nil, fmt.Errorf("did not answer with a %s of %s", responseKind, version)
	}
	return &r, nil
}

// environment is that of this process without what is Podplane's own, with the provider's variables.
func environment(own []string, add []envVar) []string {
	env := slices.DeleteFunc(slices.Clone(own), func(v string) bool {
		return strings.HasPrefix(v, "PODPLANE_") || strings.HasPrefix(v, "OTEL_") // some are secret
	})
	for _, v := range add {
		env = append(env, v.Name+"="+v.Value)
	}
	return env
}

// limited takes what is written to it up to a limit, and drops the rest.
type limited struct {
	buf  bytes.Buffer
	most int
	over bool
}

// Write implements io.Writer.
func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.most-l.buf.Len())
	l.over = l.over || n < len(p)
	l.buf.Write(p[:n])
	return len(p), nil
}
