// Package policy is evictd's pure core: from what was measured it derives the node's conditions of pressure, whether
// something must be reclaimed, and which pod goes. No I/O, no clock, no goroutine.
//
// # A round
//
//	signals --Observe--> conditions, crossed thresholds --Choose(pods with fresh usage)--> at most one order
//
// # Guarantees
//
//   - A condition is True at once when a threshold of it is crossed, and False only when none has been for the
//     transition period. When no signal of a condition can be measured it is Unknown.
//   - At most one pod per round; none while an order is not obeyed, and none on a measurement that is older than the end
//     of the last order.
//   - Critical pods (static ones and those of system priority) are never chosen.
//   - The ranking is a total order: the same input gives the same pod.
package policy
