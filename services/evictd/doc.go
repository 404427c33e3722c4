// Package evictd is the service that watches the node's memory, disks, inodes and processes. It writes the conditions
// MemoryPressure, DiskPressure and PIDPressure; under pressure it removes unused images, and orders one pod at a time to be
// evicted, which syncd obeys. It also keeps the disk of images below its mark.
//
// It stops no container itself. Killed at any moment, it reads its open orders and its conditions from the bus and goes
// on. The decisions are in internal/policy, the loop in internal/manager.
package evictd
