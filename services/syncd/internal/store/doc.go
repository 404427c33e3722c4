// Package store is syncd's view of the desired pods, their status and the config objects, and the only one who changes them.
//
// # Ownership
//
// The buckets pods and objects are written here and nowhere else. The bucket status is written by the workers; the store learns their
// writes at once through ApplyStatus, and deletes a pod's status when the pod is gone.
//
// # Ordering
//
// Changes of one pod or object are made one after another, each against the revision that it was decided on (compare and swap); changes
// of different ones go in parallel. What was acknowledged is visible to every later read (read your writes); it is not waited for by way
// of the watch. The watch of the buckets brings everything else: the state at start, and what an earlier process of this service wrote.
// Revisions of a key never go back. Subscribers are called in the order of the changes, one call at a time.
//
// # Loss
//
// A change is answered only when the bus has acknowledged it. While the bus is away a change is tried for Options.Patience (3 s), then it
// fails with kind Unavailable and a time to retry; a pod whose creation failed that way and that turns out to be stored after all is
// deleted again, because its client was told that it does not exist. Reads go on from memory while the bus is away; before the first
// complete view they fail with kind Unavailable.
//
// # Versions
//
// A resourceVersion is a number of the table (package watchcache) that an object is in: opaque, growing, and never the same in two runs
// of the service. So an update with the resourceVersion of an earlier run is answered with a conflict, which clients treat by reading again.
//
// # Back-pressure
//
// Subscribers must not block. Watchers have bounded queues and are ended when they do not keep up.
package store
