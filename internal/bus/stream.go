package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/trace"

	"github.com/podplane/podplane/internal/fault"
)

// Message is a message of a stream.
type Message struct {
	// Subject is where it is published.
	Subject string
	// ID makes a second message with the same ID a duplicate, as long as the stream remembers; "" for none.
	ID string
	// Header holds further headers, in exactly this spelling; the bus's own are not in it.
	Header map[string]string
	// Data is the payload.
	Data []byte
	// Sequence and Time are its place in the stream; Trace the trace in which it was published. They are
	// set on reading. (On publishing the context's trace counts.)
	Sequence uint64
	Time     time.Time
	Trace    trace.SpanContext
	// Writer is <service>/<instance>; set on reading.
	Writer string
}

// Context gives ctx with the trace in which the message was published.
func (m Message) Context(ctx context.Context) context.Context {
	if !m.Trace.IsValid() {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, m.Trace)
}

// Stream is an open stream. Its methods may be called from any goroutine.
type Stream struct {
	c    *Conn
	spec StreamSpec
}

// OpenStream opens a stream as Open does a bucket.
func OpenStream(ctx context.Context, c *Conn, spec StreamSpec) (*Stream, error) {
	if err := c.ensure(ctx, spec.info()); err != nil {
		return nil, err
	}
	return &Stream{c: c, spec: spec}, nil
}

// Spec gives the stream's declaration.
func (s *Stream) Spec() StreamSpec { return s.spec }

// Publish stores a message and waits for the acknowledgement: its sequence, and
// whether it was a duplicate of that one. After an error of kind Unavailable it
// may be stored or not: publish it again with the same ID.
func (s *Stream) Publish(ctx context.Context, m Message) (seq uint64, duplicate bool, err error) {
	if len(m.Data) > int(s.spec.MaxMessageBytes) {
		return 0, false, fault.New(fault.TooLarge, "publish to %s: %d bytes, allowed are %d", m.Subject, len(m.Data), s.spec.MaxMessageBytes)
	}
	ctx, span := startSpan(ctx, spanPublish, m.Subject, tokenAt(m.Subject, subjectUID))
	defer func() { endSpan(span, err) }()
	msg := s.c.newMessage(ctx, m.Subject, m.Data)
	for k, v := range m.Header {
		msg.Header[k] = []string{v}
	}
	if m.ID != "" {
		msg.Header[headerMsgID] = []string{m.ID}
	}
	ack, err := s.c.publish(ctx, msg)
	if err != nil {
		return 0, false, fmt.Errorf("publish to %s: %w", m.Subject, err)
	}
	return ack.Sequence, ack.Duplicate, nil
}

// subjectUID is the position of a pod's UID in the subjects of both streams.
const subjectUID = 3

// ReadFrom says which messages to read. Without Sequence, Since and New it is all that are stored.
type ReadFrom struct {
	// Sequence starts at this message, or at the first that is still stored after it.
	Sequence uint64
	// Since starts at the first message stored at or after this time.
	Since time.Time
	// New leaves out what is stored now.
	New bool
	// Filter is a subject pattern; "" for every subject.
	Filter string
	// Follow waits for further messages after the end of what is stored.
	Follow bool
}

// Read calls f for each message in the order of the stream, from the goroutine
// that called Read. Without Follow it returns nil at the end of what was stored
// when it began, or an error of kind Unavailable when it could not read so far.
// With Follow it reads until ctx ends, over interruptions of the bus: each
// message comes once, unless it was dropped from the stream before it was read.
// When the stream was created anew it is read from its first message. An error
// of f ends it and is returned.
func (s *Stream) Read(ctx context.Context, from ReadFrom, f func(context.Context, Message) error) error {
	r := &reading{s: s, from: from, f: f}
	what := "read stream " + s.spec.Name
	if from.Follow {
		return s.c.again(ctx, what, r.run)
	}
	_, err := r.run(ctx)
	if errors.Is(err, errCursorLost) {
		err = s.c.whyLost(err)
	}
	return wrap(what, err)
}

// reading is the state of one Read over its connections.
type reading struct {
	s       *Stream
	from    ReadFrom
	f       func(context.Context, Message) error
	next    uint64    // the sequence to go on at; 0 before the first connection
	created time.Time // of the stream
}

func (r *reading) run(ctx context.Context) (progress bool, err error) {
	c := r.s.c
	info, err := c.streamInfo(ctx, r.s.spec.Name)
	if err != nil {
		return false, err
	}
	end := info.State.LastSeq
	if r.next == 0 && r.from.New {
		r.next = end + 1
	}
	if !r.created.IsZero() && (!info.Created.Equal(r.created) || end+1 < r.next) {
		r.next, r.from = 1, ReadFrom{Filter: r.from.Filter, Follow: r.from.Follow}
	}
	r.created = info.Created
	cu, err := c.openCursor(ctx, r.s.spec.Name, r.from.Filter, r.start(), r.from.Follow)
	if err != nil {
		return false, err
	}
	defer cu.close()
	if !r.from.Follow && (cu.pending == 0 || r.next > end) {
		return false, nil
	}
	for {
		d, err := cu.next(ctx)
		if err != nil {
			return progress, err
		}
		if d.msg != nil {
			if !r.from.Follow && d.seq > end {
				return true, nil
			}
			// The server takes a time that has not come yet as the end of the stream.
			if d.time.Before(r.from.Since) {
				r.next = d.seq + 1
			} else if err := r.give(ctx, d); err != nil {
				return true, &handlerError{err}
			}
			progress = true
		}
		if !r.from.Follow && (d.msg == nil || d.pending == 0 || d.seq >= end) {
			return true, nil
		}
	}
}

func (r *reading) start() start {
	switch {
	case r.next > 0:
		return start{policy: jetstream.DeliverByStartSequencePolicy, seq: r.next}
	case r.from.Sequence > 0:
		return start{policy: jetstream.DeliverByStartSequencePolicy, seq: r.from.Sequence}
	case !r.from.Since.IsZero():
		return start{policy: jetstream.DeliverByStartTimePolicy, time: r.from.Since.UTC()}
	default:
		return start{policy: jetstream.DeliverAllPolicy}
	}
}

func (r *reading) give(ctx context.Context, d delivered) error {
	if err := r.s.c.schema.checkMessage(d.msg.Header); err != nil {
		return err
	}
	m := Message{
		Subject: d.msg.Subject, ID: d.msg.Header.Get(headerMsgID), Data: d.msg.Data, Sequence: d.seq, Time: d.time,
		Trace: extract(d.msg.Header), Writer: d.msg.Header.Get(HeaderWriter), Header: make(map[string]string, len(d.msg.Header)),
	}
	for k, v := range d.msg.Header {
		switch k {
		case headerMsgID, HeaderWriter, HeaderSchema, HeaderMinReader, HeaderTraceParent, HeaderTraceState:
		default:
			m.Header[k] = v[0]
		}
	}
	if err := r.f(ctx, m); err != nil {
		return err
	}
	r.next = d.seq + 1
	return nil
}

// StreamInfo is the extent of a stream.
type StreamInfo struct {
	FirstSequence, LastSequence uint64
	FirstTime, LastTime         time.Time
	Messages, Bytes             uint64
	// Created tells a stream from another one of the same name.
	Created time.Time
}

// Info gives the extent of the stream.
func (s *Stream) Info(ctx context.Context) (StreamInfo, error) {
	info, err := s.c.streamInfo(ctx, s.spec.Name)
	if err != nil {
		return StreamInfo{}, fmt.Errorf("ask for the extent of stream %s: %w", s.spec.Name, err)
	}
	st := info.State
	return StreamInfo{
		FirstSequence: st.FirstSeq, LastSequence: st.LastSeq, FirstTime: st.FirstTime, LastTime: st.LastTime,
		Messages: st.Msgs, Bytes: st.Bytes, Created: info.Created,
	}, nil
}
