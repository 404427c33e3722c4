// Package plan decides what to do next for one pod. [Next] is a pure function of what is wished for, what the runtime has, and
// what volumes, probes and earlier attempts say: no I/O, no clock, no state of its own.
//
//	            deletion, eviction, deadline,
//	            completion, failed init container            nothing alive, sandboxes stopped
//	[Syncing] -----------------------------------> [Terminating] -----------------------------> [Terminated]
//
// The phases only move forward.
//
// The result is a set of actions that may all run at the same time, what the pod waits for, and when to look again when nothing
// happens before. Order is expressed by what is left out: a container's start appears only once its sandbox, image and volumes are
// there, an init container's successor only once it has ended. An action whose resource is busy (Input.Busy) is left out as well, so that calling
// Next again and again while actions run never does a thing twice.
//
// The restart back-off is remembered by the runtime: each container carries in an annotation the delay that is due when it ends
// ([AnnotationRestartDelay]), so that a restart of the agent does not reset it.
package plan
