package bus

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"github.com/podplane/podplane/internal/fault"
)

// Entry is one revision of a key.
type Entry[T proto.Message] struct {
	// Key is the key within the bucket.
	Key string
	// Value is nil when the entry is Deleted.
	Value T
	// Revision grows with each write to the bucket. It is 0 when a watcher only learnt that the key vanished.
	Revision uint64
	// Deleted says that the key is gone.
	Deleted bool
	// Trace is the context of the trace in which it was written, if any.
	Trace trace.SpanContext
	// Writer is <service>/<instance>.
	Writer string
	// Created is when the server stored it.
	Created time.Time
}

// Context gives ctx with the trace in which the entry was written, so that spans started from it join that trace.
func (e Entry[T]) Context(ctx context.Context) context.Context {
	if !e.Trace.IsValid() {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, e.Trace)
}

// Bucket is an open key-value bucket. Its methods may be called from any
// goroutine. Errors have the kinds NotFound, AlreadyExists, Conflict, TooLarge,
// Invalid, PermissionDenied, ResourceExhausted or Unavailable; the last says
// nothing about whether a write was stored.
type Bucket[T proto.Message] struct {
	c    *Conn
	spec BucketSpec[T]
}

// Open opens a bucket. Its owner creates it, or upgrades it when its
// configuration differs; everybody else waits until it exists, at most as long
// as ctx. While the bus is away it waits too.
func Open[T proto.Message](ctx context.Context, c *Conn, spec BucketSpec[T]) (*Bucket[T], error) {
	if err := c.ensure(ctx, spec.info()); err != nil {
		return nil, err
	}
	return &Bucket[T]{c: c, spec: spec}, nil
}

// Spec gives the bucket's declaration.
func (b *Bucket[T]) Spec() BucketSpec[T] { return b.spec }

// Put stores the value whatever was there, and gives its revision.
func (b *Bucket[T]) Put(ctx context.Context, key string, value T) (uint64, error) {
	return b.write(ctx, "put", key, value, expectation{rev: anyRevision})
}

// Create stores the value of a key that does not exist; else the kind is AlreadyExists.
func (b *Bucket[T]) Create(ctx context.Context, key string, value T) (uint64, error) {
	rev, err := b.write(ctx, "create", key, value, expectation{})
	if !fault.Is(err, fault.Conflict) {
		return rev, err
	}
	// Something is there: a value, or the marker of a deletion, which counts as nothing.
	last, err := b.last(ctx, key)
	switch {
	case fault.Is(err, fault.NotFound):
		last.Revision = 0 // the marker expired this moment
	case err != nil:
		return 0, fmt.Errorf("create %s in bucket %s: %w", key, b.spec.Name, err)
	case !last.Deleted:
		return 0, fault.New(fault.AlreadyExists, "create %s in bucket %s: it exists at revision %d", key, b.spec.Name, last.Revision)
	}
	rev, err = b.write(ctx, "create", key, value, expectation{rev: int64(last.Revision)})
	if fault.Is(err, fault.Conflict) {
		return 0, fault.New(fault.AlreadyExists, "%w", err)
	}
	return rev, err
}

// CreateAfter stores the value of a key that does not exist, if rev is the last revision of all keys that match
// pattern, the new one's included; else the kind is Conflict.
func (b *Bucket[T]) CreateAfter(ctx context.Context, key string, value T, pattern string, rev uint64) (uint64, error) {
	if err := checkPattern(pattern); err != nil {
		return 0, fmt.Errorf("create in bucket %s: %w", b.spec.Name, err)
	}
	return b.write(ctx, "create", key, value, expectation{of: b.subject(pattern), rev: int64(rev)})
}

// LastRevision gives the revision of the last change of any key that matches pattern, a deletion too; 0 when there is none.
func (b *Bucket[T]) LastRevision(ctx context.Context, pattern string) (uint64, error) {
	if err := checkPattern(pattern); err != nil {
		return 0, fmt.Errorf("last revision in bucket %s: %w", b.spec.Name, err)
	}
	rev, err := b.c.lastSequence(ctx, bucketStream+b.spec.Name, b.subject(pattern))
	if err != nil {
		return 0, fmt.Errorf("last revision of %s in bucket %s: %w", pattern, b.spec.Name, err)
	}
	return rev, nil
}

// Update stores the value if the key's revision is rev; else the kind is Conflict.
func (b *Bucket[T]) Update(ctx context.Context, key string, value T, rev uint64) (uint64, error) {
	return b.write(ctx, "update", key, value, expectation{rev: int64(rev)})
}

// Delete deletes the key. Deleting what is not there is no error.
func (b *Bucket[T]) Delete(ctx context.Context, key string) error {
	_, err := b.remove(ctx, key, expectation{rev: anyRevision})
	return err
}

// DeleteRevision deletes the key if its revision is rev; else the kind is Conflict.
func (b *Bucket[T]) DeleteRevision(ctx context.Context, key string, rev uint64) error {
	_, err := b.remove(ctx, key, expectation{rev: int64(rev)})
	return err
}

// Get gives the present value of a key, or an error of kind NotFound.
func (b *Bucket[T]) Get(ctx context.Context, key string) (Entry[T], error) {
	e, err := b.last(ctx, key)
	if err != nil {
		return Entry[T]{}, fmt.Errorf("get %s from bucket %s: %w", key, b.spec.Name, err)
	}
	if e.Deleted {
		return Entry[T]{}, fault.New(fault.NotFound, "get %s from bucket %s: it was deleted", key, b.spec.Name)
	}
	return e, nil
}

// List gives the present entries of the keys that match the pattern (">" for
// all), in the order in which they were last written.
func (b *Bucket[T]) List(ctx context.Context, pattern string) ([]Entry[T], error) {
	list, err := b.scan(ctx, pattern)
	if err != nil {
		return nil, fmt.Errorf("list %s in bucket %s: %w", pattern, b.spec.Name, err)
	}
	return slices.DeleteFunc(list, func(e Entry[T]) bool { return e.Deleted }), nil
}

// expectation is what must hold for a write: the last revision of a subject, the written one's own when of is "".
type expectation struct {
	of  string
	rev int64
}

// anyRevision expects nothing.
const anyRevision = int64(-1)

func (b *Bucket[T]) subject(key string) string { return bucketPrefix + b.spec.Name + "." + key }

// key is the inverse of subject.
func (b *Bucket[T]) key(subject string) string {
	return subject[len(bucketPrefix)+len(b.spec.Name)+1:]
}

func (b *Bucket[T]) write(ctx context.Context, verb, key string, value T, expect expectation) (rev uint64, err error) {
	if err := checkKey(key); err != nil {
		return 0, fmt.Errorf("%s in bucket %s: %w", verb, b.spec.Name, err)
	}
	data, err := proto.Marshal(value)
	if err != nil {
		return 0, fault.New(fault.Invalid, "%s %s in bucket %s: encode: %w", verb, key, b.spec.Name, err)
	}
	if len(data) > int(b.spec.MaxValueBytes) {
		return 0, fault.New(fault.TooLarge, "%s %s in bucket %s: %d bytes, allowed are %d", verb, key, b.spec.Name, len(data), b.spec.MaxValueBytes)
	}
	ctx, span := startSpan(ctx, spanPut, b.subject(key), b.uid(key))
	defer func() { endSpan(span, err) }()
	m := b.c.newMessage(ctx, b.subject(key), data)
	if rev, err = b.send(ctx, m, expect); err != nil {
		return 0, fmt.Errorf("%s %s in bucket %s: %w", verb, key, b.spec.Name, err)
	}
	return rev, nil
}

func (b *Bucket[T]) remove(ctx context.Context, key string, expect expectation) (rev uint64, err error) {
	if err := checkKey(key); err != nil {
		return 0, fmt.Errorf("delete in bucket %s: %w", b.spec.Name, err)
	}
	ctx, span := startSpan(ctx, spanDelete, b.subject(key), b.uid(key))
	defer func() { endSpan(span, err) }()
	// A purge leaves only a marker, and the marker expires: deleted pods leave nothing behind.
	m := b.c.newMessage(ctx, b.subject(key), nil)
	m.Header[headerOperation] = []string{operationPurge}
	m.Header[headerRollup] = []string{rollupSubject}
	m.Header[headerTTL] = []string{markerTTL.String()}
	if rev, err = b.send(ctx, m, expect); err != nil {
		return 0, fmt.Errorf("delete %s in bucket %s: %w", key, b.spec.Name, err)
	}
	return rev, nil
}

func (b *Bucket[T]) send(ctx context.Context, m *nats.Msg, expect expectation) (uint64, error) {
	if expect.rev != anyRevision {
		m.Header[headerExpected] = []string{strconv.FormatInt(expect.rev, 10)}
		if expect.of != "" {
			m.Header[headerExpectedOf] = []string{expect.of}
		}
	}
	for pause := minUnderWay; ; pause *= 2 {
		ack, err := b.c.publish(ctx, m)
		// In a cluster a write is refused while another one under the same expectation is on its way to the other servers.
		if !isCode(err, codeWrongLastConstant) || pause > maxUnderWay || b.c.sleep(ctx, pause) != nil {
			return ack.Sequence, err
		}
	}
}

// How long the end of others' writes is waited for: 63 ms in all.
const (
	minUnderWay = time.Millisecond
	maxUnderWay = 32 * time.Millisecond
)

// last gives the newest message of a key, a marker too.
func (b *Bucket[T]) last(ctx context.Context, key string) (Entry[T], error) {
	if err := checkKey(key); err != nil {
		return Entry[T]{}, err
	}
	var answer struct {
		Message storedMessage `json:"message"`
	}
	ask := map[string]string{"last_by_subj": b.subject(key)}
	if err := b.c.call(ctx, apiMessageGet+bucketStream+b.spec.Name, ask, &answer); err != nil {
		return Entry[T]{}, err
	}
	m := answer.Message
	created, err := time.Parse(time.RFC3339Nano, m.Time)
	if err != nil {
		return Entry[T]{}, fault.New(fault.Internal, "time of revision %d: %w", m.Sequence, err)
	}
	var h nats.Header
	if len(m.Header) > 0 {
		if h, err = nats.DecodeHeadersMsg(m.Header); err != nil {
			return Entry[T]{}, fault.New(fault.Internal, "headers of revision %d: %w", m.Sequence, err)
		}
	}
	return b.entry(key, h, m.Data, m.Sequence, created)
}

// entry decodes a message of the bucket's stream.
func (b *Bucket[T]) entry(key string, h nats.Header, data []byte, rev uint64, created time.Time) (Entry[T], error) {
	if err := b.c.schema.checkMessage(h); err != nil {
		return Entry[T]{Key: key, Revision: rev}, err
	}
	e := Entry[T]{Key: key, Revision: rev, Created: created, Writer: h.Get(HeaderWriter), Trace: extract(h)}
	if h.Get(headerMarkerReason) != "" || h.Get(headerOperation) == operationDelete || h.Get(headerOperation) == operationPurge {
		e.Deleted = true
		return e, nil
	}
	e.Value = b.spec.New()
	if err := proto.Unmarshal(data, e.Value); err != nil {
		return e, fault.New(fault.Internal, "decode revision %d of %s, written by %q: %w", rev, key, e.Writer, err)
	}
	return e, nil
}

func (b *Bucket[T]) uid(key string) string { return tokenAt(key, b.spec.UIDToken) }

// tokenAt gives a token of a key, unescaped; "" when there is none.
func tokenAt(key string, n int) string {
	if n < 0 {
		return ""
	}
	for ; n > 0; n-- {
		_, rest, ok := strings.Cut(key, ".")
		if !ok {
			return ""
		}
		key = rest
	}
	t, _, _ := strings.Cut(key, ".")
	s, err := Untoken(t)
	if err != nil {
		return ""
	}
	return s
}

// checkKey refuses what is no key: an empty token, a wildcard or a character that Token would have escaped.
func checkKey(key string) error { return checkTokens(key, false) }

// checkPattern allows "*" as a token and ">" as the last one.
func checkPattern(pattern string) error { return checkTokens(pattern, true) }

func checkTokens(key string, wildcards bool) error {
	rest, more := key, true
	for more {
		var t string
		t, rest, more = strings.Cut(rest, ".")
		if wildcards && (t == "*" || t == ">" && !more) {
			continue
		}
		if t == "" {
			return fault.New(fault.Invalid, "key %q has an empty token", key)
		}
		for i := range len(t) {
			if !plain(t[i]) && t[i] != '=' {
				return fault.New(fault.Invalid, "key %q has the character %q, which Token escapes", key, t[i])
			}
		}
	}
	return nil
}
