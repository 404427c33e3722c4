// Package access keeps pods from images that only others have credentials for: that an image is on the node does not mean that every pod may use it (KEP-2535).
//
// It owns the directory of the records: pulling/ has one for each pull under way, written before it begins, pulled/ one for each image that was pulled, with the
// credentials that were good for it. Credentials themselves are never written, only a hash.
//
// # Loss
//
// A record is on the disk before the call returns. A process that is killed leaves what it had begun in pulling/: images of that name count as pulled
// with credentials that nobody knows, until somebody pulls them again. Several processes may use one directory.
//
// # Bounds
//
// One small file for each pulled image, removed by Prune once the image is gone; at most 100 Secrets are remembered for each repository.
package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/cri"
)

// Guard decides who may use the images on the node. Its methods may be called from many goroutines.
type Guard struct {
	rule Rule
	dir  string
	now  func() time.Time

	mu      sync.Mutex
	pulls   map[string]*pulls
	settled bool // what earlier processes left was dealt with
}

// pulls are the pulls of one image under way in this process.
type pulls struct {
	file  *os.File
	count int
}

// Image is an image that a pod asks for.
type Image struct {
	// Name is as the pod gives it, Repository the same without tag and digest, with its host spelt out.
	Name, Repository string
}

// Open makes the directory of the records, if need be.
func Open(dir string, rule Rule) (*Guard, error) {
	if err := rule.Validate(); err != nil {
		return nil, fmt.Errorf("check of images that others pulled: %w", err)
	}
	for _, d := range []string{filepath.Join(dir, pullingDir), filepath.Join(dir, pulledDir)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("make the directory of pull records: %w", err)
		}
	}
	return &Guard{rule: rule, dir: dir, now: time.Now, pulls: make(map[string]*pulls)}, nil
}

// Allowed says whether a pod that offers these credentials may use an image as it is present. If not, it has to pull it, which shows
// whether its credentials are good. A record that can't be read allows nothing.
func (g *Guard) Allowed(image Image, present *cri.Image, offered []Secret) (bool, error) {
	if g.rule.Policy == NeverVerify {
		return true, nil
	}
	rec, err := g.read(present.ID)
	if err != nil {
		return false, err
	}
	pulledHere := rec != nil && !rec.preloaded(image.Repository, present)
	if !pulledHere {
		if pulledHere, err = g.pulling(image.Name); err != nil {
			return false, err
		}
	}
	if !g.rule.verify([]string{shortRepository(image.Name), image.Repository}, pulledHere) {
		return true, nil
	}
	if rec == nil {
		return false, nil
	}
	ok, fresh := rec.CredentialMapping[image.Repository].good(offered)
	if fresh != nil {
		err = g.update(image.Repository, present.ID, Credentials{KubernetesSecrets: []Secret{*fresh}})
	}
	return ok, err
}

// shortRepository is the name without tag and digest, as it was written.
func shortRepository(name string) string {
	name, _, _ = strings.Cut(name, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	return name
}

// Begin notes that the image is about to be pulled. The pull ends with Done or Failed.
func (g *Guard) Begin(image Image) (*Pull, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.pulls[image.Name]
	if p == nil {
		file, err := g.writeIntent(image.Name)
		if err != nil {
			return nil, fmt.Errorf("note that image %q is pulled: %w", image.Name, err)
		}
		p = &pulls{file: file}
		g.pulls[image.Name] = p
	}
	p.count++
	return &Pull{guard: g, image: image}, nil
}

// Pull is a pull under way.
type Pull struct {
	guard *Guard
	image Image
}

// Done notes the image that the pull made present, and what it was pulled with. If that fails the image stays one that nobody has good credentials for.
func (p *Pull) Done(ref string, with Credentials) error {
	if err := p.guard.update(p.image.Repository, ref, with); err != nil {
		return fmt.Errorf("note who may use image %q: %w", p.image.Name, err)
	}
	return p.Failed()
}

// Failed ends a pull that came to nothing.
func (p *Pull) Failed() error {
	g := p.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	held := g.pulls[p.image.Name]
	if held.count--; held.count > 0 {
		return nil
	}
	delete(g.pulls, p.image.Name)
	return errors.Join(removeFile(held.file.Name()), held.file.Close())
}

// update merges credentials into the image's record.
func (g *Guard) update(repository, ref string, with Credentials) error {
	unlock, err := g.lock()
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := g.read(ref)
	if err != nil || rec == nil { // one that can't be read is replaced
		rec = &record{ImageRef: ref}
	}
	isNew := rec.LastUpdatedTime.IsZero()
	if !rec.merge(repository, with, g.now()) && !isNew {
		return nil
	}
	if isNew {
		rec.LastUpdatedTime = metav1.NewTime(g.now())
	}
	return g.write(rec)
}

// Lister lists the runtime's images.
type Lister interface {
	ListImages(ctx context.Context) ([]cri.Image, error)
}

// Tidy deals with what earlier processes left and removes the records of images that are gone.
func (g *Guard) Tidy(ctx context.Context, runtime Lister) error {
	if g.rule.Policy == NeverVerify {
		return nil
	}
	began := g.now()
	images, err := runtime.ListImages(ctx)
	if err != nil {
		return fmt.Errorf("compare the pull records with the images: %w", err)
	}
	return errors.Join(g.settle(images), g.prune(images, began))
}

// settle turns pulls that were cut short into records of images that nobody has good credentials for.
func (g *Guard) settle(images []cri.Image) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.settled {
		return nil
	}
	left, err := g.abandoned()
	if err != nil {
		return err
	}
	var failed error
	for _, a := range left {
		var err error
		for i := range images {
			for _, repository := range a.repositories(&images[i]) {
				err = errors.Join(err, g.update(repository, images[i].ID, Credentials{}))
			}
		}
		if err == nil {
			err = removeFile(a.file.Name())
		}
		failed = errors.Join(failed, err, a.file.Close())
	}
	g.settled = failed == nil
	return failed
}

// prune removes the records of images that the runtime does not have. What was written after the list was asked for stays.
func (g *Guard) prune(images []cri.Image, before time.Time) error {
	unlock, err := g.lock()
	if err != nil {
		return err
	}
	defer unlock()
	dir := filepath.Join(g.dir, pulledDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list the pull records: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if slices.ContainsFunc(images, func(i cri.Image) bool { return fileName(i.ID) == e.Name() }) {
			continue
		}
		info, err := e.Info()
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			errs = append(errs, err)
		case info.ModTime().Before(before):
			errs = append(errs, removeFile(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

func decode(raw []byte, kind string, into any, meta *metav1.TypeMeta) error {
	if err := json.Unmarshal(raw, into); err != nil {
		return err
	}
	if meta.Kind != kind || !slices.Contains(knownVersions, meta.APIVersion) {
		return fmt.Errorf("is %s of %s, not %s", meta.Kind, meta.APIVersion, kind)
	}
	return nil
}
