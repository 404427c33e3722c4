// Package reconcile decides what has to happen to a pod's volumes. It is pure: no I/O, no clock, no goroutine.
//
// A pod's volumes go through these phases, forwards only:
//
//	            every volume is set up
//	PENDING ----------------------------> READY
//	   |                                    |
//	   | the pod is terminated, or its      |
//	   | record is gone and stays so        |
//	   v                                    v
//	TEARING_DOWN <--------------------------+
//	   |
//	   | nothing is left on the node
//	   v
//	GONE
//
// The one exception is a reboot: what was READY in another boot of the node starts at PENDING again (Restore).
//
// Each volume has at most one operation under way, and the teardown of a pod waits until none is. A failed operation
// is repeated after 500 ms, doubling up to 2 min 2 s, and at once when the object that a volume is made from changed.
// Everything that a pod waits for is in its state, and so in its record: an error, or the age of an operation that
// does not end.
package reconcile
