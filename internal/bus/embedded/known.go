package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
)

// usersFile is where a store keeps the public keys of those who wrote in it.
const usersFile = "users.check"

// CheckUsers refuses keys in keysDir that are others than those that NoteUsers has noted beside the records, and their lack: a key that was lost
// and made anew in silence would hide that somebody may have it. Services that were not noted are new.
func CheckUsers(storeDir, keysDir string) error {
	if !hasRecords(storeDir) {
		return nil
	}
	noted, err := os.ReadFile(filepath.Join(storeDir, usersFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read whose keys the records know: %w", err)
	}
	for line := range strings.Lines(string(noted)) {
		name, public, ok := strings.Cut(strings.TrimSpace(line), " ")
		file := SeedFile(keysDir, name)
		if !ok || name != filepath.Base(name) {
			return fault.New(fault.Invalid, "%s: %q names no user and key", filepath.Join(storeDir, usersFile), line)
		}
		present, err := readSeed(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fault.New(fault.FailedPrecondition, "there are records in %s and the key %s of %s is gone: bring it back, or have new keys made (--new-keys)", storeDir, file, name)
		case err != nil:
			return fmt.Errorf("key of %s: %w", name, err)
		case present != public:
			return fault.New(fault.FailedPrecondition, "%s is another key of %s than the records in %s know: bring that back, or have this one taken (--new-keys)", file, name, storeDir)
		}
	}
	return nil
}

// NoteUsers notes the public keys of the users in keysDir beside the records.
func NoteUsers(storeDir, keysDir string) error {
	var lines []string
	for _, name := range append(bus.AllServices(), bus.ServiceCLI, AdminKey) {
		public, err := readSeed(SeedFile(keysDir, name))
		if err != nil {
			return fmt.Errorf("key of %s: %w", name, err)
		}
		lines = append(lines, name+" "+public)
	}
	slices.Sort(lines)
	if err := os.MkdirAll(storeDir, 0o700); err != nil {
		return fmt.Errorf("note whose keys the records know: %w", err)
	}
	if err := writeDurable(filepath.Join(storeDir, usersFile), strings.Join(lines, "\n")); err != nil {
		return fmt.Errorf("note whose keys the records know: %w", err)
	}
	return nil
}
