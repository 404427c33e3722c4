// Package bus is Podplane's bus: key-value buckets of records and streams of
// messages on NATS JetStream. It is the only package that knows NATS.
//
// # Ownership
//
// schema.go declares every bucket and stream once: who creates it, who writes
// which keys, who reads it, how long it is kept. Each record has exactly one
// writer. Permissions turns that declaration into the subjects that a
// service's account may publish and subscribe to, so that the rule holds
// against mistakes of a client too. (It is no defence against a hostile
// service: a JetStream consumer's reply subject is not checked by the server.)
//
// # Ordering
//
// A watcher sees the changes of a key in the order of their revisions, never
// an older revision after a newer one; across keys it sees them in the order of
// the stream. All callbacks of one Watch or Read come from the goroutine that
// called it. Two writers of different keys are not ordered with each other.
//
// # Loss and repetition
//
// What Put, Create, Update, Delete and Publish acknowledged with a nil error is
// stored; an embedded server syncs it to disk before that. An error of kind
// Unavailable says nothing about whether it was stored. A watcher may see a
// revision more than once, and may miss revisions that were overwritten
// meanwhile, but never the last one: after each interruption the present state
// is delivered again, and what vanished is delivered as Deleted.
//
// # Back-pressure
//
// Readers pull: at most 256 messages or 8 MiB wait for one watcher in this
// process, the rest waits in the server. Writers wait for the acknowledgement
// of each value; Writer keeps only the newest value of each key. Nothing is
// buffered by the connection while the server is away: calls fail at once with
// kind Unavailable, and Watch, Read and Writer carry on when it is back.
//
// # Resources
//
// A connection costs two goroutines of the client library; a running Watch or
// Read none but its caller's; a Writer its Run and up to a bounded number of
// short-lived senders.
package bus
