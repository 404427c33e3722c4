// Package worker drives pods: one goroutine per pod owns all that is known and decided about it.
//
// # Ownership
//
// A worker alone says whether its pod's containers may run, and alone writes its StatusRecord. The [Manager] owns the workers. Everybody else only
// hands in news (a pod changed, a container may have died, volumes are ready, a probe has a verdict), which never blocks: the newest value of each kind is
// kept in the worker's inbox.
//
// # The loop
//
// A worker takes its news, builds the input of package plan, starts the actions that come out, computes the status and hands it to the sink; then it sleeps
// until there is more news, an action ends, or the plan's next moment. Actions run outside the loop and report back. Those that start something are
// cancelled as soon as the pod is to stop. At rest a pod costs one goroutine and one timer at most.
//
// # Observation
//
// The runtime is the truth. A worker starts from a complete inspection, takes over what its own actions made, and inspects again whenever a hint says that
// something changed which it does not know, when an action failed in a way that leaves open what happened, and when the list of all pods, taken once a
// minute, differs from its view. While it does not know, it starts nothing and keeps the status that it published last.
//
// # Loss and bounds
//
// Hints may be lost, late or repeated. Starts of sandboxes and containers share a limited number of slots. Failures are tried again with growing pauses that
// have a cap (package plan). Nothing is kept on disk: a new process starts from the bus and the runtime and adopts what runs.
package worker
