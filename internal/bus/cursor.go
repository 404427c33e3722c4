package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/podplane/podplane/internal/fault"
)

const (
	// A cursor asks for at most this much at once; the rest waits in the server.
	pullBatch = 256
	pullBytes = 8 * mib

	scanExpires   = 5 * time.Second
	scanHeartbeat = time.Second

	// cursorIdle is how long the server keeps a consumer that nobody asks any more.
	cursorIdle = time.Minute
)

// Followers ask seldom and get a sign of life in between: a watcher at rest
// costs four small messages a minute. Tests make it quicker.
var (
	pullExpires   = 2 * time.Minute
	pullHeartbeat = 15 * time.Second
)

// errCursorLost says that messages may have been missed: open a new cursor.
var errCursorLost = errors.New("position in the stream lost")

// start is where a cursor starts.
type start struct {
	policy jetstream.DeliverPolicy
	seq    uint64
	time   time.Time
}

// cursor reads a stream in order through an ephemeral pull consumer. It has no
// goroutine: all happens in next, called by its one owner.
type cursor struct {
	c        *Conn
	stream   string
	consumer string
	sub      *nats.Subscription
	ch       chan *nats.Msg
	lost     <-chan struct{}
	ask      *nats.Msg
	silence  time.Duration // no sign of life for so long means that the consumer is gone
	timer    *time.Timer
	pending  uint64 // messages to come when it was opened
	asked    int    // messages that may still come for the last request
	delivery uint64 // the consumer's sequence of the last message
}

// delivered is a message with its place in the stream. msg is nil for a sign
// of life of a consumer that has nothing to deliver.
type delivered struct {
	msg     *nats.Msg
	seq     uint64
	pending uint64
	time    time.Time
}

// openCursor opens a cursor; it ends with the present connection at the latest.
func (c *Conn) openCursor(ctx context.Context, stream, filter string, from start, follow bool) (*cursor, error) {
	cu := &cursor{c: c, stream: stream, consumer: nuid.Next(), lost: c.lost(), ch: make(chan *nats.Msg, pullBatch+16)}
	inbox := c.nc.NewInbox()
	var err error
	if cu.sub, err = c.nc.ChanSubscribe(inbox, cu.ch); err != nil {
		if away := c.Err(); away != nil {
			return nil, away
		}
		return nil, unavailable(fmt.Errorf("subscribe: %w", err))
	}
	cfg := jetstream.ConsumerConfig{
		Name: cu.consumer, DeliverPolicy: from.policy, OptStartSeq: from.seq,
		AckPolicy: jetstream.AckNonePolicy, MaxDeliver: 1, FilterSubject: filter,
		InactiveThreshold: cursorIdle, MemoryStorage: true, Replicas: 1,
	}
	if !from.time.IsZero() {
		cfg.OptStartTime = &from.time
	}
	ask := map[string]any{"stream_name": stream, "config": cfg, "action": "create"}
	var info jetstream.ConsumerInfo
	subject := apiConsumerCreate + stream + "." + cu.consumer
	if filter != "" {
		subject += "." + filter
	}
	if err := c.call(ctx, subject, ask, &info); err != nil {
		_ = cu.sub.Unsubscribe()
		return nil, err
	}
	cu.pending = info.NumPending
	cu.prepare(inbox, follow)
	return cu, nil
}

func (cu *cursor) prepare(inbox string, follow bool) {
	expires, heartbeat := scanExpires, scanHeartbeat
	if follow {
		expires, heartbeat = pullExpires, pullHeartbeat
	}
	cu.silence = 2*heartbeat + time.Second
	cu.ask = nats.NewMsg(apiConsumerNext + cu.stream + "." + cu.consumer)
	cu.ask.Reply = inbox
	cu.ask.Data, _ = json.Marshal(map[string]int64{ // integers always encode
		"batch": pullBatch, "max_bytes": pullBytes, "expires": int64(expires), "idle_heartbeat": int64(heartbeat),
	})
	cu.timer = time.NewTimer(cu.silence)
}

// close gives the consumer back; the server would drop it by itself later.
func (cu *cursor) close() {
	cu.timer.Stop()
	_ = cu.sub.Unsubscribe()
	m := nats.NewMsg(apiConsumerDelete + cu.stream + "." + cu.consumer)
	_ = cu.c.nc.PublishMsg(m)
}

// next waits for the next message or sign of life. errCursorLost ends the cursor.
func (cu *cursor) next(ctx context.Context) (delivered, error) {
	for {
		if cu.asked == 0 {
			if err := cu.c.nc.PublishMsg(cu.ask); err != nil {
				return delivered{}, errCursorLost
			}
			cu.asked = pullBatch
		}
		cu.timer.Reset(cu.silence)
		select {
		case m := <-cu.ch:
			d, more, err := cu.take(m)
			if err != nil || !more {
				return d, err
			}
		case <-ctx.Done():
			return delivered{}, ctxFault(ctx.Err())
		case <-cu.lost:
			return delivered{}, errCursorLost
		case <-cu.timer.C:
			return delivered{}, errCursorLost
		}
	}
}

// take looks at what came: more says that it was nothing for the caller.
func (cu *cursor) take(m *nats.Msg) (d delivered, more bool, err error) {
	if status := m.Header.Get("Status"); status != "" && m.Reply == "" {
		more, err = cu.status(status, m.Header.Get(headerPending))
		return delivered{}, more, err
	}
	meta, err := m.Metadata()
	if err != nil {
		return delivered{}, false, fault.New(fault.Internal, "message on %s: %w", m.Subject, err)
	}
	if meta.Sequence.Consumer != cu.delivery+1 {
		return delivered{}, false, errCursorLost
	}
	cu.delivery++
	cu.asked--
	return delivered{msg: m, seq: meta.Sequence.Stream, pending: meta.NumPending, time: meta.Timestamp}, false, nil
}

const (
	statusHeartbeat = "100"
	statusNoMessage = "404"
	statusTimeout   = "408"
	statusConflict  = "409"
)

// headerPending is on every message of the server that ends a request in good
// order: what the request had left.
const headerPending = "Nats-Pending-Messages"

// status handles a message of the server about the request: more says that
// there is nothing for the caller.
func (cu *cursor) status(status, left string) (more bool, err error) {
	switch {
	case status == statusHeartbeat:
		return false, nil
	case status == statusConflict && left == "":
		return false, errCursorLost // the consumer was deleted or moved
	case status == statusConflict && left == "0":
		return true, nil // about the request before: its batch is complete, which was counted
	case status == statusNoMessage || status == statusTimeout || status == statusConflict:
		cu.asked = 0 // it ran out of time or bytes: ask again
		return true, nil
	}
	return false, errCursorLost
}
