// Package pleg is the service that says what happens to containers and sandboxes (events in the stream LIFECYCLE) and how
// the container runtime is (the conditions RuntimeReady and NetworkReady).
//
// It owns nothing in the runtime and calls nothing there that changes anything. Killed at any moment, it reads on its
// next start what it had published (internal/journal), compares that with what the runtime has (internal/relist,
// internal/diff) and publishes what is missing, once. Replicas on one node are harmless: the same event has the same ID.
package pleg
