package bus

import (
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"
)

// BucketSpec declares a key-value bucket of records of type T.
type BucketSpec[T proto.Message] struct {
	// Name is the bucket's name; its stream is KV_<name>.
	Name string
	// Owner is the service that creates and upgrades it; "" lets every writer do so.
	Owner string
	// Writers gives for each service the patterns of the keys that it writes, with {service} and {node}
	// standing for its own. Patterns of two services never overlap.
	Writers map[string][]string
	// Readers are the services that read it.
	Readers []string
	// UIDToken is the position of the pod's UID in a key, counted from 0; below 0 when keys have none.
	UIDToken int
	// Durable says that what was acknowledged must survive a power cut; otherwise it can be observed again.
	// Only a bucket in Memory may lose more than the last moments.
	Durable bool
	// Fenced says that writers may guard their records by Fences.
	Fenced bool
	// Memory keeps the bucket in the server's memory only: it is empty after a restart of the server.
	Memory bool
	// History is how many revisions of a key are kept; 0 means 1.
	History uint8
	// TTL lets a key expire that is not written again; 0 keeps it for ever.
	TTL time.Duration
	// MaxBytes bounds the whole bucket: beyond it writes fail with kind ResourceExhausted. It is required.
	MaxBytes int64
	// MaxValueBytes bounds one value: larger ones fail with kind TooLarge. It is required.
	MaxValueBytes int32
	// New makes an empty value to decode into.
	New func() T
}

// StreamSpec declares a stream of messages.
type StreamSpec struct {
	// Name is the stream's name.
	Name string
	// Owners are the services that create and upgrade it and publish to it.
	Owners []string
	// Readers are the services that read it.
	Readers []string
	// Subjects is what it stores.
	Subjects []string
	// MaxAge, MaxBytes and MaxMsgs bound it; the oldest messages go first. MaxAge and MaxBytes are required.
	MaxAge   time.Duration
	MaxBytes int64
	MaxMsgs  int64
	// MaxMessageBytes bounds one message.
	MaxMessageBytes int32
	// Duplicates is how long a message's ID is remembered.
	Duplicates time.Duration
	// Durable is as in BucketSpec.
	Durable bool
}

// markerTTL is how long the marker of a deletion stays in a bucket. Watchers
// that were away longer learn of the deletion from the present state.
const markerTTL = time.Hour

// limitMarkerTTL is how long the marker of an expired key stays.
const limitMarkerTTL = time.Minute

// specInfo is what does not depend on the type of a bucket's values.
type specInfo struct {
	kind     string // "bucket" or "stream", for messages
	name     string
	stream   string
	owners   []string
	uidToken int
	config   jetstream.StreamConfig
	memory   bool // gone with the server
	durable  bool // as declared
}

func (s BucketSpec[T]) info() specInfo {
	owners := []string{s.Owner}
	if s.Owner == "" {
		owners = slices.Sorted(maps.Keys(s.Writers))
	}
	cfg := jetstream.StreamConfig{
		Name:              bucketStream + s.Name,
		Description:       "podplane bucket " + s.Name,
		Subjects:          []string{bucketPrefix + s.Name + ".>"},
		MaxMsgsPerSubject: int64(max(s.History, 1)),
		MaxBytes:          s.MaxBytes,
		MaxMsgSize:        s.MaxValueBytes + maxHeaderBytes,
		MaxAge:            s.TTL,
		MaxMsgs:           -1,
		MaxConsumers:      -1,
		Discard:           jetstream.DiscardNew,
		AllowRollup:       true,
		DenyDelete:        true,
		AllowMsgTTL:       true,
		Duplicates:        2 * time.Minute,
		Storage:           jetstream.FileStorage,
	}
	if s.TTL > 0 {
		cfg.SubjectDeleteMarkerTTL = limitMarkerTTL
		cfg.Duplicates = min(cfg.Duplicates, s.TTL)
	}
	if s.Fenced {
		cfg.Subjects = append(cfg.Subjects, fencePrefix+s.Name+".>")
	}
	if s.Memory {
		cfg.Storage = jetstream.MemoryStorage
	}
	return specInfo{kind: "bucket", name: s.Name, stream: cfg.Name, owners: owners, uidToken: s.UIDToken, config: cfg, memory: s.Memory, durable: s.Durable}
}

func (s StreamSpec) info() specInfo {
	maxMsgs := s.MaxMsgs
	if maxMsgs == 0 {
		maxMsgs = -1
	}
	cfg := jetstream.StreamConfig{
		Name:              s.Name,
		Description:       "podplane stream " + s.Name,
		Subjects:          s.Subjects,
		MaxMsgsPerSubject: -1,
		MaxBytes:          s.MaxBytes,
		MaxMsgSize:        s.MaxMessageBytes + maxHeaderBytes,
		MaxAge:            s.MaxAge,
		MaxMsgs:           maxMsgs,
		MaxConsumers:      -1,
		Discard:           jetstream.DiscardOld,
		DenyDelete:        true,
		DenyPurge:         true,
		Duplicates:        s.Duplicates,
		Storage:           jetstream.FileStorage,
	}
	return specInfo{kind: "stream", name: s.Name, stream: s.Name, owners: s.Owners, uidToken: 2, config: cfg, durable: s.Durable}
}

// maxHeaderBytes is what the headers of one message may add to its size.
const maxHeaderBytes = 4 << 10
