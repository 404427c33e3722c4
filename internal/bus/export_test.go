package bus

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"
)

// Unchecked makes a bucket without opening it, to try what a service may not do.
func Unchecked[T proto.Message](c *Conn, spec BucketSpec[T]) *Bucket[T] {
	return &Bucket[T]{c: c, spec: spec}
}

// UncheckedStream makes a stream without opening it.
func UncheckedStream(c *Conn, spec StreamSpec) *Stream { return &Stream{c: c, spec: spec} }

// QuickPulls makes the requests of followers expire soon, until the test ends.
func QuickPulls(t *testing.T, expires, heartbeat time.Duration) {
	oldExpires, oldHeartbeat := pullExpires, pullHeartbeat
	pullExpires, pullHeartbeat = expires, heartbeat
	t.Cleanup(func() { pullExpires, pullHeartbeat = oldExpires, oldHeartbeat })
}

// Pretend makes a connection that of a Podplane with another schema. It is called before anything is opened.
func Pretend(c *Conn, schema, minReader int) { c.schema = versions{schema, minReader} }

// ConfigOf is the configuration of a bucket's stream.
func ConfigOf[T proto.Message](ctx context.Context, c *Conn, spec BucketSpec[T]) (jetstream.StreamConfig, error) {
	info, err := c.streamInfo(ctx, bucketStream+spec.Name)
	return info.Config, err
}
