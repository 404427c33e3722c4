package bus

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/podplane/podplane/internal/fault"
)

// Fences guard the records of a bucket against writers that have lost the right to write them, by the server's own check.
//
// A service cuts its keys into shards. For each shard the bucket's stream has one message more, the fence, beside the
// records. Whoever takes a shard over replaces its fence (Raise), and gives the fence's sequence with every write: the
// server refuses a write whose fence is not the last one any more. So a write of the former holder that was still under
// way, in a buffer or in a process that had been stopped, is refused however late it comes.
//
// Methods may be called from any goroutine.
type Fences struct {
	c              *Conn
	bucket, stream string
	shardOf        func(key string) int

	mu     sync.Mutex
	raised map[int]fence
}

type fence struct {
	seq   uint64
	still func() bool
}

// NewFences makes the fences of a bucket that is declared as fenced; shardOf gives the shard of a key.
func NewFences[T proto.Message](b *Bucket[T], shardOf func(key string) int) *Fences {
	return &Fences{c: b.c, bucket: b.spec.Name, stream: bucketStream + b.spec.Name, shardOf: shardOf, raised: map[int]fence{}}
}

// Raise takes a shard over: from now on writes of others are refused. still says whether the caller may; it is asked
// after the former fence was read and before it is replaced, and later when a write was refused.
func (f *Fences) Raise(ctx context.Context, shard int, still func() bool) error {
	subject := f.subject(shard)
	last, err := f.c.lastSequence(ctx, f.stream, subject)
	if err != nil {
		return fmt.Errorf("raise the fence of shard %d in bucket %s: %w", shard, f.bucket, err)
	}
	if !still() {
		return fault.New(fault.FailedPrecondition, "raise the fence of shard %d in bucket %s: the shard is not held any more", shard, f.bucket)
	}
	m := f.c.newMessage(ctx, subject, nil)
	m.Header[headerExpected] = []string{strconv.FormatUint(last, 10)}
	ack, err := f.c.publish(ctx, m)
	if err != nil {
		return fmt.Errorf("raise the fence of shard %d in bucket %s: %w", shard, f.bucket, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.raised[shard] = fence{seq: ack.Sequence, still: still}
	return nil
}

// Lower gives a shard up: nothing of it is written from now on.
func (f *Fences) Lower(shard int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.raised, shard)
}

func (f *Fences) subject(shard int) string {
	return fencePrefix + f.bucket + "." + Key(f.c.cfg.Service, f.c.cfg.Node, strconv.Itoa(shard))
}

// expect gives what must hold for a write of a key.
func (f *Fences) expect(key string) (expectation, error) {
	shard := f.shardOf(key)
	f.mu.Lock()
	up, ok := f.raised[shard]
	f.mu.Unlock()
	if !ok {
		return expectation{}, fault.New(fault.FailedPrecondition, "write %s in bucket %s: shard %d is not held", key, f.bucket, shard)
	}
	return expectation{of: f.subject(shard), rev: int64(up.seq)}, nil
}

// refused deals with a write that the server refused: the shard is another's, or, when it is held beyond doubt, the
// fence was lost with the server's data and is raised again. The error says whether to try again (kind Unavailable).
func (f *Fences) refused(ctx context.Context, key string, why error) error {
	shard := f.shardOf(key)
	f.mu.Lock()
	up, ok := f.raised[shard]
	f.mu.Unlock()
	if !ok || !up.still() {
		return fault.New(fault.FailedPrecondition, "the shard is another's: %w", why)
	}
	if last, err := f.c.lastSequence(ctx, f.stream, f.subject(shard)); err == nil && last == up.seq {
		return unavailable(why) // others' writes under way
	}
	if err := f.Raise(ctx, shard, up.still); err != nil {
		return err
	}
	return unavailable(why)
}

// lastSequence gives the sequence of the last message of a subject, which may have wildcards; 0 when there is none.
func (c *Conn) lastSequence(ctx context.Context, stream, subject string) (uint64, error) {
	var answer struct {
		Message storedMessage `json:"message"`
	}
	err := c.call(ctx, apiMessageGet+stream, map[string]string{"last_by_subj": subject}, &answer)
	if isCode(err, codeNoMessage) {
		return 0, nil
	}
	return answer.Message.Sequence, err
}
