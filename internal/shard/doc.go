// Package shard divides the pods of a node among the replicas of a service, and makes sure that one of them at most works on each.
//
// # Shards and leases
//
// Pods are cut into Count shards by UID (Of); a service that looks at the node as a whole has one shard, and its other replicas
// are hot spares. In the bucket "leases" each shard has a record that names its holder, and each replica has one of its own.
// Only the replica's record is renewed, each third of the TTL: one small write per replica, however many shards it holds. A
// shard is held as long as its record names a replica whose record is there.
//
// # Who may do what, when
//
// Every write of the bucket is compared and swapped. A replica whose record another one has seen unrenewed for the TTL, by its
// own monotonic clock, is expelled: its record is deleted at the revision that was seen. So either the renewal wins or the
// expulsion, never both. A replica counts its time from the moment before it sent the renewal that was acknowledged, and stops
// (Holds turns false, Worker.Lose is called) a sixth of the TTL before anybody may expel it. No clocks are compared.
//
// A process of the same host (boot and pid namespace) that is not there any more is expelled at once: a replica that was
// killed and started again does not wait for its own lease.
//
// What is done to the world is stopped by time; what is written on the bus is, beyond that, refused by the server: with a
// shard its new holder takes over the fences of the service's buckets (bus.Fences), so that a late write of the former one
// has no effect, whenever it arrives.
//
// # The bus is away
//
// A replica that can't renew stops in time, unless it was the only one when the bus went away: then it goes on, because nobody
// is there to take over; after it has itself been stopped (SIGSTOP, a hung host) it first renews. One that joins meanwhile over
// another connection is the case that remains; the fences hold then too.
//
// # Spread
//
// Each replica takes free shards up to its fair share, ceil(shards/replicas), and gives up what is above, ending its work
// first. A graceful stop gives everything up, so that the others take over at once.
//
// # Resources
//
// A Keeper has three goroutines and one watch of its service's leases on its node.
package shard
