package cri

import "time"

// Image is an image that the runtime holds.
type Image struct {
	ID          string
	RepoTags    []string
	RepoDigests []string
	Size        uint64 // bytes
	// UID is the image's user when it is a number, Username when it is a name. Neither: root.
	UID      *int64
	Username string
	// Pinned images are never garbage.
	Pinned      bool
	Annotations map[string]string
}

// ImageFsInfo is the use of the file systems of images and writable layers. They are often one and the same.
type ImageFsInfo struct {
	Images     []FilesystemUsage
	Containers []FilesystemUsage
}

// FilesystemUsage is how much of a file system something uses. It says nothing about the file system's size.
type FilesystemUsage struct {
	Mountpoint string
	UsedBytes  uint64
	InodesUsed uint64
	At         time.Time
}
