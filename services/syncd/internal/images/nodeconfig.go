package images

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// maxNodeConfig bounds the node's Docker configuration.
const maxNodeConfig = 1 << 20

// NodeConfigFiles lists where the node's own registry credentials are looked for: the first file that there is counts. home may be empty.
func NodeConfigFiles(root, home string) []string {
	dirs := []string{root}
	if home != "" {
		dirs = append(dirs, filepath.Join(home, ".docker"))
	}
	dirs = append(dirs, "/.docker")
	var files []string
	for _, dir := range dirs {
		files = append(files, filepath.Join(dir, "config.json"))
	}
	files = append(files, filepath.Join(root, ".dockercfg"))
	if home != "" {
		files = append(files, filepath.Join(home, ".dockercfg"))
	}
	return append(files, "/.dockercfg")
}

// nodeConfig is the node's Docker configuration. It is read again when it has changed.
type nodeConfig struct {
	files []string

	mu   sync.Mutex
	file string
	size int64
	at   time.Time
	ring keyring
}

// match returns the node's credentials for the image. An error names a file that can't be read, which then offers nothing.
func (n *nodeConfig) match(image reference) ([]credential, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, file := range n.files {
		info, err := os.Stat(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look at the node's registry credentials: %w", err)
		}
		if info.IsDir() {
			continue
		}
		if file != n.file || info.Size() != n.size || !info.ModTime().Equal(n.at) {
			ring, err := readNodeConfig(file, info.Size())
			if err != nil {
				return nil, err
			}
			n.file, n.size, n.at, n.ring = file, info.Size(), info.ModTime(), ring
		}
		return n.ring.match(image), nil
	}
	n.file, n.ring = "", nil
	return nil, nil
}

func readNodeConfig(file string, size int64) (keyring, error) {
	if size > maxNodeConfig {
		return nil, fmt.Errorf("the node's registry credentials %s are larger than %d bytes", file, maxNodeConfig)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the node's registry credentials: %w", err)
	}
	parse := parseConfig
	if filepath.Base(file) == ".dockercfg" {
		parse = parseLegacy
	}
	auths, err := parse(raw, file)
	if err != nil {
		return nil, err
	}
	var ring keyring
	ring.add(auths, nil)
	return ring, nil
}
