package embedded

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/podplane/podplane/internal/fault"
)

const (
	// checkFile is where a store keeps by which key it is encrypted: the server itself would leave out what it can't read, and who looked for
	// it would begin anew.
	checkFile = "encryption.check"
	keyBytes  = 32
	// othersRead are the bits of a mode that let anybody but the owner have a key.
	othersRead = 0o077
)

// storeKey gives the key of a store, from keyFile, which it makes (mode 0600) for a store that is not encrypted yet. Without a keyFile the store must
// not be encrypted. The check is on disk before anything is encrypted.
func storeKey(storeDir, keyFile string) (string, error) {
	if err := settleKey(storeDir, keyFile); err != nil {
		return "", err
	}
	check, err := os.ReadFile(filepath.Join(storeDir, checkFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read how the records are encrypted: %w", err)
	}
	encrypted := err == nil
	if keyFile == "" {
		if encrypted {
			return "", fault.New(fault.FailedPrecondition, "the records in %s are encrypted and no file with their key is named", storeDir)
		}
		return "", nil
	}
	key, err := readKey(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		if encrypted {
			return "", fault.New(fault.FailedPrecondition, "the records in %s are encrypted and their key %s is gone: bring it back, nothing else reads them", storeDir, keyFile)
		}
		key, err = newKey(keyFile)
	}
	if err != nil {
		return "", fmt.Errorf("key of the records: %w", err)
	}
	want := checkOf(key)
	if encrypted {
		if !hmac.Equal([]byte(strings.TrimSpace(string(check))), []byte(want)) {
			return "", fault.New(fault.FailedPrecondition, "the records in %s are encrypted with another key than that in %s", storeDir, keyFile)
		}
		return key, nil
	}
	if err := writeDurable(filepath.Join(storeDir, checkFile), want); err != nil {
		return "", fmt.Errorf("note by which key the records are encrypted: %w", err)
	}
	return key, nil
}

// CheckKey says whether a server could read the records in a directory with the key in a file, without making anything: nil where there are no
// records yet, or none that are encrypted.
func CheckKey(storeDir, keyFile string) error {
	check, err := os.ReadFile(filepath.Join(storeDir, checkFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read how the records are encrypted: %w", err)
	}
	if keyFile == "" {
		return fault.New(fault.FailedPrecondition, "the records in %s are encrypted and no file with their key is named", storeDir)
	}
	if fits(check, NextKey(keyFile)) {
		return nil // the next start ends the change of the key
	}
	key, err := readKey(keyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.New(fault.FailedPrecondition, "the records in %s are encrypted and their key %s is gone", storeDir, keyFile)
	case err != nil:
		return err
	case strings.TrimSpace(string(check)) != checkOf(key):
		return fault.New(fault.FailedPrecondition, "the records in %s are encrypted with another key than that in %s", storeDir, keyFile)
	}
	return nil
}

// checkOf tells keys apart without giving them away.
func checkOf(key string) string {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte("podplane records"))
	return hex.EncodeToString(mac.Sum(nil))
}

// fits says whether a store with this check is encrypted with the key in a file.
func fits(check []byte, keyFile string) bool {
	key, err := readKey(keyFile)
	return err == nil && hmac.Equal([]byte(strings.TrimSpace(string(check))), []byte(checkOf(key)))
}

// NextKey is where the key is that a store will have after its change, and FormerKeys what the names of those before begin with: who has backups
// of before needs them.
func NextKey(keyFile string) string { return keyFile + ".next" }

// FormerKeys is what the names of keys that were in use before begin with.
func FormerKeys(keyFile string) string { return keyFile + ".before-" }

// settleKey ends a change of the key: the records are exchanged first, in one step, then the files of their keys. Where it stopped in
// between, at a power cut, the records fit the next key already.
func settleKey(storeDir, keyFile string) error {
	if keyFile == "" {
		return nil
	}
	check, err := os.ReadFile(filepath.Join(storeDir, checkFile))
	if err != nil || !fits(check, NextKey(keyFile)) {
		return nil // storeKey says what is wrong, if something is
	}
	err = os.Rename(keyFile, FormerKeys(keyFile)+time.Now().UTC().Format("20060102T150405.000"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep the former key of the records: %w", err)
	}
	if err := os.Rename(NextKey(keyFile), keyFile); err != nil {
		return fmt.Errorf("put the new key of the records in place: %w", err)
	}
	return syncDir(filepath.Dir(keyFile))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func readKey(file string) (string, error) {
	info, err := os.Stat(file)
	if err != nil {
		return "", err
	}
	if info.Mode().Perm()&othersRead != 0 {
		return "", fault.New(fault.Invalid, "%s: others may read or write it (mode %04o, want 0600)", file, info.Mode().Perm())
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(string(data))
	if len(key) < keyBytes {
		return "", fault.New(fault.Invalid, "%s holds %d characters, want at least %d", file, len(key), keyBytes)
	}
	return key, nil
}

func newKey(file string) (string, error) {
	raw := make([]byte, keyBytes)
	if _, err := rand.Read(raw); err != nil {
		return "", fmt.Errorf("make a key: %w", err)
	}
	key := hex.EncodeToString(raw)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return "", err
	}
	return key, writeDurable(file, key)
}

// writeDurable writes a new file (mode 0600), whole or not at all, and returns when it would outlive a power cut.
func writeDurable(file, text string) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // gone after the rename
	_, err = tmp.WriteString(text + "\n")
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), file); err != nil {
		return err
	}
	return syncDir(filepath.Dir(file))
}
