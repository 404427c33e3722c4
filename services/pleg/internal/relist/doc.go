// Package relist watches the runtime: its event stream for speed, lists of everything for completeness. It owns the
// record of what was said about each pod and hands the events between record and runtime to a sink.
//
// # How it works
//
// One goroutine (Run) owns all records. It takes events from the stream, results of relists and results of inspections,
// compares (package diff), and hands events on; it never calls the runtime itself. A relist lists everything and asks
// for the status of those pods only that a list shows to be behind: each 60 s beside a working stream, each second
// without one, and at once when the stream is lost or found again. A relist beside a stream that finds what the stream
// should have told is followed by others after 1, 2, 4… s, up to the 60 again. An event whose payload tells all is published from the payload.
//
// # Guarantees
//
//   - Ordering. A pod's events are handed to the sink in order. Pods do not wait for each other.
//   - Loss. None as long as the runtime shows a container's end before it forgets the container. Without an answer of
//     the runtime nothing is concluded: no answer means no event.
//   - A pod whose inspection hangs holds up nobody: its inspections and their age are reported (Options.OnStuck) within
//     Options.StuckAfter plus a second, and what could be read of the pod counts.
//   - Bounds. One inspection per pod and Options.Parallel at once (those that hang do not count), one relist, one
//     stream; a queue of 256 results, and behind it the runtime's own queue.
package relist
