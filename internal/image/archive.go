package image

import (
	"fmt"
	"os"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// WriteArchive writes the image under a reference to an archive that `ctr images import` and `docker load` read. The file appears
// whole or not at all.
func WriteArchive(file, reference string, img v1.Image) error {
	tag, err := name.NewTag(reference)
	if err != nil {
		return fmt.Errorf("image reference %q: %w", reference, err)
	}
	temporary := fmt.Sprintf("%s.%d", file, os.Getpid())
	if err := tarball.WriteToFile(temporary, tag, img); err != nil {
		_ = os.Remove(temporary)
		return fmt.Errorf("write image archive %s: %w", file, err)
	}
	if err := os.Rename(temporary, file); err != nil {
		_ = os.Remove(temporary)
		return fmt.Errorf("write image archive %s: %w", file, err)
	}
	return nil
}

// ReadArchive opens the only image of an archive that WriteArchive wrote. The archive must stay in place while the image is used.
func ReadArchive(file string) (v1.Image, error) {
	img, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		return nil, fmt.Errorf("read image archive %s: %w", file, err)
	}
	return img, nil
}
