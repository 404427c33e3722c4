// Package userns gives pods with a user namespace of their own a range of the node's user and group IDs that no other pod has.
//
// A range is a file in the pod's directory, and nothing else: what is there is taken. A lock on a file of the node's root keeps
// processes from taking the same range at the same moment. A pod keeps its range until its directory is removed.
package userns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/podplane/podplane/internal/pod"
)

// Length is the number of IDs that each pod gets. Ranges begin at its multiples, the first is the node's own.
const Length = 65536

const (
	fileName = "userns"
	lockName = "userns.lock"
	// ranges is how many there are of 32 bits; the last is left out, as the highest ID means nobody.
	ranges = 1<<32/Length - 1
)

// file is the content of a pod's file, in Kubernetes' form.
type file struct {
	UIDMappings []mapping `json:"uidMappings"`
	GIDMappings []mapping `json:"gidMappings"`
}

type mapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

// Ranges are the ranges of a node's pods. Its methods may be called from many goroutines and processes.
type Ranges struct {
	// Root is the node's directory; pods have theirs below Root/pods, by UID.
	Root string
}

// Get gives the pod's range, a free one when it has none yet. The pod's directory must be there.
func (r Ranges) Get(uid string) ([]pod.IDMapping, error) {
	unlock, err := r.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	own := filepath.Join(r.Root, "pods", uid, fileName)
	first, err := read(own)
	switch {
	case err == nil:
		return idMapping(first), nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	taken, err := r.taken()
	if err != nil {
		return nil, err
	}
	for n := uint32(1); n < ranges; n++ {
		if !taken[n*Length] {
			return idMapping(n * Length), write(own, n*Length)
		}
	}
	return nil, errors.New("no range of user IDs is free")
}

func idMapping(first uint32) []pod.IDMapping {
	return []pod.IDMapping{{HostID: first, Length: Length}}
}

// File is the pod's file, for its removal.
func (r Ranges) File(uid string) string { return filepath.Join(r.Root, "pods", uid, fileName) }

func (r Ranges) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(r.Root, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the ranges of user IDs: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the ranges of user IDs: %w", err), f.Close())
	}
	return func() { _ = f.Close() }, nil // which gives the lock back
}

func (r Ranges) taken() (map[uint32]bool, error) {
	files, err := filepath.Glob(filepath.Join(r.Root, "pods", "*", fileName))
	if err != nil {
		return nil, fmt.Errorf("find the ranges of user IDs: %w", err)
	}
	taken := make(map[uint32]bool, len(files))
	for _, f := range files {
		first, err := read(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it went while we looked
		}
		if err != nil {
			return nil, err
		}
		taken[first] = true
	}
	return taken, nil
}

func read(path string) (first uint32, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	if len(f.UIDMappings) != 1 || f.UIDMappings[0].Length != Length || f.UIDMappings[0].HostID%Length != 0 {
		return 0, fmt.Errorf("read %s: it does not have one range of %d IDs", path, Length)
	}
	return f.UIDMappings[0].HostID, nil
}

// write stores the range so that it is there as a whole or not at all, also after a power cut: one that can't be read would keep all others back.
func write(path string, first uint32) error {
	m := []mapping{{HostID: first, Length: Length}}
	data, err := json.Marshal(file{UIDMappings: m, GIDMappings: m})
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
