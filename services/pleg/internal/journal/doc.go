// Package journal keeps pleg's events in the stream LIFECYCLE: it publishes them and rebuilds, from what is stored, the
// record of what was said.
//
// # Guarantees
//
//   - Ordering. The events of one pod are published one after the other, each acknowledged before the next. Pods are
//     independent of each other: up to Options.Parallel at once.
//   - Loss. An event leaves the memory when the bus has acknowledged it. While the bus is away events wait, up to
//     Options.MaxPending; beyond that Room says false, the caller leaves its record where it is, and compares again later.
//   - Repetition. An event that may or may not have been stored is published again under the same ID, which makes it a
//     duplicate for the stream; and Load makes a new process know what was stored.
//   - Bounds. A goroutine per pod that has something to publish, none at rest.
package journal
