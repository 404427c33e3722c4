// Package manifest makes pods of manifests that are not posted: of the files in a directory, and of what a URL answers. Static pods, as Kubernetes
// calls them.
//
// # Files
//
// A file is a manifest when its name ends in .yaml, .yml or .json and does not begin with a dot; sub-directories are not read. It holds
// one v1.Pod, of at most 10 MiB. Links are followed; what is changed behind a link is seen at the next rescan, not at once. The directory is read when inotify
// tells of a change in it and each 20 s; a missing directory is an empty one. In place of a directory there may be one file.
//
// # URL
//
// It is asked each 20 s, with the configured headers, for one v1.Pod or a list of them. Only a good answer counts: while the server is away, answers with an
// error or with something else, what it said last stays, over restarts too as far as it is stored. An empty list, not an empty answer, ends all its pods.
// Redirects are followed on the same host only.
//
// # Identity
//
// The pod's name gets the node's as a suffix. Its UID comes from the manifest's content (not its form) and from the path or URL, so a restart of syncd keeps the
// pod and a changed manifest is another pod: the old one is deleted with its grace period, and the new one is stored when the old one is
// gone. Until then an Event says what it waits for.
//
// # Names
//
// A name belongs to the pod that had it first, whichever source it is from. Another one of that name is told so by an Event and takes its place when the first
// is gone, unless the manifest that the first came from asks for it again.
//
// # Failures
//
// What can't be read as a pod is told in the log and in an Event of the node, with file and line; the others count, and a pod
// that it made before stays until it is mended or removed, so that an editor that writes in place never ends a pod. A file that is gone
// ends its pod. Nothing is deleted before its source has been read completely. What the node refuses (no room, a port or a name in use), and what a bus
// that is away refuses, is tried again when a pod goes and at the next rescan.
package manifest
