package shard

import "hash/fnv"

// Count is the number of shards that pods are cut into. All replicas must agree on it, so it never changes.
const Count = 16

// Of gives the shard of a pod.
func Of(uid string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(uid)) // never fails
	return int(h.Sum32() % Count)
}
