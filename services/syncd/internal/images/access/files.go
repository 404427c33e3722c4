package access

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/cri"
)

const (
	pullingDir = "pulling"
	pulledDir  = "pulled"
	lockFile   = "lock"
)

// fileName is the name of the record of an image.
func fileName(of string) string {
	sum := sha256.Sum256([]byte(of))
	return "sha256-" + hex.EncodeToString(sum[:])
}

// lock keeps other processes, and other calls here, from changing records.
func (g *Guard) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(g.dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the pull records: %w", err)
	}
	if err := flock(f, unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the pull records: %w", err), f.Close())
	}
	return func() { _ = f.Close() }, nil // which unlocks it
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// read returns the record of an image, nil when there is none.
func (g *Guard) read(ref string) (*record, error) {
	path := filepath.Join(g.dir, pulledDir, fileName(ref))
	raw, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the pull record of image %s: %w", ref, err)
	}
	var rec record
	if err := decode(raw, kindPulled, &rec, &rec.TypeMeta); err != nil {
		return nil, fmt.Errorf("decode the pull record %s: %w", path, err)
	}
	if rec.ImageRef != ref {
		return nil, fmt.Errorf("the pull record %s is about another image, %s", path, rec.ImageRef)
	}
	return &rec, nil
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFileSize {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", path, info.Size(), maxFileSize)
	}
	return os.ReadFile(path)
}

func (g *Guard) write(rec *record) error {
	rec.TypeMeta = metav1.TypeMeta{APIVersion: apiVersion, Kind: kindPulled}
	raw, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("encode a pull record: %w", err)
	}
	f, err := os.CreateTemp(g.dir, ".new-*")
	if err != nil {
		return fmt.Errorf("write a pull record: %w", err)
	}
	_, err = f.Write(raw)
	err = errors.Join(err, f.Sync(), f.Close())
	path := filepath.Join(g.dir, pulledDir, fileName(rec.ImageRef))
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write a pull record: %w", err), removeFile(f.Name()))
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// removeFile removes a file that may be gone already.
func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// writeIntent writes the note of a pull and keeps it locked: a note that nobody has locked was left by a process that ended. Each has a file of its own, so
// that one that ends does not take another's note away.
func (g *Guard) writeIntent(image string) (*os.File, error) {
	raw, err := json.Marshal(intent{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kindIntent}, Image: image})
	if err != nil {
		return nil, err
	}
	unlock, err := g.lock() // or the note might be taken for an abandoned one before it is locked
	if err != nil {
		return nil, err
	}
	defer unlock()
	dir := filepath.Join(g.dir, pullingDir)
	f, err := os.CreateTemp(dir, fileName(image)+".*")
	if err != nil {
		return nil, err
	}
	err = flock(f, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		_, err = f.Write(raw)
	}
	if err = errors.Join(err, f.Sync(), syncDir(dir)); err != nil {
		return nil, errors.Join(err, removeFile(f.Name()), f.Close())
	}
	return f, nil
}

// pulling says whether there is a note that an image of this name was being pulled, by whomever.
func (g *Guard) pulling(image string) (bool, error) {
	g.mu.Lock()
	mine := g.pulls[image] != nil
	g.mu.Unlock()
	if mine {
		return true, nil
	}
	entries, err := os.ReadDir(filepath.Join(g.dir, pullingDir))
	if err != nil {
		return false, fmt.Errorf("list the pulls under way: %w", err)
	}
	name := fileName(image)
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), name) }), nil
}

// abandonedPull is the note of a pull whose process ended. The file is open, and locked.
type abandonedPull struct {
	file  *os.File
	image string
}

// repositories are those of the image's names that the pull may have made. Names are compared as they are listed: with host and tag.
func (a *abandonedPull) repositories(image *cri.Image) []string {
	var found []string
	for _, s := range slices.Concat(image.RepoTags, image.RepoDigests) {
		if s == a.image || s == a.image+":latest" || strings.HasSuffix(s, "/"+a.image) || strings.HasSuffix(s, "/"+a.image+":latest") {
			found = append(found, shortRepository(s))
		}
	}
	return found
}

// abandoned finds the notes that nobody has locked.
func (g *Guard) abandoned() ([]abandonedPull, error) {
	unlock, err := g.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	dir := filepath.Join(g.dir, pullingDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the pulls under way: %w", err)
	}
	var found []abandonedPull
	for _, e := range entries {
		f, err := os.Open(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return found, fmt.Errorf("read the note of a pull: %w", err)
		}
		if err := flock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil { // somebody is at it
			_ = f.Close()
			continue
		}
		var i intent
		raw, err := readFile(f.Name())
		if err == nil {
			err = decode(raw, kindIntent, &i, &i.TypeMeta)
		}
		if err != nil { // cut short while it was written: the pull had not begun
			_ = removeFile(f.Name())
			_ = f.Close()
			continue
		}
		found = append(found, abandonedPull{file: f, image: i.Image})
	}
	return found, nil
}
