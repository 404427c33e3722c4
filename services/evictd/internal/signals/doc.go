// Package signals measures the node: memory, file systems, inodes, processes, and the kernel's own word that memory is
// short (pressure stall information).
//
// A measurement is a handful of small reads from /proc, the memory cgroup's root and statfs: about 0.1 ms, no goroutine,
// nothing kept between two. What can't be measured on this host is an observation with an error; nobody is asked twice
// for anything else because of it. Memory is counted as Kubernetes does: capacity less the working set (usage without
// inactive file pages) of the root cgroup, version 1 or 2, whichever the host has.
package signals
