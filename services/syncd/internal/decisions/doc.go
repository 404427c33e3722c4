// Package decisions keeps what the workers decided, and why, in the stream DECISIONS.
//
// # Guarantees
//
//   - Ordering. The decisions for one pod are stored in their order, one message after the other. Pods do not wait for each other.
//   - Economy. What is decided for a pod while its last message is under way goes together into the next one: a pod costs at most one
//     message for each step that did something, and none at rest.
//   - Loss. A decision is on its way when its action begins; nobody waits for it. While the bus is away decisions wait, up to MaxPending, and
//     are dropped and counted beyond that. A SIGKILL loses those that were not acknowledged, some milliseconds' worth.
//   - Repetition. A message whose acknowledgement was lost is published again under its ID, which makes it a duplicate.
package decisions
