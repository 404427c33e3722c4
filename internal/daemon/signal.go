package daemon

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// untilSignal gives a context that ends at the first SIGINT or SIGTERM. By then signals do what they do without us: a second one ends the
// process. stop ends the context and lets go of signals.
func untilSignal(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-signals:
		case <-ctx.Done():
		}
		signal.Stop(signals)
		cancel()
	}()
	return ctx, func() { cancel(); <-ended }
}
