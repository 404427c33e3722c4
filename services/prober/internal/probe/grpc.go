package probe

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

func (p *Prober) grpc(ctx context.Context, s *GRPC, t Target, timeout time.Duration) Result {
	conn, err := grpc.NewClient("passthrough:///"+address(t.PodIP, s.Port),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUserAgent(userAgent),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return p.dialer.DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		return unknown(fmt.Errorf("make a gRPC client: %w", err))
	}
	defer conn.Close()
	resp, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: s.Service})
	switch code := status.Code(err); {
	case err == nil:
	case ctx.Err() != nil || code == codes.DeadlineExceeded:
		return timedOut(fmt.Sprintf("timeout: health rpc did not complete within %s", timeout))
	case code == codes.Unimplemented:
		return failure("this server does not implement the grpc health protocol (grpc.health.v1.Health): " + status.Convert(err).Message())
	default:
		return failure(fmt.Sprintf("error: health rpc failed: %v", err))
	}
	if s := resp.GetStatus(); s != healthpb.HealthCheckResponse_SERVING {
		return failure(fmt.Sprintf("service unhealthy (responded with %q)", s))
	}
	return success("service healthy")
}
