// Package chain is the pure core of "why": it joins what happened to a pod (lifecycle events), what was decided for it and what was
// reported about it (Kubernetes Events) to chains of event -> decision -> action.
//
// # How they are joined
//
// A decision names what it was taken upon: the ID of a lifecycle event, or a happening that is no event of the runtime (a probe's verdict,
// a changed spec, a deletion). A lifecycle event belongs to the decision that asked for it: a start to the StartContainer with the same
// attempt, an end to the KillContainer of the same container. What belongs to nothing begins a chain. Of what is missing (the journals
// have an end) the rest is shown all the same.
package chain
