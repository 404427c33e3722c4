// Package testkit gives the tests of all modules a real container runtime, a registry with test images, and helpers for waiting and
// for leaks.
//
// A test package that uses it calls Main from TestMain. Containerd then returns the one containerd of the test binary, started
// at first use; NewNode starts one more, for tests that kill it. Each has its own directory, subnet, bridge and cgroup
// parent, so that test binaries may run at the same time. All of it is removed at the end by a reaper: the test binary itself,
// run once more in a session of its own, which waits for the end of its parent's pipe. It does its work also when the tests
// panic, run out of time or are killed; what a host that lost power kept is removed by the next test that gets the same number.
//
// What is missing fails a test; nothing is skipped.
package testkit
