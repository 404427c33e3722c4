// Package rpc makes the gRPC servers and clients of Podplane's services, so that all of them trace, fail and stop alike.
//
// A Server answers with faults (internal/fault) as gRPC errors, turns a panic into an Internal error, refuses requests over 4 MiB, offers
// the standard health and reflection services, and ends open streams when it stops: a watch does not hold a shutdown up.
//
// A client finds its service by name through the registrations on the bus (scheme nats). While the bus is away the last known addresses
// stay in use; a replica that died is skipped, because its address refuses connections, long before its registration expires. A call
// waits for a reachable replica, at most WaitForReady (5 s) or its own deadline, and then fails with Unavailable and a message that names
// the service; so a call that is made while a service restarts either succeeds or says so. Calls that only read (Get…, List…, Rank…) are
// tried again when a connection breaks under them; calls that write are not, unless nothing was sent: whether they happened is for the
// caller to find out. A unary call without a deadline gets one of 30 s. Streams may be as long as they like.
package rpc
