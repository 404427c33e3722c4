package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/podplane/podplane/internal/fault"
)

const (
	apiStreamSnapshot = apiPrefix + "STREAM.SNAPSHOT."
	apiStreamRestore  = apiPrefix + "STREAM.RESTORE."
	apiStreamDelete   = apiPrefix + "STREAM.DELETE."

	snapshotChunk  = 256 * kib
	snapshotWindow = 16 * snapshotChunk
	// snapshotSilence is how long the server may say nothing in the middle of a snapshot.
	snapshotSilence = 30 * time.Second

	statusEndOfSnapshot = "204"
)

// Snapshot says what a stream's snapshot is of.
type Snapshot struct {
	// Stream is the stream's name on the server: KV_<bucket> for a bucket.
	Stream string `json:"stream"`
	// Config is its configuration, as the server gave it.
	Config json.RawMessage `json:"config"`
	// State is its extent at the moment of the snapshot, as the server gave it.
	State json.RawMessage `json:"state"`
	// LastSequence and Messages are of State.
	LastSequence uint64 `json:"lastSequence"`
	Messages     uint64 `json:"messages"`
}

// Kept is a bucket or stream whose content is more than the present moment's: what a backup has to hold.
type Kept struct {
	// Name is the bucket's or stream's name, Stream its stream's on the server.
	Name, Stream string
	// Durable says that it can't be observed again.
	Durable bool
}

// KeptStores lists what a backup has to hold, causes before their effects. Registrations and leases are not in it: they say who runs now.
func KeptStores() []Kept {
	var list []Kept
	for _, d := range declared() {
		if !d.memory && d.name != BucketLeases {
			list = append(list, Kept{Name: d.name, Stream: d.stream, Durable: d.durable})
		}
	}
	return list
}

// TakeSnapshot writes a stream's messages to w, in the server's own form, as they are at one moment; others go on writing meanwhile. The
// connection has to be the administrator's. A stream that does not exist is of kind NotFound.
func (c *Conn) TakeSnapshot(ctx context.Context, stream string, w io.Writer) (Snapshot, error) {
	return c.TakeSnapshotAfter(ctx, stream, w, func(Snapshot) {})
}

// TakeSnapshotAfter is TakeSnapshot that calls began before the first message is written.
func (c *Conn) TakeSnapshotAfter(ctx context.Context, stream string, w io.Writer, began func(Snapshot)) (Snapshot, error) {
	snap, err := c.takeSnapshot(ctx, stream, w, began)
	if err != nil {
		return Snapshot{}, fmt.Errorf("take a snapshot of stream %s: %w", stream, err)
	}
	return snap, nil
}

func (c *Conn) takeSnapshot(ctx context.Context, stream string, w io.Writer, began func(Snapshot)) (Snapshot, error) {
	chunks := make(chan *nats.Msg, snapshotWindow/snapshotChunk+4)
	inbox := c.nc.NewInbox()
	sub, err := c.nc.ChanSubscribe(inbox, chunks)
	if err != nil {
		return Snapshot{}, unavailable(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	var answer struct {
		Config json.RawMessage `json:"config"`
		State  json.RawMessage `json:"state"`
	}
	lost := c.lost()
	ask := map[string]any{"deliver_subject": inbox, "no_consumers": true, "chunk_size": snapshotChunk, "window_size": snapshotWindow}
	if err := c.call(ctx, apiStreamSnapshot+stream, ask, &answer); err != nil {
		return Snapshot{}, err
	}
	snap := Snapshot{Stream: stream, Config: answer.Config, State: answer.State}
	var state struct {
		LastSeq  uint64 `json:"last_seq"`
		Messages uint64 `json:"messages"`
	}
	if err := json.Unmarshal(answer.State, &state); err != nil {
		return Snapshot{}, fault.New(fault.Internal, "decode its extent: %w", err)
	}
	snap.LastSequence, snap.Messages = state.LastSeq, state.Messages
	began(snap)
	silence := time.NewTimer(snapshotSilence)
	defer silence.Stop()
	for {
		select {
		case m := <-chunks:
			silence.Reset(snapshotSilence)
			if len(m.Data) == 0 {
				return snap, endOfSnapshot(m)
			}
			if _, err := w.Write(m.Data); err != nil {
				return Snapshot{}, err
			}
			if m.Reply != "" {
				if err := c.nc.Publish(m.Reply, nil); err != nil {
					return Snapshot{}, unavailable(err)
				}
			}
		case <-ctx.Done():
			return Snapshot{}, ctxFault(ctx.Err())
		case <-lost:
			return Snapshot{}, unavailable(errDisconnected)
		case <-silence.C:
			return Snapshot{}, unavailable(errNoAnswer)
		}
	}
}

// endOfSnapshot says whether the last message ends a snapshot that is whole.
func endOfSnapshot(m *nats.Msg) error {
	switch status := m.Header.Get("Status"); status {
	case "", statusEndOfSnapshot:
		return nil
	default:
		return fault.New(fault.Unavailable, "the server broke off: %s %s", status, m.Header.Get("Description"))
	}
}

// RestoreSnapshot makes a stream from a snapshot, with as many copies as the connection's configuration says. The stream must not exist.
// The connection has to be the administrator's, and no service may run.
func (c *Conn) RestoreSnapshot(ctx context.Context, snap Snapshot, r io.Reader) error {
	if err := c.restoreSnapshot(ctx, snap, r); err != nil {
		return fmt.Errorf("restore stream %s: %w", snap.Stream, err)
	}
	return nil
}

func (c *Conn) restoreSnapshot(ctx context.Context, snap Snapshot, r io.Reader) error {
	var config map[string]any
	if err := json.Unmarshal(snap.Config, &config); err != nil {
		return fault.New(fault.Invalid, "decode its configuration: %w", err)
	}
	config["num_replicas"] = max(c.cfg.Replicas, 1)
	var answer struct {
		Deliver string `json:"deliver_subject"`
	}
	if err := c.call(ctx, apiStreamRestore+snap.Stream, map[string]any{"config": config, "state": snap.State}, &answer); err != nil {
		return err
	}
	chunk := make([]byte, snapshotChunk)
	for {
		n, err := io.ReadFull(r, chunk)
		if n > 0 {
			if err := c.sendChunk(ctx, answer.Deliver, chunk[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return c.sendChunk(ctx, answer.Deliver, nil) // the server answers when the stream is there
		}
		if err != nil {
			return err
		}
	}
}

// sendChunk sends a part of a snapshot and waits until the server has taken it.
func (c *Conn) sendChunk(ctx context.Context, subject string, data []byte) error {
	answer, err := c.request(ctx, &nats.Msg{Subject: subject, Data: data})
	if err != nil || len(answer.Data) == 0 {
		return err
	}
	return decode(subject, answer, nil)
}

// DropStream deletes a stream with everything in it; deleting what is not there is no error. The connection has to be the administrator's.
func (c *Conn) DropStream(ctx context.Context, stream string) error {
	if err := c.call(ctx, apiStreamDelete+stream, nil, nil); err != nil && !fault.Is(err, fault.NotFound) {
		return fmt.Errorf("delete stream %s: %w", stream, err)
	}
	return nil
}

// LastSequence says whether a stream exists and gives the sequence of its last message.
func (c *Conn) LastSequence(ctx context.Context, stream string) (exists bool, last uint64, err error) {
	info, err := c.streamInfo(ctx, stream)
	if fault.Is(err, fault.NotFound) {
		return false, 0, nil
	}
	if err != nil {
		return false, 0, fmt.Errorf("ask for the extent of stream %s: %w", stream, err)
	}
	return true, info.State.LastSeq, nil
}

// Holdings is what would be lost with a bus.
type Holdings struct {
	// Pods and Objects count the records that exist, Journal the lifecycle events.
	Pods, Objects int
	Journal       uint64
}

// Empty says whether there is nothing to lose.
func (h Holdings) Empty() bool { return h == Holdings{} }

// String names what there is.
func (h Holdings) String() string {
	return fmt.Sprintf("%d pods, %d ConfigMaps and Secrets, a journal of %d events", h.Pods, h.Objects, h.Journal)
}

// Holdings counts what the bus holds; what does not exist counts as empty.
func (c *Conn) Holdings(ctx context.Context) (Holdings, error) {
	var h Holdings
	pods, err := Look(c, Pods).List(ctx, ">")
	if err != nil && !fault.Is(err, fault.NotFound) {
		return h, fmt.Errorf("count pods: %w", err)
	}
	objects, err := Look(c, Objects).List(ctx, ">")
	if err != nil && !fault.Is(err, fault.NotFound) {
		return h, fmt.Errorf("count objects: %w", err)
	}
	info, err := c.streamInfo(ctx, StreamLifecycle)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return h, fmt.Errorf("count lifecycle events: %w", err)
	}
	h.Pods, h.Objects, h.Journal = len(pods), len(objects), info.State.Msgs
	return h, nil
}

// Running lists the replicas that are registered, as service/instance@node; none when there is no such bucket.
func (c *Conn) Running(ctx context.Context) ([]string, error) {
	list, err := Look(c, Services).List(ctx, ">")
	if fault.Is(err, fault.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the registered services: %w", err)
	}
	names := make([]string, len(list))
	for i, e := range list {
		names[i] = e.Value.GetService() + "/" + e.Value.GetInstance() + "@" + e.Value.GetNode()
	}
	return names, nil
}

// Look gives a bucket for reading only: nothing is made. Where the bucket does not exist reading is of kind NotFound.
func Look[T proto.Message](c *Conn, spec BucketSpec[T]) *Bucket[T] {
	return &Bucket[T]{c: c, spec: spec}
}

// Extent is how much a bucket or stream holds.
type Extent struct {
	Name            string
	Bytes, MaxBytes uint64
	// Rolling says that at the bound the oldest messages go; otherwise new ones are refused.
	Rolling bool
	// Last is when the newest message was stored, Server the server's clock when it answered.
	Last, Server time.Time
}

// Extents asks for the extent of every bucket and stream that exists.
func (c *Conn) Extents(ctx context.Context) ([]Extent, error) {
	var list []Extent
	for _, d := range declared() {
		info, err := c.streamInfo(ctx, d.stream)
		if fault.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("ask for the extent of %s %s: %w", d.kind, d.name, err)
		}
		list = append(list, Extent{
			Name: d.name, Bytes: info.State.Bytes, MaxBytes: uint64(max(info.Config.MaxBytes, 0)),
			Rolling: info.Config.Discard == jetstream.DiscardOld, Last: info.State.LastTime, Server: info.TimeStamp,
		})
	}
	return list, nil
}
