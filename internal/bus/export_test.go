package bus

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
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

// Ask publishes an empty request: the error is of kind PermissionDenied when the server refuses the subject, and anything else when it does not.
func Ask(ctx context.Context, c *Conn, subject string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	m := nats.NewMsg(subject)
	m.Data = []byte("-") // no API takes it
	_, err := c.request(ctx, m)
	return err
}

// Overhears says whether the connection gets anything on a subject, other than what is for itself, while f runs.
func Overhears(ctx context.Context, c *Conn, subject string, f func() error) (bool, error) {
	sub, err := c.nc.SubscribeSync(subject)
	if err != nil {
		return false, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := c.nc.FlushWithContext(ctx); err != nil {
		return false, err
	}
	if err := f(); err != nil {
		return false, err
	}
	if err := c.nc.FlushWithContext(ctx); err != nil { // what was on its way has come
		return false, err
	}
	n, _, err := sub.Pending()
	return n > 0, err
}
