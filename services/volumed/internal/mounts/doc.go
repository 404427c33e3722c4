// Package mounts touches the kernel's mount table and removes directory trees without ever leaving them.
//
// Everything below a pod's directory may have been written by the pod: names, links, depths and mounts there are not
// trusted. Paths are resolved by openat2 (or os.Root, which is the same promise): never through a symbolic link out of
// the tree, and in a removal never across a mount.
package mounts
