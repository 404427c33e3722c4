// Package cri talks to the container runtime. It is the only package that knows CRI's wire types: everybody else uses
// the plain values of package pod and of this package.
//
// # Contract
//
// The interfaces in runtime.go are narrow, one for each kind of consumer. Two implementations pass the one suite in
// package conformance: [Client], over the wire, and crifake.Runtime, in memory.
//
//   - Ownership. A Client that was given a node name puts the label [pod.LabelNode] on all that it creates, and lists,
//     events and statistics are only about what carries it. Calls by ID are not checked again.
//   - Idempotence. Stopping what is stopped, and stopping or removing what does not exist, succeeds. Creating the same
//     name and attempt twice is an error of kind AlreadyExists.
//   - Errors have a kind (package fault): NotFound, Unavailable (the runtime is away), DeadlineExceeded (the runtime did
//     not answer in time; the error is a [*CallError] that names call and target), AlreadyExists, Unimplemented and so on.
//     An end of the caller's context is the context's error.
//   - Bounds. Every call has a deadline (see [Timeouts]) also when the context has none, except pulls (progress is the
//     runtime's business), commands without a timeout and the event stream. One that takes long is named while it goes on
//     (Options.Log). The calls share one connection; a call starts no goroutine, except
//     PodStatus of more than one item: at most 8.
//   - Loss. The event stream loses what happens while nobody listens or the runtime's buffer is full: events are hints,
//     lists are the truth. Order is kept per container, not across containers.
//   - Back-pressure. Events wait in the connection until Recv is called; there is no queue in this package. containerd
//     drops nothing for a reader that is slow, it waits: once some hundred events are not received, its handling of exits
//     stands still. Receive in a loop that does nothing slow.
//   - Secrets. Credentials, environment and exec output never appear in errors or spans.
package cri
