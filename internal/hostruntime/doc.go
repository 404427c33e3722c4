// Package hostruntime runs a container runtime of Podplane's own: a containerd with its own root, state, socket, bridge and
// subnet, so that it overlaps with no runtime that the host has already. `podplane up` starts one unless it is told of another
// runtime's endpoint, and each test binary starts one of its own.
//
// Ownership. A Runtime owns the containerd process, everything under Config.Root and Config.State, the bridge, one masquerade rule
// and two forward rules. Pods belong to whoever made them through CRI; this package starts none and ends them only in Purge.
//
// Life. containerd is detached: it has a session of its own and survives the process that started it, because it drains
// the containers' log pipes. Start adopts a containerd that runs already with the same configuration. If the configuration or the
// program changed, it is replaced; containers live on, as their shims do. Stop ends containerd and leaves containers running.
// Purge ends everything and removes it, whatever state it is in: it needs no working containerd.
//
// Bounds. Start waits for readiness until its context ends, at most StartTimeout, and fails at once if containerd exits; the error
// carries the end of containerd's log. The log is set aside at the next start when it has passed 16 MiB.
package hostruntime
