package tokens

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/podplane/podplane/internal/fault"
)

// header is the first line of a file that we write.
const header = "# Bearer tokens of Podplane's REST API, hashed. Written by `podplane token`; the gateway reads changes at once.\n"

// Create adds a token for a user to the file, which it makes (mode 0600) if there is none, and gives the token: it can't be had again.
// ttl 0 means that it never expires.
func Create(file, user string, groups []string, ttl time.Duration) (string, Token, error) {
	for _, name := range append([]string{user}, groups...) {
		if err := CheckName(name); err != nil {
			return "", Token{}, err
		}
	}
	if ttl < 0 {
		return "", Token{}, fault.New(fault.Invalid, "a token can't expire before it is made")
	}
	now := time.Now()
	var expires time.Time
	if ttl > 0 {
		expires = now.Add(ttl).UTC().Truncate(time.Second)
	}
	secret, t := generate(user, groups, now, expires)
	err := change(file, func(list []Token) ([]Token, error) { return append(list, t), nil })
	return secret, t, err
}

// Revoke takes tokens out of the file, by their ids.
func Revoke(file string, ids ...string) error {
	return change(file, func(list []Token) ([]Token, error) {
		for _, id := range ids {
			i := slices.IndexFunc(list, func(t Token) bool { return t.ID == id })
			if i < 0 {
				return nil, fault.New(fault.NotFound, "%s has no token with the id %q", file, id)
			}
			list = slices.Delete(list, i, i+1)
		}
		return list, nil
	})
}

// List gives the entries of the file.
func List(file string) ([]Token, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the tokens: %w", err)
	}
	doc, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return doc.Tokens, nil
}

// change replaces the file by what f makes of its entries.
func change(file string, f func([]Token) ([]Token, error)) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("make the directory of the tokens: %w", err)
	}
	lock, err := os.OpenFile(file+".lock", os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("lock the tokens: %w", err)
	}
	defer func() { _ = lock.Close() }() // which unlocks it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock the tokens: %w", err)
	}
	list, err := List(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if list, err = f(list); err != nil {
		return err
	}
	if list == nil {
		list = []Token{}
	}
	data, err := yaml.Marshal(document{Tokens: list})
	if err != nil {
		return fmt.Errorf("encode the tokens: %w", err)
	}
	if err := replace(file, append([]byte(header), data...)); err != nil {
		return fmt.Errorf("write the tokens: %w", err)
	}
	return nil
}

// replace writes a file whole or not at all. Owner and mode of the one before stay.
func replace(file string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), ".tokens-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // gone after the rename
	if info, statErr := os.Stat(file); statErr == nil {
		err = tmp.Chmod(info.Mode().Perm())
		if sys, ok := info.Sys().(*syscall.Stat_t); ok && err == nil {
			err = tmp.Chown(int(sys.Uid), int(sys.Gid))
		}
	}
	if err == nil {
		_, err = tmp.Write(data)
	}
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), file)
}
