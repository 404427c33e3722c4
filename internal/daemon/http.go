package daemon

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"
)

type stoppingKey struct{}

// Stopping gives a context that ends as soon as the server of a request begins to stop, for handlers that would otherwise go on for ever.
// Outside of ServeHTTP it never ends.
func Stopping(ctx context.Context) context.Context {
	if s, ok := ctx.Value(stoppingKey{}).(context.Context); ok {
		return s
	}
	return context.Background()
}

// ServeHTTP serves until ctx ends, then lets requests finish for grace and cuts what is left. Handlers that stream end by Stopping.
func ServeHTTP(ctx context.Context, srv *http.Server, lis net.Listener, grace time.Duration) error {
	requests := context.WithValue(context.WithoutCancel(ctx), stoppingKey{}, ctx)
	srv.BaseContext = func(net.Listener) context.Context { return requests }
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(lis) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve http on %s: %w", lis.Addr(), err)
	case <-ctx.Done():
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := srv.Shutdown(bounded); err != nil {
		_ = srv.Close()
	}
	<-ended
	return nil
}
