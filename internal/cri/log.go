package cri

import (
	"context"
	"log/slog"
	"time"

	"github.com/podplane/podplane/internal/telemetry"
)

// note logs a call that has ended.
func (c *Client) note(ctx context.Context, op *operation, took time.Duration, err error) {
	if c.log == nil || !c.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	attrs := op.attrs(took)
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	c.log.LogAttrs(ctx, slog.LevelDebug, "runtime called", attrs...)
}

// watch logs a call that takes long while it goes on, so that one that hangs has a name long before its deadline. The result ends that.
func (c *Client) watch(ctx context.Context, op *operation) (stop func() bool) {
	if c.log == nil || op.timeout == 0 {
		return func() bool { return true }
	}
	after := c.timeouts.Slow + op.own
	return time.AfterFunc(after, func() {
		c.log.LogAttrs(ctx, slog.LevelWarn, "the runtime has not answered yet", append(op.attrs(after), slog.Duration("timeout", op.timeout))...)
	}).Stop
}

// attrs say what the call is about.
func (o *operation) attrs(took time.Duration) []slog.Attr {
	attrs := []slog.Attr{slog.String("operation", o.name), slog.Duration("took", took.Round(10*time.Microsecond))}
	for _, a := range []struct{ key, value string }{
		{string(o.kind), o.target}, {string(telemetry.PodUID), o.podUID}, {"runtime_handler", o.handler},
	} {
		if a.key != "" && a.value != "" {
			attrs = append(attrs, slog.String(a.key, a.value))
		}
	}
	return attrs
}
