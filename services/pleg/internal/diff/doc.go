// Package diff is pleg's pure core: it compares what was last said about a pod with what the runtime shows now, and
// says which lifecycle events lie between. No I/O, no clock, no goroutine.
//
// # The life of an object
//
//	container: (unknown) -> created -> running -> exited -> removed
//	                           \____________________^  a start that failed
//	sandbox:   (unknown) -> created -> running -> exited -> removed
//
// An object's phase only moves forward. What was missed between two observations is filled in: a container that is
// first seen exited has been created, has been started when the runtime knows when, and has died.
//
// # Guarantees
//
//   - Same set. As long as each container is seen once in its last phase before it is removed, any interleaving of
//     events from the stream, relists, losses, repetitions and observations that arrive late gives the same events,
//     each once, in the order of each object's life.
//   - Identity. An event's ID depends on the object and the type only, so that whoever publishes it again makes a
//     duplicate and not a second event.
//   - Absence counts only in a complete observation that began after the object was last seen.
//   - Bounds. A record holds one small value for each sandbox and container that the runtime has.
package diff
