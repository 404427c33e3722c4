package front

import (
	"context"

	"google.golang.org/grpc"

	"github.com/podplane/podplane/services/gateway/internal/access"
)

// Guarded gives a connection whose calls are confirmed.
func Guarded(c grpc.ClientConnInterface) grpc.ClientConnInterface { return guardedConn{c} }

// Authorised gives the context of a request for which this was authorised.
func Authorised(ctx context.Context, wants access.Attributes, rpc string) context.Context {
	return context.WithValue(ctx, callerKey{}, &caller{wants: wants, rpc: rpc})
}
