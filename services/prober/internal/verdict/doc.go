// Package verdict is the state machine of one probe of one container. It is pure: no I/O, no clock, no goroutine.
//
//	        a container runs           its time has come, the gate is open
//	Idle -------------------> Waiting ------------------------------------> Probing
//	  ^                          ^                                             |
//	  |                          +-- the gate closed --------------------------+
//	  |                                                                        | liveness failed, or startup decided
//	  +-- the container ended, or another one runs <-- Holding <---------------+
//
// A verdict needs as many equal results in a row as the threshold says; what is below a threshold changes nothing.
// Before its first verdict a probe has none (readers then take liveness for Success, readiness for Failure and startup
// for Unknown). A verdict belongs to one container instance and is forgotten with it.
//
// The gate: liveness and readiness wait until the container has started, which a container with a startup probe has only
// when that has succeeded; a startup probe ends then. In a pod that is to go liveness and startup probes end, readiness
// goes on.
//
// A container that has just started gets extra readiness and startup probes in its first period, 100 ms after a failure and
// then at doubling pauses: a success among them counts, a failure does not.
package verdict
