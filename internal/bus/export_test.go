package bus

import "google.golang.org/protobuf/proto"

// Unchecked makes a bucket without opening it, to try what a service may not do.
func Unchecked[T proto.Message](c *Conn, spec BucketSpec[T]) *Bucket[T] {
	return &Bucket[T]{c: c, spec: spec}
}

// UncheckedStream makes a stream without opening it.
func UncheckedStream(c *Conn, spec StreamSpec) *Stream { return &Stream{c: c, spec: spec} }
