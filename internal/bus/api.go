package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/podplane/podplane/internal/fault"
)

// The JetStream API, spoken directly: every request goes through one place that
// fails at once when the connection drops or the server refuses the subject.
const (
	apiPrefix         = "$JS.API."
	apiStreamInfo     = apiPrefix + "STREAM.INFO."
	apiStreamCreate   = apiPrefix + "STREAM.CREATE."
	apiStreamUpdate   = apiPrefix + "STREAM.UPDATE."
	apiMessageGet     = apiPrefix + "STREAM.MSG.GET."
	apiConsumerCreate = apiPrefix + "CONSUMER.CREATE."
	apiConsumerDelete = apiPrefix + "CONSUMER.DELETE."
	apiConsumerNext   = apiPrefix + "CONSUMER.MSG.NEXT."
)

// Error codes of JetStream that have a kind of their own.
const (
	codeInsufficientResources = 10023
	codeNoMessage             = 10037
	codeStorageResources      = 10047
	codeMemoryResources       = 10028
	codeMessageTooLarge       = 10054
	codeStreamNameInUse       = 10058
	codeStreamNotFound        = 10059
	codeWrongLastSequence     = 10071
	codeStoreFailed           = 10077
	codeSealed                = 10109
	codeWrongLastConstant     = 10164
)

// apiError is an error in an answer of JetStream.
type apiError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiError) Error() string {
	return fmt.Sprintf("%s (%d)", e.Description, e.ErrCode)
}

func (e *apiError) kind() fault.Kind {
	switch e.ErrCode {
	case codeWrongLastSequence:
		return fault.Conflict
	case codeWrongLastConstant:
		return fault.Unavailable // a write that it depends on is under way: whether it holds is not known yet
	case codeNoMessage, codeStreamNotFound:
		return fault.NotFound
	case codeMessageTooLarge:
		return fault.TooLarge
	case codeInsufficientResources, codeStorageResources, codeMemoryResources, codeStoreFailed:
		return fault.ResourceExhausted
	case codeStreamNameInUse, codeSealed:
		return fault.FailedPrecondition
	}
	switch {
	case e.Code == 404:
		return fault.NotFound
	case e.Code == 408 || e.Code == 503:
		return fault.Unavailable
	case e.Code >= 500:
		return fault.Unavailable
	default:
		return fault.Internal
	}
}

func isCode(err error, code int) bool {
	var e *apiError
	return errors.As(err, &e) && e.ErrCode == code
}

// request sends m and waits for the answer: until ctx or the connection ends,
// the server refuses it, or the request timeout. The error has its kind.
func (c *Conn) request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	if err := ctx.Err(); err != nil {
		return nil, ctxFault(err)
	}
	bounded, cancelTimeout := context.WithTimeoutCause(ctx, c.cfg.RequestTimeout, errNoAnswer)
	defer cancelTimeout()
	waiting, cancel := context.WithCancelCause(bounded)
	defer cancel(nil)
	w := &waiter{subject: m.Subject, cancel: cancel}
	c.mu.Lock()
	c.waiters[w] = struct{}{}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiters, w)
		c.mu.Unlock()
	}()
	answer, err := c.nc.RequestMsgWithContext(waiting, m)
	if err == nil {
		return answer, nil
	}
	if ctx.Err() != nil {
		return nil, ctxFault(ctx.Err())
	}
	if cause := context.Cause(waiting); cause != nil {
		if fault.Is(cause, fault.PermissionDenied) {
			return nil, cause
		}
		return nil, unavailable(cause)
	}
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return nil, fault.New(fault.TooLarge, "%d bytes: %w", len(m.Data), err)
	case errors.Is(err, nats.ErrNoResponders):
		return nil, unavailable(fmt.Errorf("nothing answers on %s", m.Subject))
	case errors.Is(err, nats.ErrBadSubject):
		return nil, fault.New(fault.Invalid, "subject %q: %w", m.Subject, err)
	}
	if away := c.Err(); away != nil {
		return nil, away
	}
	return nil, unavailable(err)
}

func unavailable(err error) error { return fault.New(fault.Unavailable, "%w", err) }

// ctxFault says for a deadline that it is not known whether it happened.
func ctxFault(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return unavailable(err)
	}
	return err
}

// call makes one request of the JetStream API.
func (c *Conn) call(ctx context.Context, subject string, in, out any) error {
	m := nats.NewMsg(subject)
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode request to %s: %w", subject, err)
		}
		m.Data = data
	}
	answer, err := c.request(ctx, m)
	if err != nil {
		return err
	}
	return decode(subject, answer, out)
}

func decode(subject string, answer *nats.Msg, out any) error {
	var failed struct {
		Error *apiError `json:"error"`
	}
	if err := json.Unmarshal(answer.Data, &failed); err != nil {
		return fault.New(fault.Internal, "decode answer from %s: %w", subject, err)
	}
	if failed.Error != nil {
		return fault.New(failed.Error.kind(), "%w", failed.Error)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(answer.Data, out); err != nil {
		return fault.New(fault.Internal, "decode answer from %s: %w", subject, err)
	}
	return nil
}

// publish stores m in a stream and waits for the acknowledgement.
func (c *Conn) publish(ctx context.Context, m *nats.Msg) (jetstream.PubAck, error) {
	var ack jetstream.PubAck
	answer, err := c.request(ctx, m)
	if err != nil {
		return ack, err
	}
	return ack, decode(m.Subject, answer, &ack)
}

// newMessage makes a message with the headers that all of ours carry.
func (c *Conn) newMessage(ctx context.Context, subject string, data []byte) *nats.Msg {
	m := &nats.Msg{Subject: subject, Data: data, Header: make(nats.Header, 4)}
	m.Header[HeaderWriter] = []string{c.writer}
	c.schema.stamp(m.Header)
	inject(ctx, m.Header)
	return m
}

func (c *Conn) streamInfo(ctx context.Context, stream string) (jetstream.StreamInfo, error) {
	var info jetstream.StreamInfo
	err := c.call(ctx, apiStreamInfo+stream, nil, &info)
	return info, err
}

// storedMessage is a message as the server gives it by sequence or subject.
type storedMessage struct {
	Subject  string `json:"subject"`
	Sequence uint64 `json:"seq"`
	Header   []byte `json:"hdrs"`
	Data     []byte `json:"data"`
	Time     string `json:"time"`
}
