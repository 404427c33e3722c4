package pod

import (
	"crypto/sha256"
	"encoding/hex"
)

// Types of lifecycle events: the last token of their subject.
const (
	LifecycleContainerCreated = "ContainerCreated"
	LifecycleContainerStarted = "ContainerStarted"
	LifecycleContainerDied    = "ContainerDied"
	LifecycleContainerRemoved = "ContainerRemoved"
	LifecycleContainerChanged = "ContainerChanged"
	LifecycleSandboxStarted   = "PodSandboxStarted"
	LifecycleSandboxStopped   = "PodSandboxStopped"
	LifecycleSandboxRemoved   = "PodSandboxRemoved"
)

// LifecycleEventID returns the ID of the event of this type about a sandbox or container. It depends on nothing else, so
// that whoever publishes the event again makes a duplicate, and whoever saw the happening itself can name the event.
func LifecycleEventID(objectID, eventType string) string {
	h := sha256.New()
	h.Write([]byte("podplane.pleg.v1\x00" + objectID + "\x00" + eventType))
	return hex.EncodeToString(h.Sum(nil)[:16])
}
