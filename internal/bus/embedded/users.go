package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/nats-io/nkeys"

	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/fault"
)

// AdminKey names the key of the account without restrictions.
const AdminKey = "admin"

// SeedFile is where ServiceUsers keeps the key of a service: for bus.Config.NKeySeedFile.
func SeedFile(dir, service string) string { return filepath.Join(dir, service+".nk") }

// ServiceUsers gives one user for each service with the permissions that
// internal/bus declares, one for the command line, and one without restrictions
// (AdminKey). Their seeds are in dir (mode 0700, files 0600), made where they
// are missing. With a node, services may write that node's records only.
func ServiceUsers(dir, node string) ([]User, error) {
	users, err := serviceUsers(dir, node)
	if err != nil {
		return nil, err
	}
	admin, err := adminUser(dir)
	return append(users, admin), err
}

// NodeUsers gives the users of a bus that several nodes share, as ServiceUsers does for one: the seeds of each node are in a directory of
// its name below dir, for that node only, and AdminKey's is in dir itself.
func NodeUsers(dir string, nodes []string) ([]User, error) {
	var all []User
	for _, node := range nodes {
		if node == "" || node != filepath.Base(node) || strings.HasPrefix(node, ".") {
			return nil, fault.New(fault.Invalid, "the node %q can't name a directory of keys", node)
		}
		users, err := serviceUsers(NodeKeys(dir, node), node)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", node, err)
		}
		all = append(all, users...)
	}
	admin, err := adminUser(dir)
	return append(all, admin), err
}

// NodeKeys is where NodeUsers keeps the keys of a node.
func NodeKeys(dir, node string) string { return filepath.Join(dir, node) }

func serviceUsers(dir, node string) ([]User, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the bus keys: %w", err)
	}
	var users []User
	for _, service := range append(bus.AllServices(), bus.ServiceCLI) {
		public, err := ensureSeed(SeedFile(dir, service))
		if err != nil {
			return nil, fmt.Errorf("key of %s: %w", service, err)
		}
		u := User{PublicKey: public}
		if node == "" {
			u.Publish, u.Subscribe = bus.Permissions(service)
		} else {
			u.Publish, u.Subscribe = bus.PermissionsOn(service, node)
		}
		users = append(users, u)
	}
	return users, nil
}

// RotateSeeds makes all seeds in dir anew, each file as a whole, for the same owners. A server that runs takes them with SetUsers.
func RotateSeeds(dir string) error {
	for _, service := range append(bus.AllServices(), bus.ServiceCLI, AdminKey) {
		file := SeedFile(dir, service)
		info, err := os.Stat(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is made when somebody needs it
		}
		if err != nil {
			return fmt.Errorf("key of %s: %w", service, err)
		}
		owner := -1
		if sys, ok := info.Sys().(*syscall.Stat_t); ok {
			owner = int(sys.Uid)
		}
		if err := newSeed(file, owner); err != nil {
			return fmt.Errorf("key of %s: %w", service, err)
		}
	}
	return nil
}

func adminUser(dir string) (User, error) {
	public, err := ensureSeed(SeedFile(dir, AdminKey))
	if err != nil {
		return User{}, fmt.Errorf("key of %s: %w", AdminKey, err)
	}
	return User{PublicKey: public, Full: true}, nil
}

// ensureSeed gives the public key of the seed in a file, which it makes if it is missing.
func ensureSeed(file string) (public string, err error) {
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		if err := newSeed(file, -1); err != nil {
			return "", err
		}
	}
	return readSeed(file)
}

// readSeed gives the public key of the seed in a file.
func readSeed(file string) (public string, err error) {
	seed, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	pair, err := nkeys.FromSeed(bytes.TrimSpace(seed))
	if err != nil {
		return "", fault.New(fault.Invalid, "%s holds no seed: %w", file, err)
	}
	defer pair.Wipe()
	return pair.PublicKey()
}

// newSeed writes a new seed, whole or not at all, for the user owner; below 0: for this process'. It is on disk when this returns.
func newSeed(file string, owner int) error {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	defer pair.Wipe()
	seed, err := pair.Seed()
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".key-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // gone after the rename
	_, err = tmp.Write(append(bytes.Clone(seed), '\n'))
	if err == nil && owner >= 0 {
		err = tmp.Chown(owner, owner)
	}
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), file); err != nil {
		return err
	}
	return syncDir(filepath.Dir(file))
}
