// Package daemon is the shell that every service of Podplane runs in, so that each starts, reports, and stops alike and has only its own
// concern to write.
//
// A service is a Service value: a name, the defaults of its configuration (a struct that embeds Config) and a Run function. Command makes
// the cobra command of it: flags, environment and file fill the configuration (internal/conf), then Run below does, in this order:
// logger and tracing; the HTTP endpoint (/healthz, /readyz, /metrics), so that a service that waits can say for what; the bus; Events;
// the service's Run. Within it the service registers what it serves on Deps.GRPC, starts its components with Deps.Go, and calls
// Deps.Serve once: then the gRPC server opens and the replica is registered on the bus.
//
// Components run until they are stopped: one that ends by itself, with or without an error, ends the daemon. They are stopped one after
// the other in the reverse order of their start, all of them under Config.ShutdownTimeout; what does not end by then is named and left
// behind. SIGTERM and SIGINT stop gracefully, a second signal ends the process at once. Nothing depends on a graceful stop: a process that
// is killed is replaced by one that reads everything again.
//
// A service is ready when every check passes: "bus" (connected), "serving" (Serve was called) and those that the service added.
package daemon
