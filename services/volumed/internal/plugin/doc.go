// Package plugin sets volumes up on disk and takes them down. It decides nothing about when.
//
// Layout: <root>/pods/<uid>/volumes/kubernetes.io~<plugin>/<volume>. Every step is idempotent and complete on its own,
// so that whoever finds the result of a step knows that it is whole: a directory gets its owner and permissions under
// another name before it gets its own, a tmpfs is mounted with them, files come through package atomicwriter. Nothing
// else remembers what was set up: after a SIGKILL at any moment the mount table and the directories are the truth.
//
// What pods wrote is not trusted (see package mounts), and names from a pod's spec never leave the pod's directory.
// Errors name objects and keys, never what is in them.
package plugin
