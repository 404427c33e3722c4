package hostruntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/podplane/podplane/internal/cri"
)

// Start looks at the runtime this often until it is ready. Only Start does so, never a running node.
const readyPoll = 20 * time.Millisecond

// logTail is how much of containerd's log goes into an error.
const logTail = 4 << 10

// waitReady returns when the runtime says that it and its network are ready. It fails at once when containerd ends.
func (r *Runtime) waitReady(ctx context.Context) error {
	client, err := cri.Dial(ctx, r.Endpoint(), cri.Options{})
	if err != nil {
		return err
	}
	ready := func() error {
		// A socket that nobody listens on yet is not left to gRPC, whose next try would be later than ours.
		conn, err := net.DialTimeout("unix", r.config.Socket(), time.Second)
		if err != nil {
			return err
		}
		_ = conn.Close()
		return readiness(ctx, client)
	}
	ended := make(chan error, 1)
	watch, cancel := context.WithCancel(ctx)
	go func() { ended <- r.process.wait(watch) }()
	err = pollReady(ctx, ready, ended)
	cancel()
	if err == nil || !errors.Is(err, errEnded) {
		<-ended
	}
	if err != nil {
		err = fmt.Errorf("wait for containerd: %w; its log %s ends with:\n%s", err, r.config.LogFile(), r.config.LogTail())
	}
	return errors.Join(err, client.Close())
}

var errEnded = errors.New("it ended")

func pollReady(ctx context.Context, ready func() error, ended <-chan error) error {
	ticker := time.NewTicker(readyPoll)
	defer ticker.Stop()
	for {
		last := ready()
		if last == nil {
			return nil
		}
		select {
		case err := <-ended:
			return errors.Join(errEnded, err)
		case <-ctx.Done():
			return errors.Join(last, ctx.Err())
		case <-ticker.C:
		}
	}
}

func readiness(ctx context.Context, client cri.Health) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	status, err := client.Status(ctx)
	if err != nil {
		return err
	}
	for _, kind := range []string{cri.ConditionRuntimeReady, cri.ConditionNetworkReady} {
		if c := status.Condition(kind); !c.Status {
			return fmt.Errorf("%s is false: %s: %s", kind, c.Reason, c.Message)
		}
	}
	return nil
}

// LogTail is the end of containerd's log, or why there is none.
func (c *Config) LogTail() string {
	file, err := os.Open(c.LogFile())
	if err != nil {
		return err.Error()
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err == nil && info.Size() > logTail {
		if _, err := file.Seek(-logTail, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	content, err := io.ReadAll(io.LimitReader(file, logTail))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(content))
}
