// Package syncd is the service that runs pods: it alone says which pods are wished for and whether their containers may run.
//
// # What it owns
//
// The buckets pods and objects (internal/store: desired pods, ConfigMaps and Secrets, from REST and from a manifest directory) and status (internal/feed), the sandboxes
// and containers of its node in the container runtime, the pods' directories and logs, and the Events about all that. The bucket volumes, probes, evictions and
// conditions and the stream of lifecycle events are read.
//
// # How it is built
//
// internal/plan and internal/status decide, without I/O: what to do next for a pod, and what its status is. internal/worker has one goroutine per pod that acts on them
// through internal/runtime (configurations, hooks, files), internal/images and internal/hosts. internal/feed brings news from the bus. internal/gc keeps dead containers and logs
// within bounds. internal/api serves gRPC on internal/store, behind internal/decode and internal/admission.
//
// # Failure
//
// It may be killed at any moment. The next process takes the desired pods and the last status from the bus, asks the runtime what is there, and goes on: what runs is
// adopted. Without the bus running pods go on and their status is kept until it is back; without the runtime nothing is started or declared dead.
package syncd
